"""What identifies the data of a fit, whatever the workers it is divided between.

Every rating, id and feature is hashed with its place among those of all workers, and the hashes are
added up: the order of summation, and hence the number of workers, does not matter.
"""

from __future__ import annotations

import hashlib

import numpy as np

from simrec.model.prepare import Prepared, PreparedSide

# Ratings that are hashed at once: bounds memory.
_PIECE = 1 << 21


def fingerprint(data: Prepared) -> str:
    """Hash all ratings, ids and features."""
    ratings = data.ratings
    first = data.workers.places(ratings.n_users).start
    columns = [ratings.item_rows, ratings.values]
    columns += [] if ratings.weights is None else [ratings.weights]
    total = np.zeros(2, np.uint64)
    for start in range(0, len(ratings), _PIECE):
        at = slice(start, start + _PIECE)
        total += _sum(ratings.user_rows[at] + np.int64(first), *(one[at] for one in columns))
    sums = [data.workers.sum(total)]
    for side in data.sides:
        sums.append(side.workers.sum(_of_side(side)))
    return hashlib.sha256(np.concatenate(sums).tobytes()).hexdigest()


def _of_side(side: PreparedSide) -> np.ndarray:
    tower, X = side.tower, side.tower.features.tocsr()
    first = side.workers.places(len(tower.ids)).start
    places = np.arange(first, first + len(tower.ids))
    rated = np.isin(np.arange(len(tower.ids)), side.rated_rows)
    ids = tower.ids.ids.to_numpy(zero_copy_only=False)
    features = _sum(np.repeat(places, np.diff(X.indptr)), X.indices, X.data)
    return np.concatenate([_sum(places, rated, ids), features])


def _sum(*columns: np.ndarray) -> np.ndarray:
    """Hash the rows of some columns, and add the hashes up; with their number."""
    # Widths of numbers may differ between workers.
    wide = {"f": np.float64, "O": object}
    import pandas as pd  # not at the top: a job that scores does without

    frame = pd.DataFrame(
        {i: one.astype(wide.get(one.dtype.kind, np.int64)) for i, one in enumerate(columns)}
    )
    hashes = pd.util.hash_pandas_object(frame, index=False, categorize=False).to_numpy(np.uint64)
    return np.array([hashes.sum(dtype=np.uint64), len(hashes)], np.uint64)
