"""Known entities: posteriors around prior means that features and history give.

The fit sweeps over both sides in turn. For each side it collects the statistics of the ratings of
each entity given the other side, takes a step of the encoder of the prior means, and computes the
posterior around them. The precisions of prior and noise and the penalty of each column of features
are learned on the way.

Without refinement entities have no history, and the prior means of users are zero in the end: users
become the last layer of an item SimEc.
"""

from collections.abc import Callable

import numpy as np

from simrec.data.sides import SIDES, Side, Sides
from simrec.model.checkpoint import Checkpoint, SweepCheckpoint
from simrec.model.params import Settings
from simrec.model.posterior.encoder import EncoderInputs, learned_penalty, solve
from simrec.model.posterior.packed import pack
from simrec.model.posterior.posterior import (
    KnownEntities,
    Marginal,
    Posterior,
    Precisions,
    fit_posterior,
    posterior_covariance,
    prior_precision,
    statistics,
)
from simrec.model.posterior.problem import Problem

# Steps of conjugate gradients in each sweep: the weights go on from the sweep before.
_STEPS = 4

Log = Callable[[dict[str, float]], None]


def posteriors(
    problem: Problem,
    settings: Settings,
    rng: np.random.Generator,
    log: Log,
    checkpoint: Checkpoint | None = None,
) -> Sides[KnownEntities]:
    """Fit the known entities of both sides, in half sweeps over one side or the other."""
    D = settings.rating_dim + 1
    inputs = Sides.of(lambda side: problem.inputs(side, history=settings.refine))
    known = Sides.of(lambda side: _empty(problem.observed.rows[side].n_rows, D, inputs[side]))
    kept = SweepCheckpoint(checkpoint, problem, known, rng)
    done = kept.resume(inputs)
    if not done:
        for side, one in known.named():
            one.posterior = _start(problem, side, D, rng)
    for loss in kept.losses:
        log({"loss": loss})
    for half in range(done, 2 * settings.epochs):
        epoch, second = divmod(half, 2)
        side = SIDES[second]
        one, partners = known[side], known.other(side)
        one.posterior = Posterior(one.posterior.mean)  # room for the covariances that come now
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
            kept.losses.append(float(problem.observed.unit / np.sqrt(one.precisions.t)))
            log({"loss": kept.losses[-1]})
        else:
            kept.write(half + 1)
    if not settings.refine:
        users, workers = known.users, problem.observed.workers
        users.prior_means = np.zeros_like(users.prior_means)
        users.precisions.L = prior_precision(users.posterior, users.prior_means, workers)
    return known


def _empty(n_rows: int, D: int, inputs: EncoderInputs) -> KnownEntities:
    return KnownEntities(
        Posterior(np.zeros((n_rows, D), np.float32)),
        Precisions(np.eye(D) * 4.0, 1.5),  # noise and preference share the ratings' spread equally
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


def _encode(one: KnownEntities, inputs: EncoderInputs, stats: Marginal) -> None:
    """Take a step of the encoder of one side's prior means."""
    penalty = one.penalties[inputs.groups][:, None]
    one.weights, diagonal = solve(inputs, stats, penalty, one.weights, _STEPS)
    one.penalties = learned_penalty(one.penalties, one.weights, diagonal, inputs)
    one.prior_means = inputs.forward(one.weights)
