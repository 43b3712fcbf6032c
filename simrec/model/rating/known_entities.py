"""Known entities: posteriors around prior means that features and history give.

The fit sweeps over both sides in turn. For each side it collects what the ratings say of each
entity given the other side, takes a step of the encoder of the prior means towards it, and computes
the posterior around what the encoder says. The precisions of prior and noise and the penalty of
each column of features are learned on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simrec.data.sides import SIDES, Side, Sides
from simrec.model.rating.linear_encoder import EncoderInputs, learned_penalty, solve
from simrec.model.rating.observed import Observed
from simrec.model.rating.packed import pack
from simrec.model.rating.posterior import (
    Marginal,
    Posterior,
    Precisions,
    fit_posterior,
    posterior_covariance,
    statistics,
)
from simrec.model.run.checkpoint import Checkpoint

# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4
# Entities for whom something is drawn at once.
_PIECE = 1 << 16

# The stage of a fit whose state is kept here.
_STAGE = "sweeps"

Report = Callable[[dict[str, float]], None]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is learned from: the ratings, and the features of both sides.

    Attributes
    ----------
    observed : Observed
        The ratings.
    features : Sides of csr_matrix
        Feature rows of this worker's entities, float32, a constant column included.
    groups : Sides of numpy.ndarray
        For each feature, the number of the column that it comes from.
    """

    observed: Observed
    features: Sides[sparse.csr_matrix]
    groups: Sides[np.ndarray]

    @property
    def mine(self) -> Sides[slice]:
        """Which of all items and users are on this worker."""
        return Sides(slice(0, self.n_rows.items), self.observed.my_users)

    @property
    def n_rows(self) -> Sides[int]:
        """Number of items and users on all workers."""
        return Sides(self.observed.rows.items.n_rows, self.observed.n_users)

    def folds(self, side: Side, n: int, rng: np.random.Generator) -> np.ndarray:
        """Deal the entities of a side into n folds at random; return those of this worker's."""
        return self.drawn(side, rng, lambda part, size: part.permutation(np.arange(size) % n))

    def drawn(
        self,
        side: Side,
        rng: np.random.Generator,
        draw: Callable[[np.random.Generator, int], np.ndarray],
    ) -> np.ndarray:
        """Draw something for each entity of this worker's, by its place among those of all.

        In pieces that have generators of their own: the number of workers changes nothing, and no
        worker draws for all.
        """
        seed, mine, n = int(rng.integers(2**63)), self.mine[side], self.n_rows[side]
        first, last = mine.start // _PIECE, max(-(-mine.stop // _PIECE), 1)
        pieces = [
            draw(np.random.default_rng([seed, i]), min(_PIECE, n - i * _PIECE))
            for i in range(first, last)
        ]
        start = first * _PIECE
        return np.concatenate(pieces)[mine.start - start : mine.stop - start]

    def inputs(self, side: Side, history: bool) -> EncoderInputs:
        """Return what an encoder of a side reads.

        It reads features. With history, which only known entities have, it also reads the number of
        an entity's ratings, as a column of its own, and who its partners are.
        """
        rows, X, groups = self.observed.rows, self.features[side], self.groups[side]
        if not history:
            return EncoderInputs(X, groups, row_workers=rows[side].row_workers)
        X = sparse.hstack([X, sparse.csr_matrix(self._activity(side))], format="csr")
        groups = np.append(groups, groups.max(initial=-1) + 1)
        return EncoderInputs(X, groups, rows[side], rows.other(side), rows[side].row_workers)

    def _activity(self, side: Side) -> np.ndarray:
        """Return the logarithm of each entity's number of ratings, standardised, as a column."""
        rows, n = self.observed.rows[side], self.n_rows[side]
        logs = np.log(np.maximum(rows.counts, 1))
        off = logs - rows.row_workers.total(float(logs.sum())) / n
        spread = np.sqrt(rows.row_workers.total(float(off @ off)) / n)
        return (off / (spread or 1.0)).astype(np.float32)[:, None]


@dataclass(eq=False)
class KnownEntities:
    """The known entities of one side.

    Attributes
    ----------
    posterior : Posterior
        Of their embeddings and biases.
    precisions : Precisions
        Of the prior and the noise.
    prior_means : numpy.ndarray
        What features and history say of each.
    weights : numpy.ndarray
        The encoder of the prior means: a row for each feature, one for the number of ratings, then
        one for each partner.
    penalties : numpy.ndarray
        Penalty of each column of features; the last two are those of the number of ratings and of
        the partners.
    """

    posterior: Posterior
    precisions: Precisions
    prior_means: np.ndarray
    weights: np.ndarray
    penalties: np.ndarray


