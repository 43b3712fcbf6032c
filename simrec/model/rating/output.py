"""Choose the output of ratings: the identity within the bounds, or a sigmoid.

A sigmoid is fitted like the identity, by least squares, to what its inverse makes of the ratings.
It ends at quantiles of the ratings, which may lie well within the bounds. Which output predicts
better is found out on held-out ratings.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.sides import Side, Sides
from simrec.errors import InputError
from simrec.model.new_entities.fit import fit_new, unrefined
from simrec.model.params import Settings
from simrec.model.posterior.observed import Observed
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import posteriors
from simrec.model.prepare import Prepared
from simrec.model.rating.layout import Layout
from simrec.model.sample import Sample, sample_users
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs

# Ratings to choose on, about: those of some users. With fewer than the least there is no choice.
_MOST, _LEAST = 30_000, 1_000
# Shares of the ratings beyond the range of a sigmoid that are tried, on either side.
_BEYOND = (0.005, 0.05)
# A sigmoid must be better by this share of the identity's error, and by so many standard errors.
_MARGIN, _SURE = 0.02, 2.0
# Share of the ratings held out; most dimensions, and sweeps, of the fits to the others.
_HELD_OUT, _DIM, _EPOCHS = 0.1, 8, 8


def choose_output(
    data: Prepared, settings: Settings, rng: np.random.Generator
) -> tuple[Output, dict[str, Any]]:
    """Choose the output of a fit, without its shift; return also what was chosen.

    `rng` is its own: the fit that follows draws the same numbers whatever is chosen.
    """
    low, high = data.bounds
    kind, workers = settings.rating_output, data.workers
    if kind == "sigmoid" and low == high:
        raise InputError(
            f"rating_output: all ratings are {low:g}, which says nothing of where a sigmoid ends. "
            "Give bounds=(lowest, highest), or rating_output='identity'."
        )
    output = Output(low, high, kind="clip")
    if kind == "sigmoid" or (kind == "auto" and workers.total(len(data.ratings)) >= _LEAST):
        sample = sample_users(data, _MOST, rng)
        found = _chosen(sample, settings, rng) if workers.rank == 0 else output
        chosen = workers.first(np.array([not found.linear, found.lower, found.upper], np.float64))
        if chosen[0]:
            output = Output(float(chosen[1]), float(chosen[2]))
    return output, {"rating_output": "identity" if output.linear else "sigmoid"}


def _chosen(sample: Sample, settings: Settings, rng: np.random.Generator) -> Output:
    """Choose between sigmoids, and with "auto" between the best of them and the identity."""
    values, auto = sample.ratings.values, settings.rating_output == "auto"
    low, high = sample.bounds
    ends = [np.quantile(values, [share, 1 - share], method="nearest") for share in _BEYOND]
    # Between quantiles of the ratings, the widest first; else between the bounds.
    ranges = dict.fromkeys((float(low), float(high)) for low, high in ends if low < high)
    outputs = [Output(*ends) for ends in ranges] or ([Output(low, high)] if low < high else [])
    if auto:
        outputs.insert(0, Output(*sample.bounds, kind="clip"))
    if len(outputs) == 1 or len(values) < _LEAST:
        return outputs[0]
    held_out, seed = HeldOut.of(sample, rng), int(rng.integers(2**31))
    actual, rows, found = values[held_out.out], held_out.rows, []
    # Without refinement items are what features say: free embeddings can make up for a wrong
    # output, features cannot.
    for output in outputs:
        dim, own = min(settings.rating_dim, _DIM), np.random.default_rng(seed)
        vectors, shift = held_out.fit(output, dim, own, settings.refine)
        g = replace(output, shift=shift)
        predicted = score_pairs(vectors.users, vectors.items, rows.users, rows.items, g)
        found.append((predicted - actual).astype(np.float64) ** 2)
    squares = np.array(found)  # outputs x held-out ratings
    errors = np.sqrt(squares.mean(1))
    best = int(np.argmin(errors))
    if auto:
        gained = squares[0] - squares[best]
        sure = gained.mean() > _SURE * gained.std() / np.sqrt(len(gained))
        if not sure or errors[best] > (1 - _MARGIN) * errors[0]:
            best = 0
    return outputs[best]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A sample of which some ratings are held out, to choose on."""

    sample: Sample
    out: np.ndarray  # which ratings are held out
    part: Ratings  # all others
    known: Sides[np.ndarray]  # rows in the sample of the items and users of the part
    rows: Sides[np.ndarray]  # the vectors of held-out ratings; the last one where there is none

    @classmethod
    def of(cls, sample: Sample, rng: np.random.Generator) -> Self:
        """Hold out a tenth of the ratings."""
        ratings = sample.ratings
        out = rng.random(len(ratings)) < _HELD_OUT
        part = ratings.select(np.flatnonzero(~out))
        known = Sides(ratings.items.rows(part.items.ids), ratings.users.rows(part.users.ids))
        rows = known.map(_places, Sides(ratings.item_rows[out], ratings.user_rows[out]))
        return cls(sample, out, part, known, rows)

    def fit(
        self, output: Output, dim: int, rng: np.random.Generator, refine: bool = True
    ) -> tuple[Sides[np.ndarray], float]:
        """Fit known entities to the part; return their vectors, and the shift of the output.

        The last vector is that of an average one, who has no ratings in the part.
        """
        observed = Observed.of(self.part, output=output)
        X = self.sample.X.map(lambda X, at: X[at], self.known)
        problem = Problem(observed, X, self.sample.groups)
        settings = Settings(dim, _EPOCHS, refine=refine)
        fit = posteriors(problem, settings, rng, _silent)
        if not refine:
            entries = observed.sample(1, rng)  # for an estimate of errors, not used here
            fit = unrefined(
                problem, fit, fit_new(problem, fit, "items", settings, entries, rng, _silent)
            )
        layout = Layout(dim, observed.scale)

        def vectors(side: Side) -> np.ndarray:
            found = layout.coordinates(side, fit[side].posterior.mean)
            return np.vstack([found, np.zeros_like(found[:1])])

        return Sides.of(vectors), observed.mean


def _silent(logs: dict[str, float]) -> None:
    """Report nothing."""


def _places(known: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return where each row stands among the known ones, after the last if it does not."""
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, len(known))
