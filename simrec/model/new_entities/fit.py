"""New entities of one side: an encoder of their features, and partners refitted for them.

The embedding that features give a new entity is less certain than that of a known one. Partners
taken from the fit of known entities would trust it too much. So partners are fitted again, against
out-of-fold embeddings: those that the encoder gives each training entity when it has not seen its
ratings.

Encoders with hidden layers are SimEcs that are trained. Their last layer is frozen to [w, 1] of
each partner at its mean; the rows are R's rows less the partners' biases, and rows held out whole
say when to stop. Of very many users a sample is trained on, the same on every worker.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.errors import InputError
from simrec.model.new_entities.cross_fit import (
    STEP,
    Attempt,
    CrossFit,
    Penalty,
    attempts,
    left_out_error,
    pair_residuals,
    prune,
    search,
)
from simrec.model.params import Settings
from simrec.model.posterior.observed import Entries
from simrec.model.posterior.posterior import (
    KnownEntities,
    Posterior,
    Precisions,
    fit_posterior,
    posterior_covariance,
    statistics,
)
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import Log
from simrec.model.run.workers import Workers
from simrec.model.sample import MOST_RATINGS, drawn_users, gathered_matrix
from simrec.simec.simec import SimEc

# For choices that matter little on most data: more than what the choice of the best gains by noise.
_CLEAR_GAIN = 5e-3


@dataclass(eq=False)
class NewEntities:
    """How new entities of one side are encoded, and their partners of the other side."""

    weights: np.ndarray  # encoder of the new side, p x D
    partners: Posterior  # known entities of the other side, refitted against out-of-fold embeddings
    held_out: np.ndarray  # out-of-fold embeddings of the training entities of the new side
    precisions: Precisions  # as the partners' posterior estimates them
    error: float  # estimated RMSE for new entities, in units of the ratings' spread
    penalty: Penalty | None = None  # of an encoder in closed form
    network: SimEc | None = None  # in place of the weights, if there are hidden layers
    refitted: bool = True  # whether the partners were refitted

    def encode(self, X: sparse.csr_matrix) -> np.ndarray:
        """Return the embeddings of feature rows, a constant column included."""
        return X @ self.weights if self.network is None else self.network.transform(X[:, :-1])


def fit_new(
    problem: Problem,
    known: Sides[KnownEntities],
    side: Side,
    settings: Settings,
    entries: Entries,
    rng: np.random.Generator,
    log: Log,
) -> NewEntities:
    """Fit an encoder of one side's new entities against the frozen last layer of the other side.

    It has trained hidden layers on request; else it is fitted in closed form, and held-out entities
    choose its penalty.
    """
    refit, last_layer = settings.refine or side == "items", known.other(side).posterior
    if has_network(problem, side, settings):
        folds = problem.folds(side, settings.folds, rng)
        seed, sampled = int(rng.integers(2**31)), Sampled.of(problem, rng)
        network, out = cross_fit_network(sampled, side, last_layer, settings, folds, seed)
        new = refit_partners(problem, known, side, entries, out, refit)
        new.network = network
        log({f"val_new_{side}": problem.observed.unit * new.error})
        return new
    inputs = problem.inputs(side, history=False)
    # Without refinement item embeddings are frozen and certain.
    last_layer = last_layer if refit else Posterior(last_layer.mean)
    stats = statistics(problem.observed.rows[side], last_layer).unpacked()
    folds = problem.folds(side, settings.folds, rng)
    encoders = CrossFit(inputs, stats, folds, min(settings.folds, problem.n_rows[side]))

    def report(error: float) -> None:
        log({f"val_new_{side}": problem.observed.unit * error})

    def chosen(best: Attempt) -> NewEntities:
        """Return the encoder of the best attempt, with its partners."""
        held_out = best.encoders.held_out()
        new = refit_partners(problem, known, side, entries, held_out, refit)
        return replace(new, weights=best.encoders.weights, penalty=best.penalty)

    constant, attempt = int(inputs.groups[-1]), attempts(encoders, report)
    columns = problem.observed.workers.first(known[side].penalties[: constant + 1])
    strength = settings.strengths[side]
    best = attempt(Penalty(columns) if strength is None else Penalty(columns, strength))
    if not constant or strength is not None:  # an average does not depend on its penalty
        return chosen(best)
    best = search(attempt, best, Penalty.stronger)
    pruned = prune(attempt, best, constant)
    if pruned is not best:
        best = search(attempt, pruned, Penalty.stronger)
    best = search(attempt, best, Penalty.stronger_bias, _CLEAR_GAIN)
    return chosen(best)


def has_network(problem: Problem, side: Side, settings: Settings) -> bool:
    """Tell whether an encoder has trained hidden layers: a lone constant needs none."""
    own, featureless = settings.encoders[side], problem.features[side].shape[1] == 1
    if own is not None and featureless:
        raise InputError(f"{SINGULAR[side]}_encoder needs a table of {side} to encode.")
    return not featureless and (own is not None or bool(settings.hidden_layers))


def refit_partners(
    problem: Problem,
    known: Sides[KnownEntities],
    side: Side,
    entries: Entries,
    held_out: np.ndarray,
    refit: bool = True,
) -> NewEntities:
    """Refit the partners of new entities against out-of-fold embeddings, unless they are frozen."""
    partners, n_features = known.other(side), problem.features[side].shape[1]
    weights = np.zeros((n_features, held_out.shape[1]), np.float32)
    if not refit:
        found = Sides(partners.posterior.mean, held_out)
        residuals = pair_residuals(found if side == "users" else found.swap(), entries)
        total = entries.workers.total(float(np.sum(residuals.astype(np.float64) ** 2)))
        error = float(np.sqrt(total / entries.drawn))
        frozen, precisions = partners.posterior, partners.precisions
        return NewEntities(weights, frozen, held_out, precisions, error, refitted=False)
    new, prior_means = Posterior(held_out), partners.prior_means
    stats = statistics(problem.observed.rows.other(side), new)
    around = fit_posterior(stats, prior_means, partners.precisions)[1]
    # Once more, with precisions estimated against out-of-fold embeddings.
    refitted, precisions = fit_posterior(stats, prior_means, around)
    error = left_out_error(new, refitted, precisions.t, entries, side)
    return NewEntities(weights, refitted, held_out, precisions, error)


def unrefined(
    problem: Problem, known: Sides[KnownEntities], items: NewEntities
) -> Sides[KnownEntities]:
    """Return known entities without refinement: what the item SimEc says, and its last layer.

    The last layer is fitted against out-of-fold embeddings, so that it serves new items too.
    Without features items are rows of their own, as the sweeps have found them.
    """
    found, X = known, problem.features.items
    if X.shape[1] > 1:
        users = replace(known.users, posterior=items.partners, precisions=items.precisions)
        mean = items.encode(X).astype(np.float32)
        weights = items.weights if items.network is None else known.items.weights
        encoded = replace(known.items, posterior=Posterior(mean), prior_means=mean, weights=weights)
        found = Sides(encoded, users)
    stats = statistics(problem.observed.rows.items, found.users.posterior)
    covariance = posterior_covariance(stats, found.items.precisions)
    posterior = Posterior(found.items.posterior.mean, covariance)
    return Sides(replace(found.items, posterior=posterior), found.users)


@dataclass(eq=False)
class BothNew:
    """The encoder of new users against new items."""

    weights: np.ndarray
    error: float = np.nan  # estimated RMSE where both are new, in units of the ratings' spread
    network: SimEc | None = None  # in place of the weights


def fit_both(
    problem: Problem, new: Sides[NewEntities], settings: Settings, rng: np.random.Generator
) -> BothNew:
    """Fit the encoder of new users with W_l frozen to the embeddings that features give items."""
    items = Posterior(new.items.held_out)
    if has_network(problem, "users", settings):
        none = np.zeros_like(new.users.weights)
        seed, sampled = int(rng.integers(2**31)), Sampled.of(problem, rng)
        return BothNew(none, network=fit_network(sampled, "users", items, settings, seed))
    inputs = problem.inputs("users", history=False)
    stats = statistics(problem.observed.rows.users, items).unpacked()
    folds = problem.folds("users", settings.folds, rng)
    encoders = CrossFit(inputs, stats, folds, min(settings.folds, problem.n_rows.users))
    assert new.users.penalty is not None
    attempt = attempts(encoders, lambda error: None)
    # Items from features tell less of users than known ones.
    best = attempt(new.users.penalty.stronger(STEP))
    if inputs.n_features > 1 and settings.strengths.users is None:
        best = search(attempt, best, Penalty.stronger, _CLEAR_GAIN)
    return BothNew(best.encoders.weights, best.error)


@dataclass(eq=False)
class RatingFit:
    """All that was learned from ratings: known entities, new ones, and both new."""

    known: Sides[KnownEntities]
    new: Sides[NewEntities]
    both: BothNew
    refined: bool = True

    @property
    def dim(self) -> int:
        """Coordinates of an embedding, without bias."""
        return int(self.known.items.posterior.mean.shape[1]) - 1


@dataclass(frozen=True, eq=False)
class Sampled:
    """The users that networks are trained on, on every worker."""

    problem: Problem
    R: sparse.csr_matrix  # these users x items, in the units of `Observed`
    rows: np.ndarray  # which of this worker's users are among them
    workers: Workers

    @classmethod
    def of(cls, problem: Problem, rng: np.random.Generator) -> Self:
        """Draw users; all where they have no more ratings than can be trained on."""
        observed = problem.observed
        rows = drawn_users(
            observed.my_users, observed.n_users, observed.n_entries, MOST_RATINGS, rng
        )
        R = observed.rows.users.matrix()[rows]
        return cls(problem, gathered_matrix(R, observed.workers), rows, observed.workers)

    def of_users(self, array: np.ndarray) -> np.ndarray:
        """Gather an array with a row for each user."""
        return np.concatenate(self.workers.gather(array[self.rows]))


def fit_network(
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    settings: Settings,
    seed: int,
    keep: np.ndarray | None = None,
) -> SimEc:
    """Train a SimEc from features, without the constant, with W_l = [w, 1] of the partners' means.

    `keep` are the entities of the side to train on, all without it.
    """
    X, R, mean = sampled.problem.features[side][:, :-1], sampled.R, partners.mean
    if side == "users":
        X = gathered_matrix(X[sampled.rows], sampled.workers)
        keep = None if keep is None else sampled.of_users(keep)
    else:
        R, mean = sparse.csr_matrix(R.T), sampled.of_users(mean)
    R = sparse.csr_matrix((R.data - mean[R.indices, -1], R.indices, R.indptr), shape=R.shape)
    if keep is not None:
        X, R = X[keep], R[keep]
    simec = SimEc(
        embedding_dim=mean.shape[1],
        hidden_layers=settings.hidden_layers,
        encoder=settings.encoders[side],
        l2=1e-4,
        input_dropout=0.1,
        # Few rows are cut into as many batches as many are: it is steps that training takes.
        batch_size=int(np.clip(R.shape[0] // 16, 8, 256)),
        epochs=40,
        validation_fraction=0.1 if R.shape[0] >= 20 else 0.0,
        patience=4 if R.shape[0] >= 20 else None,
        random_state=seed,
    )
    simec.fit(X, R, last_layer=Posterior(mean).regressors().T)
    if sampled.workers.size > 1:  # the last bits differ where the workers' processors do
        first = sampled.workers.first
        simec.encoder_.set_weights([first(w) for w in simec.encoder_.get_weights()])
        simec.last_layer_ = first(simec.last_layer_)
    return simec


def cross_fit_network(
    sampled: Sampled,
    side: Side,
    partners: Posterior,
    settings: Settings,
    folds: np.ndarray,
    seed: int,
) -> tuple[SimEc, np.ndarray]:
    """Train on all rows, and encode each row by a network that has not seen it."""
    simec = fit_network(sampled, side, partners, settings, seed)
    X = sampled.problem.features[side][:, :-1]
    held_out = np.empty((X.shape[0], partners.mean.shape[1]), np.float32)
    for fold in range(min(settings.folds, sampled.problem.n_rows[side])):
        rows = folds == fold
        without = fit_network(sampled, side, partners, settings, seed, ~rows)
        held_out[rows] = without.transform(X[rows])
    return simec, held_out
