"""Known entities: posteriors around a prior mean that features and history give.

Sweeps over both sides in turn: what the ratings say of each entity given the other side, the step
of an encoder towards it, and the posterior around what the encoder says. The precisions of prior
and noise and the penalty of each column of features are learned on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.model.linear import Inputs, learned_penalty, marginal, solve
from simrec.model.observed import Observed, Side
from simrec.model.posterior import (
    Belief,
    Scales,
    Statistics,
    posterior_covariance,
    statistics,
    update,
)

ITEMS, USERS = 0, 1
# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4

Report = Callable[[dict[str, float]], None]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is learned from: the ratings, and features of both sides, items first.

    Attributes
    ----------
    observed : Observed
        The ratings.
    features : (csr_matrix, csr_matrix)
        Feature rows, float32, a constant column included.
    groups : (numpy.ndarray, numpy.ndarray)
        For each feature, the number of the column that it comes from.
    """

    observed: Observed
    features: tuple[sparse.csr_matrix, sparse.csr_matrix]
    groups: tuple[np.ndarray, np.ndarray]

    @property
    def sides(self) -> tuple[Side, Side]:
        """The two directions of R."""
        return self.observed.items, self.observed.users


@dataclass(eq=False)
class Known:
    """The block of known entities, items first: beliefs, precisions, prior means and encoders."""

    beliefs: list[Belief]
    scales: list[Scales]
    priors: list[np.ndarray]
    weights: list[np.ndarray]
    penalties: list[np.ndarray]


def fit_known(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    rng: np.random.Generator,
    report: Report,
) -> Known:
    """Fit the known entities of both sides."""
    sides = problem.sides
    D = embedding_dim + 1
    inputs = [
        Inputs(problem.features[k], problem.groups[k], sides[k], sides[1 - k])
        for k in (ITEMS, USERS)
    ]
    known = Known(
        [_start(side.n_rows, D, rng) for side in sides],
        [Scales.start(D), Scales.start(D)],
        [np.zeros((side.n_rows, D), np.float32) for side in sides],
        [np.zeros((len(i.groups), D), np.float32) for i in inputs],
        [np.full(int(i.groups.max()) + 1, 100.0) for i in inputs],
    )
    for epoch in range(epochs):
        for k in (ITEMS, USERS):
            stats = statistics(sides[k], known.beliefs[1 - k])
            covariance = posterior_covariance(stats, known.scales[k])
            # The first sweep finds embeddings; only then is there something to encode.
            if epoch:
                _encode(known, k, inputs[k], marginal(stats, known.scales[k], covariance))
            known.beliefs[k], known.scales[k] = update(
                stats, known.priors[k], known.scales[k], covariance
            )
            known.scales[1 - k].t = known.scales[k].t
        report({"loss": problem.observed.scale / np.sqrt(known.scales[USERS].t)})
    return known


def _start(n: int, D: int, rng: np.random.Generator) -> Belief:
    mean = rng.normal(0, 0.1, (n, D)).astype(np.float32)
    mean[:, -1] = 0
    return Belief(mean, np.broadcast_to(np.eye(D, dtype=np.float32) * 0.01, (n, D, D)))


def _encode(known: Known, k: int, inputs: Inputs, stats: Statistics) -> None:
    """Take the weights of one side's encoder a step on, and its prior means with them."""
    penalty = known.penalties[k][inputs.groups][:, None]
    known.weights[k], diagonal = solve(inputs, stats, penalty, known.weights[k], _STEPS)
    known.penalties[k] = learned_penalty(
        known.penalties[k], known.weights[k], diagonal, inputs.groups
    )
    known.priors[k] = inputs.forward(known.weights[k])
