"""What a list is ranked by: one part of a model, or the weighted sum of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.model.head import Head, JoinedHead
from simrec.model.part import Part

RankBy = Literal["both", "rating", "uptake"]


def ranked_parts(
    parts: Mapping[str, Part], uptake_weight: float, rank_by: RankBy
) -> list[tuple[Part, float]]:
    """Return the parts that a ranking is the weighted sum of."""
    if rank_by not in ("both", "rating", "uptake"):
        raise InputError(f"rank_by must be 'both', 'rating' or 'uptake', got {rank_by!r}.")
    if rank_by != "both":
        if rank_by not in parts:
            raise InputError(f"rank_by={rank_by!r}: the model has learned no {rank_by}.")
        return [(parts[rank_by], 1.0)]
    if len(parts) == 1:
        return [(part, 1.0) for part in parts.values()]
    return [(parts["rating"], 1.0), (parts["uptake"], uptake_weight)]


def ranking(parts: Sequence[tuple[Part, float]]) -> tuple[Sides[Head], float]:
    """Return the vectors whose scalar product ranks, and what is added to it for the score."""
    shift = float(sum(weight * part.output.shift for part, weight in parts))
    first = parts[0][0].heads
    if len(parts) == 1:
        return Sides(first.items, first.users), shift
    items = JoinedHead([(part.heads.items, 1.0) for part, _ in parts])
    users = JoinedHead([(part.heads.users, weight) for part, weight in parts])
    return Sides(items, users), shift
