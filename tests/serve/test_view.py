"""The best items of one user, found by one product with all items."""

import numpy as np
import pytest

from simrec.data.sides import Sides
from simrec.model.head import Encoder, StoredHead
from simrec.scoring.topk import top_k
from simrec.serve.view import View


@pytest.mark.parametrize("zeros", [slice(0), slice(0, 9), slice(5, 20), slice(1, None, 2)])
@pytest.mark.parametrize("explored", [False, True])
def test_best_are_those_of_top_k(zeros, explored):
    rng = np.random.default_rng(0)
    items = rng.standard_normal((3000, 24), np.float32)
    items[:2000, 3] = 0  # a coordinate that known items do not need
    items[1990:2000] = items[:10]  # ties, of which the lower row comes first
    query = rng.standard_normal(24, np.float32)
    query[zeros] = 0
    encoder = Encoder(np.zeros((1, 24), np.float32))
    head = StoredHead(items[:2000], encoder, np.zeros(24, np.float32))
    columns = np.delete(np.arange(24), 3)
    known = np.ascontiguousarray(items[:2000, columns].T)
    longest = float(np.linalg.norm(items, axis=1).max())
    view = View(Sides(head, head), known, columns, items[2000:], longest, 0.0)
    keep = rng.random(3000) < 0.9
    bonus = rng.random(3000, np.float32) if explored else None
    ranked = items if bonus is None else np.hstack([items, bonus[:, None]])
    queries = query[None] if bonus is None else np.append(query, np.float32(1))[None]
    expected, scores = top_k(queries, ranked[keep], 20)
    found, by = view.best(query, keep, 20, bonus)
    assert found.tolist() == np.flatnonzero(keep)[expected[0]].tolist()
    np.testing.assert_allclose(by, scores[0], rtol=1e-5)
