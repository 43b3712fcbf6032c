"""Choose the output of ratings: the identity within the bounds, or a sigmoid.

A sigmoid is fitted like the identity, by least squares, to what its inverse makes of the ratings.
It ends at quantiles of the ratings, which may lie well within the bounds. Which output predicts
better is found out on held-out ratings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.model.prepare import Prepared
from simrec.model.rating.sample import fit_sample
from simrec.model.run.workers import Workers
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs

OutputKind = Literal["auto", "identity", "sigmoid"]

# Ratings to choose on: of as many users at random. With fewer than the least there is no choice.
_MOST, _LEAST = 30_000, 1_000
# Shares of the ratings beyond the range of a sigmoid that are tried, on either side.
_BEYOND = (0.005, 0.05)
# A sigmoid must be better by this share of the identity's error, and by so many standard errors.
_MARGIN, _SURE = 0.02, 2.0
# Share of the ratings held out; dimension and sweeps of the fits to the others.
_HELD_OUT, _DIM, _EPOCHS = 0.1, 8, 8


def choose_output(
    data: Prepared,
    kind: OutputKind,
    embedding_dim: int,
    rng: np.random.Generator,
    workers: Workers,
) -> tuple[Output, dict[str, Any]]:
    """Choose the output of a fit, without its shift.

    Parameters
    ----------
    data : Prepared
        The ratings, their bounds, and features.
    kind : {"auto", "identity", "sigmoid"}
        "sigmoid" to choose only where it ends.
    embedding_dim : int
        Coordinates of an embedding; at most 8 are used to choose.
    rng : numpy.random.Generator
        Of its own: the fit that follows draws the same numbers whatever is chosen.
    workers : Workers
        The first one chooses, and tells the others.

    Returns
    -------
    (Output, dict)
        The output, and what to say of the choice.
    """
    low, high = data.bounds
    if kind == "sigmoid" and low == high:
        raise InputError(
            f"rating_output: all ratings are {low:g}, which says nothing of where a sigmoid ends. "
            "Give bounds=(lowest, highest), or rating_output='identity'."
        )
    output = Output(low, high, kind="clip")
    if kind == "sigmoid" or (kind == "auto" and len(data.ratings) >= _LEAST):
        found = _chosen(data, kind, embedding_dim, rng) if workers.rank == 0 else output
        told = workers.first(np.array([not found.linear, found.lower, found.upper], np.float64))
        if told[0]:
            output = Output(float(told[1]), float(told[2]))
    return output, {"rating_output": "identity" if output.linear else "sigmoid"}


def _chosen(
    data: Prepared, kind: OutputKind, embedding_dim: int, rng: np.random.Generator
) -> Output:
    """Choose between sigmoids, and on request between the best of them and the identity."""
    sample = _sample(data, rng)
    outputs = _sigmoids(data, sample)
    if kind == "auto":
        outputs.insert(0, Output(*data.bounds, kind="clip"))
    if len(outputs) == 1 or len(sample) < _LEAST:
        return outputs[0]
    squares = _squared_errors(data, sample, outputs, embedding_dim, rng)
    errors = np.sqrt(squares.mean(1))
    best = int(np.argmin(errors))
    if kind == "auto":
        gained = squares[0] - squares[best]
        sure = gained.mean() > _SURE * gained.std() / np.sqrt(len(gained))
        if not sure or errors[best] > (1 - _MARGIN) * errors[0]:
            best = 0
    return outputs[best]


def _sample(data: Prepared, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the ratings of some users, with all of theirs where there is room."""
    ratings = data.ratings
    users = rng.permutation(ratings.n_users)
    n_users = 1 + int(np.searchsorted(np.cumsum(data.sides.users.counts[users]), _MOST))
    chosen = np.zeros(ratings.n_users, bool)
    chosen[users[:n_users]] = True
    found = np.flatnonzero(chosen[ratings.user_rows])
    return found if len(found) <= _MOST else np.sort(rng.choice(found, _MOST, replace=False))


def _sigmoids(data: Prepared, sample: np.ndarray) -> list[Output]:
    """Return sigmoids between quantiles of the ratings, the widest first.

    Where the quantiles are equal, the sigmoid ends at the bounds.
    """
    values = data.ratings.values[sample]
    ends = [np.quantile(values, [share, 1 - share], method="nearest") for share in _BEYOND]
    ranges = dict.fromkeys((float(low), float(high)) for low, high in ends if low < high)
    low, high = data.bounds
    return [Output(*ends) for ends in ranges] or ([Output(low, high)] if low < high else [])


def _squared_errors(
    data: Prepared,
    sample: np.ndarray,
    outputs: list[Output],
    embedding_dim: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Fit known users and items with each output; return squared errors, outputs x held out."""
    ratings, dim = data.ratings, min(embedding_dim, _DIM)
    out = rng.random(len(sample)) < _HELD_OUT
    held_out, seed = sample[out], int(rng.integers(2**31))
    pairs = Sides(ratings.item_rows[held_out], ratings.user_rows[held_out])
    squares = []
    for output in outputs:
        start = np.random.default_rng(seed)
        fit = fit_sample(data, sample[~out], dim, _EPOCHS, start, output)
        # One who has no other ratings is an average one.
        vectors = fit.vectors.map(lambda v: np.vstack([v, np.zeros_like(v[:1])]))
        rows = fit.rows.map(_places, pairs)
        g = replace(output, shift=fit.mean)
        found = score_pairs(vectors.users, vectors.items, rows.users, rows.items, g)
        squares.append((found - ratings.values[held_out]).astype(np.float64) ** 2)
    return np.array(squares)


def _places(known: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return where each row stands among the known ones, after the last if it does not."""
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, len(known))
