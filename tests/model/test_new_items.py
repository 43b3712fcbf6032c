"""New items among others, and for users of whom nothing is known."""

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower, cold_start_split, evaluate, make_synthetic
from simrec.model.lists.held_out import Task
from simrec.model.lists.new_items import Compared, comparable


def compared(cold_tells):
    """Lists of 300 users from 80 known and 40 new items, which are hits if they score high."""
    rng = np.random.default_rng(0)
    wanted = rng.normal(size=(300, 120))
    hits = wanted + rng.normal(size=wanted.shape) > 2.5
    is_new = np.arange(120) >= 80
    # Scores of new items have another level and spread.
    cold = wanted if cold_tells else rng.normal(size=wanted.shape)
    users = np.flatnonzero(hits.any(1))
    task = Task(users, np.arange(120), hits[users], np.zeros_like(hits[users]))
    return Compared.of(2 + 3 * wanted[users], 10 + 0.5 * cold[users], is_new, task)


def test_new_items_get_the_spread_and_level_of_others():
    factor, shift = comparable([compared(cold_tells=True)])
    assert factor == pytest.approx(6, rel=0.1)
    assert factor * 10 + shift == pytest.approx(2, abs=2)


def test_new_items_whose_scores_tell_nothing_are_below_others():
    factor, shift = comparable([compared(cold_tells=False)])
    assert factor * (10 + 2 * 0.5) + shift < 2 + 3 * 1.5
    assert comparable([]) == (1.0, 0.0)


def test_rare_items_do_not_jump_to_the_top():
    """Categories that tell little of popularity: cold users are shown what is popular."""
    rng = np.random.default_rng(3)
    popular = (np.arange(400) + 5.0) ** -1.0
    users = np.repeat(np.arange(800), 7)
    items = np.concatenate([rng.choice(400, 7, False, popular / popular.sum()) for _ in range(800)])
    columns = {"user_id": users, "item_id": items, "rating": rng.integers(1, 6, len(users)) * 1.0}
    table = pa.table({"item_id": np.arange(400), "category": [f"c{k % 7}" for k in range(400)]})
    model = TwoTower(bounds=(1, 5)).fit(pa.table(columns), items=table)
    top = model.recommend([10**6], k=10, unknown="prior")["item_id"]
    counts = np.bincount(items, minlength=400)
    assert (counts[top[:5]] >= 100).all() and (counts[top] >= 40).sum() >= 9


def test_cold_users_get_new_items_at_least_as_good_as_popular_ones(monkeypatch):
    """Weights that suit known users once ranked new items worse than popularity for cold users."""
    monkeypatch.setattr("simrec.model.lists.fit.LEAST_DRAWS", 2)
    monkeypatch.setattr("simrec.model.lists.fit.MOST_DRAWS", 8)
    made = make_synthetic(n_users=300, n_items=200, n_ratings=8_000, random_state=0)
    split = cold_start_split(Ratings.from_table(made.ratings), random_state=0)
    model = TwoTower(bounds=(0.5, 5), random_state=0)
    model.fit(split.train, items=made.items, users=made.users)
    figures = evaluate(model, split, items=made.items).set_index("task").loc["new_both"]
    assert figures["ndcg@10"] > 0.95 * figures["ndcg@10_popular"]


def test_contributions_to_the_score_of_a_rare_item_sum_up():
    """What is rare since `fit` counts as known; what came later, by its share of the pairs."""
    made = make_synthetic(n_users=200, n_items=200, n_ratings=1_200, random_state=0)
    model = TwoTower(bounds=(0.5, 5)).fit(made.ratings, items=made.items, users=made.users)
    counts = np.asarray(model.towers_.items.counts)
    rare = np.flatnonzero((counts > 0) & (counts < 5))[:8]
    assert len(rare) == 8
    user = model.users_.ids[0].as_py()
    later = made.items.slice(0, 1).set_column(0, "item_id", pa.array([10**6]))
    pairs = {"user_id": model.users_.take([1, 2]), "item_id": [10**6] * 2, "rating": [4.0, 5.0]}
    model.update(pa.table(pairs), items=later)
    items = [*model.items_.take(rare).to_pylist(), 10**6]
    known = model.blended_by("items")[model.items_.rows(items)]
    assert known == pytest.approx([1] * 8 + [2 / (2 + counts[counts > 0].mean())])
    found = model.recommend([user], k=9, items=items, exclude=None).set_index("item_id")["score"]
    for item in items:
        assert model.explain(user, item, rank_by="both")["contribution"].sum() == pytest.approx(
            found[item], rel=1e-4, abs=1e-4
        )
    columns = model.explain(user, 10**6, rank_by="both").query("side == 'item'")["feature"]
    popularity = columns[columns.str.startswith("popularity")]
    assert len(popularity) > 2 and popularity.str.contains("who took it up").any()


def test_a_table_of_names_leaves_what_the_model_knows():
    made = make_synthetic(n_users=200, n_items=200, n_ratings=3_000, random_state=0)
    table, ratings = made.items, Ratings.from_table(made.ratings)
    known = table.slice(0, 190)
    ratings = ratings.select(ratings.item_rows < 180)
    model = TwoTower(bounds=(0.5, 5)).fit(ratings, items=known)
    unrated = known["item_id"][-1].as_py()
    row = model.items_.rows([unrated])
    before = model.towers_.items.features[row].toarray()
    best = model.recommend(1, items=[unrated])["score"][0]
    names = table.select(["item_id", "title"]).slice(189, 1)
    assert model.recommend(1, items=names)["score"][0] == best
    model.update(pa.table({"user_id": [1], "item_id": [unrated], "rating": [4.0]}), items=names)
    np.testing.assert_array_equal(model.towers_.items.features[row].toarray(), before)


def test_titles_tell_what_new_items_belong_to():
    """Parts of a series are taken by the same users, and nothing but titles says which are."""
    rng = np.random.default_rng(0)
    names = [
        f"{a}{b}" for a in ("ash", "elm", "oak", "yew", "fir") for b in ("field", "ton", "ham")
    ]
    series = rng.integers(0, len(names), 200)
    titles = [f"{names[s].title()} part {k}" for k, s in enumerate(series)]
    items = pa.table({"item_id": np.arange(200), "title": titles})
    taste = rng.integers(0, len(names), (300, 2))
    p = np.where((series[None, :, None] == taste[:, None]).any(2), 0.5, 0.01)
    users, taken = np.nonzero(rng.random(p.shape) < p)
    new = np.arange(180, 200)
    known = taken < 180
    pairs = pa.table({"user_id": users[known], "item_id": taken[known]})
    model = TwoTower(random_state=0).fit(pairs, items=items)
    best = model.recommend(k=3, items=items.take(new), exclude=None)
    hit = (series[best["item_id"]][:, None] == taste[best["user_id"]]).any(1)
    possible = np.array([(np.isin(taste[u], series[new])).any() for u in best["user_id"]])
    assert hit[possible & (best["rank"] == 1)].mean() > 0.9
