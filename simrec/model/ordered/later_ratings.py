"""Ratings that came after fitting: vectors solved again against frozen partners.

A vector y has the prior N(m, P^-1), where m is the vector so far and P the precision of the prior
around features and of the ratings behind it. Further ratings r_j of partners with vectors v_j add
``t (r_j - g(y . v_j))^2``. The sum is minimised by Gauss-Newton steps, halved until it falls.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from simrec.model.rating.posterior import Precisions
from simrec.scoring.output import Output

_STEPS, _HALVINGS = 10, 6


def solve_again(
    vectors: np.ndarray,
    before: sparse.csr_matrix,
    later: sparse.csr_matrix,
    partners: np.ndarray,
    precisions: Precisions,
    output: Output,
) -> np.ndarray:
    """Return the vectors of entities after further ratings.

    Parameters
    ----------
    vectors : numpy.ndarray
        Their vectors so far.
    before : csr_matrix
        Their earlier pairs: a row for each of them, a column for each partner.
    later : csr_matrix
        Their further ratings, likewise.
    partners : numpy.ndarray
        Vectors of the partners.
    precisions : Precisions
        Of the prior around what features say, and of the noise, on the scale of scalar products.
    output : Output
        g.
    """
    out = np.array(vectors, np.float32)
    t = precisions.t / output.slope() ** 2  # of the noise on the scale of the ratings
    for row, start in enumerate(np.asarray(vectors, np.float64)):
        seen = partners[before.indices[before.indptr[row] : before.indptr[row + 1]]]
        P = precisions.L + precisions.t * (seen.T.astype(np.float64) @ seen)
        place = slice(later.indptr[row], later.indptr[row + 1])
        V = partners[later.indices[place]].astype(np.float64)
        out[row] = _minimised(start, P, V, later.data[place].astype(np.float64), t, output)
    return out


def _minimised(
    start: np.ndarray, P: np.ndarray, V: np.ndarray, r: np.ndarray, t: float, output: Output
) -> np.ndarray:
    def loss(y: np.ndarray) -> float:
        off = y - start
        return float(off @ P @ off + t * np.sum((r - output(V @ y)) ** 2))

    y, reached = start, loss(start)
    for _ in range(_STEPS):
        J = V * output.slopes(V @ y)[:, None]
        downhill = t * (J.T @ (r - output(V @ y))) - P @ (y - start)
        step = np.linalg.solve(P + t * (J.T @ J), downhill)
        for _ in range(_HALVINGS):
            found = loss(y + step)
            if found < reached:
                break
            step = step / 2
        else:
            return y
        done = reached - found < 1e-6 * reached
        y, reached = y + step, found
        if done:
            break
    return y
