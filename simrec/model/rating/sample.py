"""Known entities fitted to a part of the ratings, on which choices are tried."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simrec.data.sides import Sides
from simrec.model.prepare import Prepared
from simrec.model.rating.known_entities import Problem, fit_known
from simrec.model.rating.layout import Layout
from simrec.model.rating.observed import Observed
from simrec.model.run.progress import Step, no_step
from simrec.scoring.output import IDENTITY, Output


@dataclass(frozen=True, eq=False)
class SampleFit:
    """What was fitted to some ratings.

    Attributes
    ----------
    rows : Sides of numpy.ndarray
        Rows of R, and columns, of the items and users that have such ratings.
    vectors : Sides of numpy.ndarray
        Their vectors, biases included.
    mean : float
        What is added to a scalar product before the output.
    """

    rows: Sides[np.ndarray]
    vectors: Sides[np.ndarray]
    mean: float


def fit_sample(
    data: Prepared,
    which: np.ndarray,
    embedding_dim: int,
    epochs: int,
    rng: np.random.Generator,
    output: Output = IDENTITY,
    step: Step = no_step,
) -> SampleFit:
    """Fit known entities to the ratings at the positions `which`; `step` after each sweep."""
    ratings = data.ratings
    part = ratings.select(which)
    rows = Sides(ratings.items.rows(part.items.ids), ratings.users.rows(part.users.ids))
    features = data.sides.map(lambda side, at: side.X[at], rows)
    groups = data.sides.map(lambda side: side.groups)
    observed = Observed.of(part, output=output)
    problem = Problem(observed, features, groups)
    known = fit_known(problem, embedding_dim, epochs, rng, lambda logs: step())
    layout = Layout(embedding_dim, observed.scale)
    vectors = Sides.of(lambda side: layout.coordinates(side, known[side].posterior.mean))
    return SampleFit(rows, vectors, observed.mean)
