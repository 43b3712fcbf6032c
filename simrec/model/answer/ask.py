"""What to ask a newcomer: the items whose ratings would tell most of all others."""

from __future__ import annotations

import numpy as np

from simrec.model.head import Found
from simrec.model.posterior.evidence import Evidence
from simrec.model.posterior.packed import unpack
from simrec.model.posterior.posterior import Posterior
from simrec.storage.rows import Array


def questions(
    evidence: Evidence,
    user: Found,
    user_counts: Array,
    items: np.ndarray,
    chances: np.ndarray,
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose items one by one; return their places, and the share of variance each takes away.

    A rating of item j with regressors phi takes ``C phi phi' C / (noise + phi' C phi)`` from the
    posterior covariance C of the user, and the trace of that with the second moments of all items
    from the variance of the user's predictions. It counts by the chance that the user can answer.
    """
    users, row = evidence.sides.users, int(user.rows[0])
    if row < user.n_known:
        packed = users.warm.unpacked(np.array([row])).covariance
        assert packed is not None
        C = unpack(packed)[0].astype(np.float64)
    else:
        C = users.new_covariance()
        C = C + users.spread(user_counts) if user.average[0] else C
    of_items = evidence.sides.items
    phi = Posterior(np.asarray(of_items.warm.mean[items])).regressors().astype(np.float64)
    noise = 1 / users.warm_precisions.t + of_items.variance(items)
    before = float(np.sum(C * users.moments))
    chosen: list[int] = []
    shares: list[float] = []
    free = np.ones(len(items), bool)
    for _ in range(min(k, len(items))):
        CP = phi @ C
        gains = np.einsum("ij,jk,ik->i", CP, users.moments, CP)
        gains /= noise + np.einsum("ij,ij->i", CP, phi)
        best = int(np.argmax(np.where(free, gains * chances, -np.inf)))
        chosen.append(best)
        shares.append(float(gains[best]) / before)
        free[best] = False
        C = C - np.outer(CP[best], CP[best]) / (noise[best] + CP[best] @ phi[best])
    return np.array(chosen, np.int64), np.array(shares)
