"""Opinions of single authors, which few coordinates cannot hold: a block that follows residuals."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from simrec import Ratings, TwoTower
from simrec.data.sides import Sides
from simrec.model.fit import fit_ratings
from simrec.model.lists.blend import Blend
from simrec.model.params import Settings
from simrec.model.part import Entity
from simrec.model.prepare import Encoding, prepare
from simrec.model.rating import content_block
from simrec.model.rating.part import explain_rating
from simrec.model.update.update import State, forget, learn
from simrec.scoring.pairs import score_pairs

SETTINGS = Settings(embedding_dim=2, epochs=4)
N_USERS, N_ITEMS, N_AUTHORS = 300, 240, 40


def shop(opinion):
    """Ratings of items by users who have an opinion of each author; and those held out."""
    rng = np.random.default_rng(0)
    author = np.arange(N_ITEMS) % N_AUTHORS
    opinions = opinion * rng.normal(size=(N_USERS, N_AUTHORS))
    users, items = np.nonzero(rng.random((N_USERS, N_ITEMS)) < 0.3)
    values = 3 + opinions[users, author[items]] + rng.normal(0, 0.5, len(users))
    pairs = {"user_id": users, "item_id": items, "rating": np.clip(values, 1, 5)}
    table = pa.table(pairs)
    out = rng.random(len(users)) < 0.1
    features = pa.table({"item_id": np.arange(N_ITEMS), "author": [f"a{one}" for one in author]})
    train, rest = (Ratings.from_arrow(table.filter(pa.array(which))) for which in (~out, out))
    encoding = Encoding(Sides(None, None), min_count=2, knots=4)
    return prepare(train, (1.0, 5.0), Sides(features, None), encoding), rest


@pytest.fixture(scope="module")
def fitted():
    """Data, ratings held out, the part with its block, and what was chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_block, "_LEAST", 1000)
        data, rest = shop(opinion=0.7)
        return data, rest, *fit_ratings(data, SETTINGS, lambda logs: None)


def error(part, data, ratings):
    towers = data.sides.map(lambda side: side.tower)
    users = towers.users.ids.rows(ratings.users.ids)[ratings.user_rows]
    items = towers.items.ids.rows(ratings.items.ids)[ratings.item_rows]
    vectors = part.heads.map(lambda head: head.vectors)
    found = score_pairs(vectors.users, vectors.items, users, items, part.output)
    return np.sqrt(np.mean((found - ratings.values) ** 2))


def state_of(data, part):
    return State(data.sides.map(lambda side: side.tower), {"rating": part}, data.rated())


def test_opinions_of_authors_are_predicted(fitted):
    data, rest, part, chosen = fitted
    plain, without = fit_ratings(data, replace(SETTINGS, content=0.0), lambda logs: None)
    assert chosen["content"] > 0
    assert "content" not in without
    assert error(part, data, rest) < 0.95 * error(plain, data, rest)


@pytest.mark.parametrize("least", [1000, 20_000])
def test_without_a_clear_gain_there_is_no_block(monkeypatch, least):
    monkeypatch.setattr(content_block, "_LEAST", least)
    data, _ = shop(opinion=0.0 if least == 1000 else 0.7)
    part, chosen = fit_ratings(data, replace(SETTINGS, epochs=2), lambda logs: None)
    assert "content" not in chosen
    assert part.layout.content == 0


def test_later_ratings_enter_the_block(fitted):
    """A new user who hates one author: other items by that author fall, and more with each."""
    data, _, part, _ = fitted
    by_first = [0, N_AUTHORS, 2 * N_AUTHORS]
    scores = []
    for n in (1, 2):
        rated = Ratings.from_arrow(
            pa.table({"user_id": [999] * n, "item_id": by_first[:n], "rating": [1.0] * n})
        )
        state, _ = learn(state_of(data, part), rated, Sides(None, None), Sides(True, True))
        vectors = state.parts["rating"].heads.map(lambda head: head.vectors)
        row, width = state.towers.users.ids.rows([999])[0], part.layout.content
        block = vectors.users[row, -width:] @ vectors.items[:, -width:].T
        assert block[by_first[2]] < -0.01
        assert abs(block[by_first[2] + 1]) < 0.1 * abs(block[by_first[2]])
        scores.append(block[by_first[2]])
        assert np.array_equal(vectors.items[:, -width:], part.heads.items.vectors[:, -width:])
    assert scores[1] < scores[0]
    gone = forget(state, [999]).parts["rating"].heads.users.vectors
    assert np.array_equal(gone, part.heads.users.vectors)


def test_a_new_item_has_the_block_of_its_features(fitted):
    data, _, part, _ = fitted
    new = pa.table({"item_id": [5000], "author": ["a3"]})
    state, _ = learn(state_of(data, part), None, Sides(new, None), Sides(True, True))
    vectors, width = state.parts["rating"].heads.items.vectors, part.layout.content
    assert np.allclose(vectors[-1, -width:], part.heads.items.vectors[3, -width:], atol=1e-5)


@pytest.mark.parametrize("side", ["items", "users"])
def test_contributions_sum_to_the_vector(fitted, side):
    data, _, part, _ = fitted
    tower, row = data.sides[side].tower, 3
    entity = Entity(side, row, int(tower.counts[row]), tower.features[row], tower.encoder)
    vector, kept = part.heads[side].vectors[row], part.evidence.sides[side]
    found = explain_rating(entity, vector, part.heads[side], kept, part.layout)
    assert np.allclose(found.vectors.sum(0) + found.constant, vector, atol=1e-5)
    if side == "items":
        width = part.layout.content
        author = found.vectors[found.names.index("author"), -width:]
        assert np.allclose(author, vector[-width:], atol=1e-5)


def test_the_block_is_saved(fitted, tmp_path):
    data, rest, part, _ = fitted
    few = data.ratings.select(np.flatnonzero(data.ratings.user_rows < 20))
    model = TwoTower(embedding_dim=2, epochs=2).fit(few)
    model.parts_, model.rated_, model.liked_ = {"rating": part}, data.rated(), None
    model.towers_ = data.sides.map(lambda side: side.tower)
    model.blend_ = Blend({"rating": Sides(np.ones((2, 1)), np.ones((3, 1)))})
    model.save(tmp_path / "model")
    loaded = TwoTower.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(rest), model.predict(rest))
    assert loaded.parts_["rating"].coefficient == part.coefficient
