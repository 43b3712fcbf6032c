"""What the service exposes, in the library: filters, caps, variety, audience, questions, guests."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from simrec import TwoTower
from simrec.errors import InputError
from simrec.model.answer.rerank import draw, propensities


@pytest.fixture(scope="module")
def rows(shop):
    return {row["item_id"]: row for row in shop.data.items.to_pylist()}


def test_where_is_exact(shop, rows):
    where = {"genres": {"contains": "Drama"}, "year": {">=": 1980}}
    fits = [i for i, row in rows.items() if "Drama" in row["genres"] and (row["year"] or 0) >= 1980]
    found = shop.model.recommend([1, 2, 3], k=80, where=where)
    expected = shop.model.recommend([1, 2, 3], k=80, items=sorted(fits))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    # The table of the call counts as much as the one that is kept.
    table = shop.data.items.append_column("stock", pa.array([i % 2 for i in rows]))
    found = shop.model.recommend(1, k=80, items=table, where={"stock": 1})
    assert set(found["item_id"]) <= {i for i in rows if i % 2}
    assert len(shop.model.recommend(1, where={"year": {">": 3000}})) == 0
    with pytest.raises(InputError, match="no column 'stock'"):
        shop.model.recommend(1, where={"stock": 1})


def test_at_most_passes_over_and_is_exact(shop, rows):
    plain = shop.model.recommend([4, 5], k=80, exclude=None)
    found = shop.model.recommend([4, 5], k=6, exclude=None, at_most={"studio": 1, "genres": 3})
    for user, list_ in found.groupby("user_id"):
        studios, genres, expected = Counter(), Counter(), []
        for item in plain[plain["user_id"] == user]["item_id"]:
            row = rows[item]
            full = any(genres[g] >= 3 for g in row["genres"])
            if len(expected) < 6 and not full and studios[row["studio"]] < 1:
                expected.append(item)
                studios[row["studio"]] += 1
                genres.update(set(row["genres"]))
        assert list_["item_id"].tolist() == expected
    with pytest.raises(InputError, match="at_most"):
        shop.model.recommend(1, at_most={"studio": 0})


def test_diversity_trades_scores_for_variety(shop):
    model = shop.model

    def alike(lists):
        unit = {}
        for item in set(lists["item_id"]):
            near = model.similar_items(int(item), k=79)
            unit[item] = dict(zip(near["item_id"], near["similarity"], strict=True))
        return np.mean(
            [
                unit[a][b]
                for _, one in lists.groupby("user_id")
                for a in one["item_id"]
                for b in one["item_id"]
                if a != b
            ]
        )

    users = list(range(1, 13))
    lists = [model.recommend(users, k=5, diversity=d) for d in (0.0, 0.5)]
    assert alike(lists[1]) < alike(lists[0]) - 0.1
    assert lists[1]["score"].mean() < lists[0]["score"].mean()
    pd.testing.assert_frame_equal(lists[0], model.recommend(users, k=5))
    with pytest.raises(InputError, match="from 0 to 1"):
        model.recommend(1, diversity=2)


def test_lists_are_drawn_with_their_propensities(shop):
    rng = np.random.default_rng(0)
    scores, deviations = rng.normal(size=40), rng.uniform(0.05, 1, 40)
    drawn = [draw(scores, deviations, 5, rng) for _ in range(400)]
    share = np.bincount(np.concatenate([places for places, _ in drawn]), minlength=40) / 400
    told = propensities(scores, deviations, 5, np.arange(40))
    assert np.abs(share - told).max() < 4 * np.sqrt(0.25 / 400)
    assert abs(told.sum() - 5) < 0.02
    again = [shop.model.recommend([7, 8], k=5, explore=3.0, sample=1) for _ in range(2)]
    pd.testing.assert_frame_equal(*again)
    assert again[0]["propensity"].between(0, 1).all()
    with pytest.raises(InputError, match="explore"):
        shop.model.recommend(7, sample=1)


def test_audience_is_who_gains_most(shop):
    model = shop.model
    for rank_by in ("both", "rating"):
        found = model.audience([17, 3], k=7, rank_by=rank_by)
        assert found["item_id"].tolist() == [17] * 7 + [3] * 7
        vectors = [
            np.stack(embed(rank_by=rank_by)["vector"])
            for embed in (model.embed_users, model.embed_items)
        ]
        z = vectors[0] @ vectors[1].T
        lift = z - z.mean(1, keepdims=True)
        if rank_by == "both":
            lift /= z.std(1, keepdims=True)
        row = model.items_.rows([3])[0]
        rated = np.asarray(model.rated_[:, [row]].todense()).ravel() > 0
        lift[rated, row] = -np.inf
        best = np.argsort(-lift[:, row])[:7]
        three = found[found["item_id"] == 3]
        assert three["user_id"].tolist() == model.users_.take(best).to_pylist()
        np.testing.assert_allclose(three["lift"], lift[best, row], rtol=2e-3, atol=1e-4)
        # Reach by brute force.
        lists = model.recommend(k=10, rank_by=rank_by)
        assert three["reach"].iloc[0] == (lists["item_id"] == 3).sum()
    new = {"item_id": 999, "year": 2001, "genres": ["Drama"], "studio": "x"}
    assert len(model.audience(new, k=4)) == 4


def test_questions_tell_more_than_popular_items(shop):
    model = shop.model
    asked = model.ask(k=5)
    assert asked["gain"].between(0, 1).all()
    assert asked["item_id"].is_unique
    popular = model.items_.take(np.argsort(-model.towers_.items.counts)[:5]).to_pylist()
    assert set(asked["item_id"]) != set(popular)
    ratings = pd.DataFrame({"user_id": 9001, "item_id": asked["item_id"], "rating": 4.0})
    guest = model.guests(ratings)
    assert not set(guest.ask(9001)["item_id"]) & set(asked["item_id"])
    left = [
        one.predict([9001] * 80, model.items_.ids.to_pylist(), unknown="prior", return_std=True)[1]
        for one in (model, guest, model.guests(ratings.assign(item_id=popular)))
    ]
    assert left[1].mean() < left[0].mean()


def test_guests_are_as_folded_in(shop):
    model = TwoTower.load(shop.path)
    few = {"user_id": [9001] * 3 + [9002], "item_id": [17, 24, 30, 17], "rating": [5.0, 1, 4, 2]}
    ratings = pd.DataFrame(few)
    row = {"user_id": 9001, "age": 30, "gender": "F"}
    guests = model.guests(ratings, users=row)
    assert len(guests.users_) == 2
    assert len(model.users_) == len(shop.model.users_)
    folded = TwoTower.load(shop.path).fold_in(ratings, users=row)
    for ask in (
        lambda m: m.recommend([9001, 9002], k=20),
        lambda m: m.recommend([9001, 9002], k=20, rank_by="rating", diversity=0.5),
    ):
        one, two = ask(guests), ask(folded)
        assert one["item_id"].tolist() == two["item_id"].tolist()
        np.testing.assert_allclose(one["score"], two["score"], atol=1e-5)
    pairs = pd.DataFrame({"user_id": 9001, "item_id": model.items_.ids.to_pylist()})
    for a, b in zip(*(m.predict(pairs, return_std=True) for m in (guests, folded)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    with pytest.raises(InputError, match="not in the model"):
        model.guests(ratings.assign(item_id=10**6))


def test_known_guests_learn_alone(shop):
    model = shop.model
    rated = model.rated_[model.users_.rows([7])].indices
    new = [i for i in model.items_.ids.to_pylist() if model.items_.rows([i])[0] not in rated]
    low = pd.DataFrame({"user_id": 7, "item_id": new[:6], "rating": 0.5})
    guest = model.guests(low)
    before = {m: m.predict([7] * 5, new[6:11]).mean() for m in (model, guest)}
    assert before[guest] < before[model] - 0.1
    assert not set(guest.recommend(7, k=80)["item_id"]) & set(new[:6])
    same = model.guests(user_ids=7)
    pd.testing.assert_frame_equal(same.recommend(7), model.recommend(7))


def test_audience_job(shop, tmp_path):
    import pyarrow.parquet as pq

    from simrec.jobs.recommend import audience

    pq.write_table(shop.data.items.slice(0, 30), tmp_path / "items.parquet")
    out = tmp_path / "audience.parquet"
    summary = audience(shop.path, out, items=tmp_path / "items.parquet", k=4)
    assert summary["job"] == "audience"
    expected = shop.model.audience(shop.data.items.slice(0, 30), k=4)
    pd.testing.assert_frame_equal(pd.read_parquet(out), expected, check_dtype=False)