def fit_known(
    problem: Problem,
    embedding_dim: int,
    epochs: int,
    rng: np.random.Generator,
    report: Report,
    checkpoint: Checkpoint | None = None,
) -> Sides[KnownEntities]:
    """Fit the known entities of both sides, in half sweeps over one side or the other."""
    D = embedding_dim + 1
    inputs = Sides.of(lambda side: problem.inputs(side, history=True))
    known = Sides.of(lambda side: _empty(problem.observed.rows[side].n_rows, D, inputs[side]))
    losses: list[float] = []
    done = _resume(known, problem, inputs, rng, losses, checkpoint)
    if not done:
        for side, one in known.named():
            one.posterior = _start(problem, side, D, rng)
    for loss in losses:
        report({"loss": loss})
    for half in range(done, 2 * epochs):
        epoch, second = divmod(half, 2)
        side = SIDES[second]
        one, partners = known[side], known.other(side)
        one.posterior = one.posterior.certain()  # room for the covariances that come now
        stats = statistics(problem.observed.rows[side], partners.posterior)
        covariance = posterior_covariance(stats, one.precisions)
        # The first sweep finds embeddings; only then is there something to encode.
        if epoch:
            _encode(one, inputs[side], Marginal(stats, one.precisions, covariance))
        one.posterior, one.precisions = fit_posterior(
            stats, one.prior_means, one.precisions, covariance
        )
        del stats, covariance
        partners.precisions.t = one.precisions.t
        if side == "users":
            losses.append(float(problem.observed.unit / np.sqrt(one.precisions.t)))
            report({"loss": losses[-1]})
        elif checkpoint is not None and checkpoint.due():
            _keep(known, problem, half + 1, rng, losses, checkpoint)
    return known


def _empty(n_rows: int, D: int, inputs: EncoderInputs) -> KnownEntities:
    return KnownEntities(
        Posterior(np.zeros((n_rows, D), np.float32)),
        Precisions.start(D),
        np.zeros((n_rows, D), np.float32),
        np.zeros((len(inputs.groups), D), np.float32),
        np.full(int(inputs.groups.max()) + 1, 100.0),
    )


def _start(problem: Problem, side: Side, D: int, rng: np.random.Generator) -> Posterior:
    mean = problem.drawn(
        side, rng, lambda part, size: part.normal(0, 0.1, (size, D)).astype(np.float32)
    )
    mean[:, -1] = 0
    covariance = pack(np.eye(D, dtype=np.float32)[None] * 0.01)
    return Posterior(mean, np.broadcast_to(covariance, (len(mean), covariance.shape[1])))


def _keep(
    known: Sides[KnownEntities],
    problem: Problem,
    done: int,
    rng: np.random.Generator,
    losses: list[float],
    checkpoint: Checkpoint,
) -> None:
    """Write a checkpoint after a half sweep over the items.

    The half sweep over the users that comes next starts from the posterior of the items: of the
    users, whose covariances are most of the memory, nothing needs to be kept.
    """
    started = time.perf_counter()
    items = known.items.posterior
    assert items.covariance is not None
    weights = known.items.weights
    cut = len(weights) - problem.observed.rows.users.n_rows
    arrays = {
        "mean": items.mean,
        "covariance": items.covariance,
        "weights_items": weights[:cut],
        "weights_users": known.users.weights,
    }
    for side, one in known.named():
        arrays |= {f"L_{side}": one.precisions.L, f"penalties_{side}": one.penalties}
    state = {
        "done": done,
        "losses": losses,
        "t": [one.precisions.t for one in known],
        "rng": rng.bit_generator.state,
    }
    rows = {"weights_items_history": weights[cut:]}
    checkpoint.write(_STAGE, arrays, state, started, rows)


def _resume(
    known: Sides[KnownEntities],
    problem: Problem,
    inputs: Sides[EncoderInputs],
    rng: np.random.Generator,
    losses: list[float],
    checkpoint: Checkpoint | None,
) -> int:
    """Take over what `_keep` has written, if anything; return the number of half sweeps done."""
    saved = None if checkpoint is None else checkpoint.read(_STAGE)
    if saved is None:
        return 0
    state, history = saved.documents["state"], saved.arrays["weights_items_history"]
    # Copies: the files are mapped, and are gone with the next checkpoint.
    arrays = {name: np.array(a) for name, a in saved.arrays.items() if a is not history}
    known.items.posterior = Posterior(arrays["mean"], arrays["covariance"])
    mine = np.asarray(history[problem.mine.users])
    known.items.weights = np.vstack([arrays["weights_items"], mine])
    known.users.weights = arrays["weights_users"]
    for (side, one), t in zip(known.named(), state["t"], strict=True):
        one.penalties, one.precisions = (
            arrays[f"penalties_{side}"],
            Precisions(arrays[f"L_{side}"], t),
        )
        one.prior_means = inputs[side].forward(one.weights)
    rng.bit_generator.state = state["rng"]
    losses += state["losses"]
    return int(state["done"])


def _encode(one: KnownEntities, inputs: EncoderInputs, stats: Marginal) -> None:
    """Take a step of the encoder of one side's prior means."""
    penalty = one.penalties[inputs.groups][:, None]
    one.weights, diagonal = solve(inputs, stats, penalty, one.weights, _STEPS)
    one.penalties = learned_penalty(one.penalties, one.weights, diagonal, inputs)
    one.prior_means = inputs.forward(one.weights)
