"""How well a model answers for pairs that it was not fitted to, as one number."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.model.head import Head
from simrec.model.tower import Tower
from simrec.model.uptake.held_out import list_quality


def list_score(
    pairs: Ratings,
    towers: Sides[Tower],
    heads: Sides[Head],
    rated: sparse.csr_matrix,
    k: int,
) -> float:
    """Return NDCG@k of the lists of the users who have pairs; hits are their pairs.

    Candidates are all items the model knows without those that a user has rated. Users whom the
    model does not know get what an average user gets.
    """
    item_rows = towers.items.ids.rows(pairs.items.ids)[pairs.item_rows]
    there = item_rows >= 0
    places = (np.ones(int(there.sum()), np.float32), (pairs.user_rows[there], item_rows[there]))
    hits = sparse.csr_matrix(places, shape=(pairs.n_users, len(towers.items.ids)))
    found = towers.users.find(pairs.users.ids, None, "prior")
    known = np.flatnonzero(found.rows < found.n_known)
    theirs = rated[found.rows[known]].tocoo()
    seen = sparse.csr_matrix(
        (np.ones(theirs.nnz, np.float32), (known[theirs.row], theirs.col)), shape=hits.shape
    )
    vectors = Sides(heads.items.of(towers.items.everyone()), heads.users.of(found))
    return list_quality(vectors.users, vectors.items, hits, seen, k)
