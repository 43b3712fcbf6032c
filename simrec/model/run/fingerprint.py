"""What identifies the data of a fit, whatever the workers it is divided between.

Every rating, id and feature is mixed into 64 bits with its place among those of all workers, and
these are added up: the order of summation, and hence the number of workers, does not matter.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.mapped import release
from simrec.model.prepare import Prepared, PreparedSide
from simrec.model.run.arrange import pieces

_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def fingerprint(data: Prepared) -> str:
    """Hash all ratings, ids and features."""
    ratings = data.ratings
    first = data.workers.places(ratings.n_users).start
    columns = [ratings.item_rows, ratings.values]
    columns += [] if ratings.weights is None else [ratings.weights]
    total = np.zeros(2, np.uint64)
    for at in pieces(len(ratings)):
        total += _sum(ratings.user_rows[at] + np.int64(first), *(one[at] for one in columns))
        release(ratings.user_rows[at], *(one[at] for one in columns))
    sums = [data.workers.sum(total)]
    for side in data.sides:
        sums.append(side.workers.sum(_of_side(side)))
    return hashlib.sha256(np.concatenate(sums).tobytes()).hexdigest()


def _of_side(side: PreparedSide) -> np.ndarray:
    first, X = side.workers.places(len(side.tower.ids)).start, side.tower.features.tocsr()
    rows = np.repeat(np.arange(first, first + X.shape[0]), np.diff(X.indptr))
    rated = np.zeros(len(side.tower.ids), np.int64)
    rated[side.rated_rows] = 1
    return np.concatenate(
        [
            _sum(np.arange(first, first + len(rated)), rated),
            _sum(rows, X.indices, X.data),
            _of_ids(side.tower.ids, first),
        ]
    )


def _of_ids(ids: IdMap, first: int) -> np.ndarray:
    places = np.arange(first, first + len(ids))
    if pa.types.is_integer(ids.type):
        return _sum(places, ids.ids.to_numpy(zero_copy_only=False))
    text = ids.ids.cast(pa.large_string())
    ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    letters = np.frombuffer(text.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    owner = np.repeat(places, np.diff(ends))
    within = np.arange(len(letters)) - np.repeat(ends[:-1] - ends[0], np.diff(ends))
    return _sum(owner, within, letters)


def _sum(*columns: np.ndarray) -> np.ndarray:
    """Mix the columns of each row, and add the rows up; with their number."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = (
            column.astype(np.float64).view(np.uint64)
            if column.dtype.kind == "f"
            else column.astype(np.uint64)
        )
        mixed = (mixed ^ bits) * np.uint64(_ODD[0])
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_ODD[1])
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_ODD[2])
    return np.array([mixed.sum(dtype=np.uint64), len(mixed)], np.uint64)
