"""What a fit keeps for later: how far predictions are from ratings, and evidence of each entity.

How far is the noise, the width of the prior of new entities, and expected errors.

Where the output is the identity all of it follows from the precisions and errors that the fit has
estimated. A sigmoid changes an error by its slope, which differs from rating to rating: there,
all of it is measured on some of the ratings.
"""

from dataclasses import dataclass

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.sides import Side, Sides
from simrec.model.new_entities.cross_fit import left_out_residuals, pair_residuals
from simrec.model.new_entities.fit import RatingFit
from simrec.model.posterior.evidence import Evidence, PackedPosterior, SideEvidence
from simrec.model.posterior.observed import Entries, RatingRows
from simrec.model.posterior.packed import pack, packed_weights, to_factors, weighted_sum
from simrec.model.posterior.posterior import KnownEntities, Posterior
from simrec.model.posterior.problem import Problem
from simrec.model.prepare import Prepared
from simrec.model.run.workers import own_places
from simrec.scoring.output import Output
from simrec.scoring.threads import row_blocks

# The prior of a new entity is at most this much wider than that of known ones, and not narrower:
# ratings make surer.
_WIDTHS = (1.0, 100.0)
# Ratings on which errors are measured, and those of them on which widths are found.
_SAMPLE, _FEW = 100_000, 5_000
# With a sigmoid a prior may be narrower: before the output, ratings near its ends make those of
# known entities wide. The range is halved so often on a logarithmic scale, to 1% of a width.
_MEASURED_WIDTHS, _HALVINGS = (0.01, 100.0), 10
# Leverage of a rating on its own prediction, at most.
_MOST_LEVERAGE = 0.95


@dataclass(frozen=True, eq=False)
class Calibration:
    """How sure predictions are; `SideEvidence` has the same fields."""

    noise: float
    moments: Sides[np.ndarray]
    widths: Sides[float]
    rmse_new: Sides[float]  # expected errors for new entities, on the scale of the ratings


def calibrate(fit: RatingFit, problem: Problem, output: Output, ratings: Ratings) -> Calibration:
    """Estimate how sure the predictions of a fit are."""
    rows, known = problem.observed.rows, fit.known
    moments = Sides.of(lambda side: _moments(known.other(side), rows.other(side)))
    if output.linear:
        scale = problem.observed.scale
        return Calibration(
            scale**2 / known.users.precisions.t,
            moments,
            Sides.of(lambda side: _width(known, problem, fit.new[side].error, side, moments)),
            fit.new.map(lambda new: scale * new.error),
        )
    return _Measured(fit, problem, output, ratings, moments).calibration()


