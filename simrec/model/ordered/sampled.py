"""Two SimEcs that were trained on a sample of the users, for all users of all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.model.ordered.later_ratings import solve_again
from simrec.model.ordered.two_simecs import features_or_constant
from simrec.model.prepare import Prepared
from simrec.model.rating.posterior import Precisions
from simrec.model.sample import Sample
from simrec.scoring.output import Output

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


def by_users(ratings: Ratings) -> sparse.csr_matrix:
    """Return users x items; what is stored was observed."""
    pairs = (ratings.values, (ratings.user_rows, ratings.item_rows))
    shape = (ratings.n_users, ratings.n_items)
    return sparse.csr_matrix(pairs, shape=shape, dtype=np.float32)


def users_of(
    data: Prepared,
    sample: Sample,
    vectors: Sides[np.ndarray],
    simec: SimEc,
    precisions: Precisions,
    output: Output,
) -> np.ndarray:
    """Return the vectors of this worker's users: those of the sample, and all others solved for."""
    ratings = data.ratings
    place = sample.ratings.users.rows(ratings.users.ids)
    if (place >= 0).all():
        return vectors.users[place]
    rest = np.flatnonzero(place < 0)
    found = vectors.users[place]
    said = simec.transform(features_or_constant(data.sides.users.X[rest][:, :-1]))
    none = sparse.csr_matrix((len(rest), ratings.n_items), dtype=np.float32)
    given = by_users(ratings)[rest]
    found[rest] = solve_again(said, none, given, vectors.items, precisions, output)
    return found
