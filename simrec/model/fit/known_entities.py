"""Known entities: posteriors around a prior mean that features and history give.

Sweeps over both sides in turn: what the ratings say of each entity given the other side, the step
of an encoder towards it, and the posterior around what the encoder says. The precisions of prior
and noise and the penalty of each column of features are learned on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.model.fit.linear_encoder import Inputs, learned_penalty, marginal, solve
from simrec.model.fit.observed import Observed, Side
from simrec.model.fit.posterior import (
    Belief,
    Scales,
    Statistics,
    posterior_covariance,
    statistics,
    update,
)
from simrec.model.run.checkpoint import Checkpoint

ITEMS, USERS = 0, 1
_NAMES = ("items", "users")
# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4
# Entities whose start is drawn at once.
_PIECE = 1 << 20

Report = Callable[[dict[str, float]], None]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is learned from: the ratings, and features of both sides, items first.

    Attributes
    ----------
    observed : Observed
        The ratings.
    features : (csr_matrix, csr_matrix)
        Feature rows of this worker's entities, float32, a constant column included.
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

    @property
    def mine(self) -> tuple[slice, slice]:
        """Which of all items and users are on this worker."""
        return slice(0, self.observed.items.n_rows), self.observed.mine

    @property
    def n_rows(self) -> tuple[int, int]:
        """How many items and users there are, on all workers."""
        return self.observed.items.n_rows, self.observed.n_users

    def folds(self, k: int, n: int, rng: np.random.Generator) -> np.ndarray:
        """Deal the entities of a side into n parts at random; give the parts of this worker's."""
        return rng.permutation(np.arange(self.n_rows[k]) % n)[self.mine[k]]


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
    checkpoint: Checkpoint | None = None,
) -> Known:
    """Fit the known entities of both sides, in half sweeps over one side or the other."""
    sides = problem.sides
    D = embedding_dim + 1
    inputs = [
        Inputs(problem.features[k], problem.groups[k], sides[k], sides[1 - k], sides[k].rows)
        for k in (ITEMS, USERS)
    ]
    known = Known(
        [Belief(np.zeros((side.n_rows, D), np.float32)) for side in sides],
        [Scales.start(D), Scales.start(D)],
        [np.zeros((side.n_rows, D), np.float32) for side in sides],
        [np.zeros((len(i.groups), D), np.float32) for i in inputs],
        [np.full(int(i.groups.max()) + 1, 100.0) for i in inputs],
    )
    losses: list[float] = []
    done = _resume(known, problem, inputs, rng, losses, checkpoint)
    if not done:
        known.beliefs = [_start(problem.n_rows[k], D, rng, problem.mine[k]) for k in (ITEMS, USERS)]
    for loss in losses:
        report({"loss": loss})
    for half in range(done, 2 * epochs):
        epoch, k = divmod(half, 2)
        stats = statistics(sides[k], known.beliefs[1 - k])
        covariance = posterior_covariance(stats, known.scales[k])
        # The first sweep finds embeddings; only then is there something to encode.
        if epoch:
            _encode(known, k, inputs[k], marginal(stats, known.scales[k], covariance))
        known.beliefs[k], known.scales[k] = update(
            stats, known.priors[k], known.scales[k], covariance
        )
        known.scales[1 - k].t = known.scales[k].t
        if k == USERS:
            losses.append(float(problem.observed.scale / np.sqrt(known.scales[USERS].t)))
            report({"loss": losses[-1]})
        elif checkpoint is not None and checkpoint.due():
            _keep(known, problem, half + 1, rng, losses, checkpoint)
    return known


def _start(n: int, D: int, rng: np.random.Generator, mine: slice) -> Belief:
    """Draw the start of all, so that it does not depend on the number of workers; keep one's own.

    In pieces, which draw the same numbers: all users of all workers may be too many at once.
    """
    mean = np.empty((mine.stop - mine.start, D), np.float32)
    for a in range(0, n, _PIECE):
        drawn = rng.normal(0, 0.1, (min(_PIECE, n - a), D))
        lo, hi = max(a, mine.start), min(a + len(drawn), mine.stop)
        if lo < hi:
            mean[lo - mine.start : hi - mine.start] = drawn[lo - a : hi - a]
    mean[:, -1] = 0
    return Belief(mean, np.broadcast_to(np.eye(D, dtype=np.float32) * 0.01, (len(mean), D, D)))


def _keep(
    known: Known,
    problem: Problem,
    done: int,
    rng: np.random.Generator,
    losses: list[float],
    checkpoint: Checkpoint,
) -> None:
    """Write a checkpoint after a half sweep over the items.

    The half sweep over the users that comes next starts from what is believed of the items: of
    the users, whose covariances are most of the memory, nothing needs to be kept.
    """
    started = time.perf_counter()
    items = known.beliefs[ITEMS]
    assert items.covariance is not None
    cut, weights = problem.features[ITEMS].shape[1], known.weights[ITEMS]
    arrays = {
        "mean": items.mean,
        "covariance": items.covariance,
        "weights_items": weights[:cut],
        "weights_items_history": problem.observed.gather(weights[cut:]),
        "weights_users": known.weights[USERS],
    }
    for k, name in enumerate(_NAMES):
        arrays |= {f"L_{name}": known.scales[k].L, f"penalties_{name}": known.penalties[k]}
    state = {
        "done": done,
        "losses": losses,
        "t": [scales.t for scales in known.scales],
        "rng": rng.bit_generator.state,
    }
    checkpoint.write(arrays, state, started)


def _resume(
    known: Known,
    problem: Problem,
    inputs: list[Inputs],
    rng: np.random.Generator,
    losses: list[float],
    checkpoint: Checkpoint | None,
) -> int:
    """Take over what `_keep` has written, if anything; give the number of half sweeps done."""
    saved = None if checkpoint is None else checkpoint.read()
    if saved is None:
        return 0
    arrays, state = saved
    history = arrays["weights_items_history"][problem.mine[USERS]]
    known.beliefs[ITEMS] = Belief(arrays["mean"], arrays["covariance"])
    known.weights = [np.vstack([arrays["weights_items"], history]), arrays["weights_users"]]
    known.penalties = [arrays[f"penalties_{name}"] for name in _NAMES]
    known.scales = [Scales(arrays[f"L_{n}"], t) for n, t in zip(_NAMES, state["t"], strict=True)]
    known.priors = [inputs[k].forward(known.weights[k]) for k in (ITEMS, USERS)]
    rng.bit_generator.state = state["rng"]
    losses += state["losses"]
    return int(state["done"])


def _encode(known: Known, k: int, inputs: Inputs, stats: Statistics) -> None:
    """Take the weights of one side's encoder a step on, and its prior means with them."""
    penalty = known.penalties[k][inputs.groups][:, None]
    known.weights[k], diagonal = solve(inputs, stats, penalty, known.weights[k], _STEPS)
    known.penalties[k] = learned_penalty(known.penalties[k], known.weights[k], diagonal, inputs)
    known.priors[k] = inputs.forward(known.weights[k])