class _Measured:
    """Errors of a fit on some of the ratings, with a sigmoid output."""

    def __init__(
        self,
        fit: RatingFit,
        problem: Problem,
        output: Output,
        ratings: Ratings,
        moments: Sides[np.ndarray],
    ) -> None:
        observed = problem.observed
        self.workers, mine = observed.workers, observed.workers.places(len(ratings))
        n = int(self.workers.total(len(ratings)))
        at = np.arange(n) if n <= _SAMPLE else np.linspace(0, n - 1, _SAMPLE).astype(np.int64)
        self.drawn = len(at)
        at = own_places(at, mine)
        self.fit, self.output, self.moments, self.scale = fit, output, moments, observed.scale
        self.ratings = ratings.values[at]
        values = (output.link(self.ratings) - np.float32(observed.mean)) / np.float32(self.scale)
        rows = Sides(ratings.item_rows[at], ratings.user_rows[at])
        self.entries = Entries(rows, values, self.drawn, self.workers)

        def variances(side: Side) -> np.ndarray:
            covariance = fit.known[side].posterior.covariance
            assert covariance is not None
            return (covariance @ packed_weights(moments[side]))[rows[side]]

        # Of the scalar products of known entities, in units of the spread.
        self.variances = Sides.of(variances)

    def calibration(self) -> Calibration:
        """Put together what was measured."""
        noise = self._noise()
        left_out = Sides.of(self._new)
        rmse = left_out.map(lambda z: float(np.sqrt(self._mean(self._squares(z)))))
        widths = Sides.of(lambda side: self._width(side, left_out[side], rmse[side], noise))
        return Calibration(noise, self.moments, widths, rmse)

    def _mean(self, values: np.ndarray) -> float:
        """Average over the entries of all workers."""
        total = self.workers.sum(np.array([values.sum(dtype=np.float64), len(values)]))
        return float(total[0] / max(total[1], 1))

    def _squares(self, z: np.ndarray) -> np.ndarray:
        return (self.output(self.scale * z) - self.ratings).astype(np.float64) ** 2

    def _noise(self) -> float:
        """Take what is uncertain of the vectors from the error on ratings they have not seen."""
        rows, values = self.entries.rows, self.entries.values
        item, user = (one.posterior.mean[at] for one, at in zip(self.fit.known, rows, strict=True))
        z = np.einsum("nd,nd->n", item[:, :-1], user[:, :-1]) + item[:, -1] + user[:, -1]
        uncertain = self.variances.items + self.variances.users
        # As in `left_out_residuals`, with the leverage of an entity's average rating.
        leverage = np.minimum(self.fit.known.users.precisions.t * uncertain, _MOST_LEVERAGE)
        left_out = values - (values - z) / (1 - leverage)
        variance = self.output.variance(self.scale * left_out, self.scale**2 * uncertain)
        return max(self._mean(self._squares(left_out) - variance), 0.0)

    def _new(self, side: Side) -> np.ndarray:
        """Predict the ratings of a side's entities as if they were new."""
        new = self.fit.new[side]
        if not new.refitted:
            found = Sides(new.partners.mean, new.held_out)
            found = found if side == "users" else found.swap()
            return self.entries.values - pair_residuals(found, self.entries)
        held_out = Posterior(new.held_out)
        residuals = left_out_residuals(held_out, new.partners, new.precisions.t, self.entries, side)
        none = np.empty(0, np.float32)
        return self.entries.values - np.concatenate([none, *residuals])

    def _width(self, side: Side, left_out: np.ndarray, rmse: float, noise: float) -> float:
        """Find the width with which predictions for new entities are as uncertain as wrong."""
        few = slice(None, None, max(self.drawn // _FEW, 1))
        z, partners = self.scale * left_out[few], self.variances.other(side)[few]
        prior = np.linalg.inv(self.fit.known[side].precisions.L)
        own = float(np.sum(prior * self.moments[side]))
        low, high = np.log(_MEASURED_WIDTHS)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            uncertain = self.scale**2 * (np.exp(middle) * own + partners)
            found = noise + self._mean(self.output.variance(z, uncertain))
            low, high = (middle, high) if found < rmse**2 else (low, middle)
        return float(np.exp(low))


def _moments(one: KnownEntities, ratings: RatingRows) -> np.ndarray:
    """Average phi phi^T over a side, its entities weighted by their ratings."""
    phi = one.posterior.regressors()
    moments = (phi * ratings.shares()[:, None]).T.astype(np.float64) @ phi
    moments = ratings.row_workers.sum(moments)
    moments[:-1, :-1] += _mean_covariance(one, ratings)[:-1, :-1]
    return moments


def _mean_covariance(one: KnownEntities, ratings: RatingRows) -> np.ndarray:
    """Average the covariances of a side, its entities weighted by their ratings."""
    assert one.posterior.covariance is not None
    return ratings.row_workers.sum(weighted_sum(one.posterior.covariance, ratings.shares()))


def _width(
    known: Sides[KnownEntities],
    problem: Problem,
    error: float,
    side: Side,
    moments: Sides[np.ndarray],
) -> float:
    """Compare the variance of new entities, as held-out ones show it, with that of the prior."""
    partners = _mean_covariance(known.other(side), problem.observed.rows.other(side))
    excess = error**2 - 1 / known[side].precisions.t - float(np.sum(partners * moments.other(side)))
    prior = float(np.sum(np.linalg.inv(known[side].precisions.L) * moments[side]))
    return float(np.clip(excess / prior, *_WIDTHS))


def evidence_of(
    fit: RatingFit,
    problem: Problem,
    data: Prepared,
    encoded: Sides[tuple[np.ndarray, np.ndarray]],
    calibration: Calibration,
) -> Evidence:
    """Collect what was learned of all entities, also of those known by their features alone.

    `encoded` are the embeddings (warm, cold) that features give all entities of a tower.
    """
    known, observed, width = fit.known, problem.observed, calibration.widths

    def side_evidence(side: Side) -> SideEvidence:
        rows, one, new = data.sides[side].rated_rows, known[side], fit.new.other(side)
        counts, of_warm, of_cold = data.sides[side].tower.counts, *encoded[side]
        n, D = len(counts), one.posterior.mean.shape[1]
        prior = np.linalg.inv(one.precisions.L) * width[side]
        out_of_fold = np.array(of_warm, np.float32)
        out_of_fold[rows] = fit.new[side].held_out
        history, history_weights = np.zeros((n, D), np.float32), np.zeros((n, D), np.float32)
        cold = None
        if fit.refined:
            cold = _filled(rows, new.partners, of_cold, np.linalg.inv(new.precisions.L))
            # The weights of the partners are the last ones.
            n_partners, n_rated = observed.rows.other(side).n_rows, observed.rows[side].n_rows
            history[rows] = observed.rows[side].sum_partners(one.weights[-n_partners:])
            history_weights[rows] = known.other(side).weights[-n_rated:]
        return SideEvidence(
            warm=_filled(rows, one.posterior, of_warm, prior),
            cold=cold,
            warm_precisions=one.precisions,
            cold_precisions=new.precisions if fit.refined else None,
            width=width[side],
            history=history,
            history_weights=history_weights,
            out_of_fold=out_of_fold,
            warmth=(np.asarray(counts) > 0).astype(np.float32),
            moments=calibration.moments[side],
            weights=one.weights[: problem.features[side].shape[1]],
        )

    sides = Sides.of(side_evidence)
    return Evidence(sides, observed.mean, observed.scale, calibration.noise)


def _filled(
    rows: np.ndarray, posterior: Posterior, encoded: np.ndarray, prior: np.ndarray
) -> PackedPosterior:
    """Pack the posteriors of the rated entities, at `rows`, and the prior of all others."""
    covariance, n = posterior.covariance, len(encoded)
    assert covariance is not None
    if n == len(rows):  # all have ratings
        return PackedPosterior.of(posterior.mean, covariance)
    halves = np.repeat(to_factors(pack(prior[None])), n, axis=0)
    made = PackedPosterior(np.array(encoded, np.float32), halves)
    for part in row_blocks(len(rows)):
        made.put(rows[part], Posterior(posterior.mean[part], covariance[part]))
    return made
