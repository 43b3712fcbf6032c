"""Lists that do not repeat themselves: caps by the value of a column, and a wish for variety."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.features.column import family
from simrec.data.sides import Sides
from simrec.errors import InputError, nearest
from simrec.model.answer.similar import unit_vectors
from simrec.model.head import Found
from simrec.model.part import Part
from simrec.model.tower import Tower


def check_diversity(diversity: float) -> float:
    """Return the trade-off; InputError unless it is a number from 0 to 1."""
    number = isinstance(diversity, int | float | np.number) and not isinstance(diversity, bool)
    if not number or not 0 <= diversity <= 1:
        raise InputError(f"diversity must be a number from 0 to 1, got {diversity!r}.")
    return float(diversity)


def caps(
    at_most: Mapping[str, int] | None, table: pa.Table | None
) -> list[tuple[sparse.csr_matrix, int]]:
    """Return candidates x values of each capped column, and how many of a value a list may have.

    Of a list column an item has each of the values; missing values are not capped.
    """
    found = []
    for name, most in (at_most or {}).items():
        if table is None or name not in table.column_names:
            known = [] if table is None else table.column_names
            hint = nearest(name, known)
            raise InputError(
                f"at_most: the items have no column {name!r}.{hint} Columns: "
                f"{', '.join(known) or 'none'}."
            )
        if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
            raise InputError(f"at_most: {name!r} must be a whole number from 1 on, got {most!r}.")
        column = table[name].combine_chunks()
        rows, values = np.arange(len(column)), column
        if family(column.type).startswith("list"):
            rows, values = np.asarray(pc.list_parent_indices(column)), pc.list_flatten(column)
        if not isinstance(values.type, pa.DictionaryType):
            values = values.dictionary_encode()
        codes = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False)
        there = codes >= 0
        shape = (len(column), len(values.dictionary))
        entries = (np.ones(int(there.sum()), np.float32), (rows[there], codes[there]))
        matrix = sparse.csr_matrix(entries, shape=shape)
        matrix.data[:] = 1  # a value that a list has twice counts once
        found.append((matrix, int(most)))
    return found


def directions(part: Part, towers: Sides[Tower]) -> Callable[[Found], np.ndarray]:
    """Return what gives unit vectors of items, whose products are correlations of their scores."""
    unit, head = unit_vectors(part, "items", towers), part.heads.items
    return lambda found: unit(head.of(found))


def chosen_of(
    pool: np.ndarray,
    scores: np.ndarray,
    k: int,
    capped: Sequence[tuple[sparse.csr_matrix, int]],
    diversity: float,
    directions_of: Callable[[np.ndarray], np.ndarray] | None,
) -> np.ndarray:
    """Choose k of a pool greedily (maximal marginal relevance); return their places in the pool.

    The next is the one with the largest ``(1 - diversity) * relevance - diversity * similarity``:
    relevance is the score, from 0 for the last of the pool to 1 for the first, and similarity the
    cosine with the nearest that is chosen already. One that would exceed a cap is passed over.
    """
    spread = float(scores[0] - scores[-1]) if len(scores) else 0.0
    value = (scores - scores[-1]) / spread if spread > 0 else np.ones(len(scores))
    value = (1 - diversity) * value.astype(np.float64)
    unit = directions_of(pool) if diversity and directions_of is not None else None
    nearest_chosen = np.full(len(pool), -np.inf)
    free = np.ones(len(pool), bool)
    counted = [(matrix[pool], most, np.zeros(matrix.shape[1])) for matrix, most in capped]
    chosen: list[int] = []
    while len(chosen) < k and free.any():
        now = value if unit is None or not chosen else value - diversity * nearest_chosen
        best = int(np.argmax(np.where(free, now, -np.inf)))
        chosen.append(best)
        free[best] = False
        if unit is not None:
            nearest_chosen = np.maximum(nearest_chosen, unit @ unit[best])
        for values, most, counts in counted:
            own = values.indices[values.indptr[best] : values.indptr[best + 1]]
            counts[own] += 1
            full = (counts >= most).astype(np.float32)
            free &= values @ full == 0
    return np.array(chosen, np.int64)
