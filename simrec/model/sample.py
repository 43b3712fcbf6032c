"""A bounded sample of the users, the same on all workers: what choices are made on."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.model.prepare import Prepared
from simrec.model.run.workers import Workers, own_places

# Ratings of the users that networks are trained on, about; all where there are no more.
MOST_RATINGS = 5_000_000


@dataclass(frozen=True, eq=False)
class Sample:
    """Some users with all of their ratings, and all items."""

    ratings: Ratings  # their ratings; items are numbered as in the data that the sample is of
    X: Sides[sparse.csr_matrix]  # features of all items and of these users, and a constant
    groups: Sides[np.ndarray]  # for each feature, the number of the column that it comes from
    words: Sides[np.ndarray]  # which features are words of texts
    bounds: tuple[float, float]


def sample_users(
    data: Prepared, n_ratings: int, rng: np.random.Generator, n_more: int = 0
) -> Sample:
    """Draw users until they have about as many ratings, and `n_more` users more; at most all."""
    ratings, workers, sides = data.ratings, data.workers, data.sides
    mine, n_users = workers.places(ratings.n_users), int(workers.total(ratings.n_users))
    rows = drawn_users(mine, n_users, workers.total(len(ratings)), n_ratings, rng, n_more)
    place = np.full(ratings.n_users, -1, np.int64)
    place[rows] = np.arange(len(rows)) + workers.places(len(rows)).start
    here = np.flatnonzero(place[ratings.user_rows] >= 0)
    X_users = gathered_matrix(sides.users.X[rows], workers)
    ids = pa.concat_tables(workers.gather_tables(pa.table({"id": ratings.users.take(rows)})))

    def gathered(array: np.ndarray) -> np.ndarray:
        return np.concatenate(workers.gather(array[here]))

    user_rows = np.concatenate(workers.gather(place[ratings.user_rows[here]]))
    item_rows = gathered(ratings.item_rows)
    # What is drawn of the pairs does not depend on the order of the input, nor on the workers.
    order = np.lexsort((item_rows, user_rows))
    taken = Ratings(
        IdMap(ids["id"]),
        ratings.items,
        user_rows[order],
        item_rows[order],
        gathered(ratings.values)[order],
        has_ratings=ratings.has_ratings,
    )
    groups = sides.map(lambda side: side.groups)
    words = sides.map(lambda side: side.words)
    return Sample(taken, Sides(sides.items.X, X_users), groups, words, data.bounds)


def drawn_users(
    mine: slice,
    n_users: int,
    n_ratings: float,
    most: int,
    rng: np.random.Generator,
    n_more: int = 0,
) -> np.ndarray:
    """Draw users with about `most` of all ratings; return which of this worker's are drawn.

    `mine` are this worker's users among all; `n_more` users are drawn beyond that.
    """
    size = max(int(np.ceil(most * n_users / n_ratings)), 10) + n_more
    if size >= n_users:
        return np.arange(mine.stop - mine.start)
    drawn = np.sort(rng.choice(n_users, size, replace=False, shuffle=False))
    return own_places(drawn, mine)


def gathered_matrix(matrix: sparse.csr_matrix, workers: Workers) -> sparse.csr_matrix:
    """Put the rows of all workers below each other, in their order."""
    if workers.size == 1:
        return matrix
    data, indices, lengths = (
        np.concatenate(workers.gather(one))
        for one in (matrix.data, matrix.indices, np.diff(matrix.indptr))
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix((data, indices, starts), shape=(len(lengths), matrix.shape[1]))
