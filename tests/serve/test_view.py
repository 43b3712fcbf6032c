"""The best items of one user, found by products with all items."""

from types import SimpleNamespace

import numpy as np
import pytest

from simrec.data.sides import Sides
from simrec.model.head import Encoder, Found, StoredHead
from simrec.scoring.topk import top_k
from simrec.serve import view as views
from simrec.serve.view import Known, View


def tower(n):
    return SimpleNamespace(
        ids=range(n), known=lambda rows: Found(rows, n, None, np.zeros(len(rows), bool))
    )


@pytest.mark.parametrize("zeros", [slice(0), slice(0, 9), slice(5, 20), slice(1, None, 2)])
@pytest.mark.parametrize("explored", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_best_are_those_of_top_k(zeros, explored, large, monkeypatch):
    rng = np.random.default_rng(0)
    items = rng.standard_normal((3000, 24), np.float32) * np.float32(0.7) ** np.arange(24)
    items[:2000, 3] = 0  # a coordinate that known items do not need
    items[1990:2000] = items[:10]  # ties, of which the lower row comes first
    query = rng.standard_normal(24, np.float32)
    query[zeros] = 0
    encoder = Encoder(np.zeros((1, 24), np.float32))
    users = rng.standard_normal((50, 24), np.float32)
    heads = Sides(
        *(StoredHead(one, encoder, np.zeros(24, np.float32)) for one in (items[:2000], users))
    )
    if large:
        monkeypatch.setattr(views, "_LARGE", 0)
        monkeypatch.setattr(views, "_STEP", 4)
    known = Known.of(heads, Sides(tower(2000), tower(50)))
    assert len(known.edges) == len(known.rest) == (4 if large else 0)
    longest = float(np.linalg.norm(items, axis=1).max())
    view = View(heads, known, items[2000:], longest, 0.0)
    keep = rng.random(3000) < 0.9
    bonus = 0.1 * rng.random(3000, np.float32) if explored else None
    if large and zeros == slice(0):
        near = np.flatnonzero(keep)
        assert 20 <= len(view._candidates(query, near, 20, bonus)) <= 500
    ranked = items if bonus is None else np.hstack([items, bonus[:, None]])
    queries = query[None] if bonus is None else np.append(query, np.float32(1))[None]
    expected, scores = top_k(queries, ranked[keep], 20)
    found, by = view.best(query, keep, 20, bonus)
    assert found.tolist() == np.flatnonzero(keep)[expected[0]].tolist()
    np.testing.assert_allclose(by, scores[0], rtol=1e-5)
