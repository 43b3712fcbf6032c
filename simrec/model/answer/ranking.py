"""What a list is ranked by, one component of a model or the blend of all; how good lists are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.model.answer.recommend import exclusions
from simrec.model.head import Head, JoinedHead
from simrec.model.lists.blend import NEW, Blend
from simrec.model.part import Part
from simrec.model.tower import Tower
from simrec.scoring.metrics import hits, ndcg_at_k
from simrec.scoring.topk import top_k

RankBy = Literal["both", "rating", "uptake"]


def ranked_parts(parts: Mapping[str, Part], blend: Blend, rank_by: RankBy) -> dict[str, Part]:
    """Return the components that a ranking is made of."""
    if rank_by not in ("both", "rating", "uptake"):
        raise InputError(f"rank_by must be 'both', 'rating' or 'uptake', got {rank_by!r}.")
    if rank_by == "both":
        return {name: parts[name.removeprefix(NEW)] for name in blend.factors}
    if rank_by not in parts:
        raise InputError(f"rank_by={rank_by!r}: the model has learned no {rank_by}.")
    return {rank_by: parts[rank_by]}


def ranking(
    parts: Mapping[str, Part], blend: Blend, towers: Sides[Tower], rank_by: RankBy
) -> tuple[Sides[Head], float]:
    """Return the vectors whose scalar product ranks, and what is added to it for the score."""
    used = ranked_parts(parts, blend, rank_by)
    if rank_by != "both":
        part = used[rank_by]
        return Sides(part.heads.items, part.heads.users), part.output.shift

    def joined(side: Side) -> Head:
        heads = [part.heads[side] for part in used.values()]

        def factors(counts: np.ndarray) -> np.ndarray:
            found = [
                np.broadcast_to(blend.of(name, side, counts), (len(counts), head.width))
                for name, head in zip(used, heads, strict=True)
            ]
            return np.concatenate(found, axis=1)

        return JoinedHead(heads, factors, towers[side].counts)

    # One number for all of a user's items changes no list, and users differ in their weights.
    return Sides.of(joined), 0.0


def list_score(
    pairs: Ratings, towers: Sides[Tower], heads: Sides[Head], rated: sparse.csr_matrix, k: int
) -> float:
    """Return NDCG@k of the lists of the users who have pairs; hits are their pairs.

    Candidates are all items the model knows without those that a user has rated. Users whom the
    model does not know get what an average user gets.
    """
    item_rows = towers.items.ids.rows(pairs.items.ids)[pairs.item_rows]
    there = item_rows >= 0
    places = (np.ones(int(there.sum()), np.float32), (pairs.user_rows[there], item_rows[there]))
    relevant = sparse.csr_matrix(places, shape=(pairs.n_users, len(towers.items.ids)))
    items = towers.items.ids.column, towers.items.everyone()
    users = pairs.users.column, towers.users.find(pairs.users.ids, None, "prior")
    seen = exclusions(Sides(items, users), rated, None)
    n, some = np.diff(relevant.indptr), np.flatnonzero(np.diff(relevant.indptr))
    if not len(some):
        return 0.0
    vectors = heads.users.of(users[1])[some], heads.items.of(items[1])
    best = top_k(*vectors, k, exclude=seen[some])[0]
    return float(ndcg_at_k(hits(best, relevant[some]), n[some]).mean())
