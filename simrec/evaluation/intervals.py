"""Intervals of paired differences: a cluster bootstrap over users."""

from statistics import NormalDist
from typing import Any

import numpy as np

from simrec.data.seeds import generator

# Rows of bootstrap weights that are drawn at once: bounds the memory.
_AT_ONCE = 2**22


def paired_difference(
    pair: tuple[np.ndarray, np.ndarray],
    groups: np.ndarray,
    root: bool,
    level: float,
    draw: tuple[int, int],
) -> dict[str, Any]:
    """Return the figures of two models, their difference, its interval and standard error.

    `pair` has fits x cases of each model; `draw` the number of draws, and their seed.
    """
    # A case's figure is the mean over fits; what they differ by comes on top, see below.
    sums = [np.bincount(groups, v.mean(axis=0, dtype=np.float64)) for v in pair]
    cases = np.column_stack([*sums, np.bincount(groups)]).astype(np.float64)
    cases = cases[cases[:, 2] > 0]
    n = len(cases)
    value, other = _figures(cases.sum(axis=0)[None], root)[0]
    difference = float(value - other)
    drawn = np.concatenate([_figures(w @ cases, root) for w in _weights(n, *draw)])
    spread = drawn[:, 0] - drawn[:, 1]
    tail = 100 * (1 - level) / 2
    ends = np.percentile(spread, [tail, 100 - tail]) - difference
    # Percentiles are too narrow where few users have most of the ratings. They give the shape of
    # the interval; the jackknife, the fits and Student's distribution give its width.
    se, freedom = _with_fits(pair, root, _standard_error(cases, root), cases[:, 2])
    width = float(spread.std())
    end = 0.5 + level / 2
    wider = student(end, freedom) / NormalDist().inv_cdf(end)
    wider = se * wider / width if width else 0.0
    return {
        "n_users": n,
        "value": float(value),
        "other_value": float(other),
        "difference": difference,
        "low": difference + wider * ends[0],
        "high": difference + wider * ends[1],
        "se": se,
        "freedom": freedom,
    }


def _figures(totals: np.ndarray, root: bool) -> np.ndarray:
    """Give the figures of both models from rows of (sum, sum of the other, number of cases)."""
    means = totals[:, :2] / totals[:, 2:]
    return np.sqrt(means) if root else means


def _standard_error(cases: np.ndarray, root: bool) -> float:
    """Give the jackknife standard error of the difference: each user left out once."""
    n = len(cases)
    if n < 2:
        return float("inf")
    figures = _figures(cases.sum(axis=0) - cases, root)
    without = figures[:, 0] - figures[:, 1]
    return float(np.sqrt((n - 1) * without.var()))


def _with_fits(
    pair: tuple[np.ndarray, np.ndarray], root: bool, se: float, counts: np.ndarray
) -> tuple[float, float]:
    """Add the variance between fits to that between users: standard error, degrees of freedom.

    The latter are Satterthwaite's, with the effective number of users.
    """
    parts = [(se**2, max(counts.sum() ** 2 / (counts**2).sum() - 1, 1.0))]
    for fits in pair:
        if len(fits) > 1:
            means = fits.mean(axis=1, dtype=np.float64)
            figures = np.sqrt(means) if root else means
            parts.append((float(figures.var(ddof=1)) / len(fits), len(fits) - 1.0))
    total = sum(variance for variance, _ in parts)
    below = sum(variance**2 / freedom for variance, freedom in parts)
    return float(np.sqrt(total)), float(total**2 / below) if below else 1.0


def student(quantile: float, freedom: float) -> float:
    """Return a quantile of Student's distribution."""
    from scipy.stats import t

    return float(t.ppf(quantile, freedom))


def _weights(n: int, draws: int, seed: int) -> Any:
    """Give how often each of n users is in each draw, some draws at a time."""
    rng = generator(seed)
    step = max(1, _AT_ONCE // max(n, 1))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        picks = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
