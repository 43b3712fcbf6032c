"""From scalar products to probabilities of uptake."""

from __future__ import annotations

import numpy as np

from simrec.model.lists.held_out import Task

# Zeros that probabilities are calibrated on.
_ABSENT = 50_000


def logit_line(
    task: Task,
    z: np.ndarray,
    rng: np.random.Generator,
    stand_for: float,
    intercept: float | None = None,
) -> tuple[float, float] | None:
    """Fit the logit of uptake as a line of scores; None where there are no pairs.

    Held-out pairs are the ones; zeros are drawn among all pairs that are not in the training
    sample, and weighted to be as many as there are.

    Parameters
    ----------
    task : Task
        Users and held-out pairs.
    z : numpy.ndarray
        Scores of its users and candidates.
    rng : numpy.random.Generator
        Source of the zeros.
    stand_for : float
        As many pairs as each of the held-out ones stands for: ten where a tenth was held out.
    intercept : float, optional
        Fit the slope alone.
    """
    ones = np.nonzero(task.hits)
    if not len(ones[0]):
        return None
    shape = task.hits.shape
    n = min(_ABSENT, shape[0] * shape[1])
    users, items = rng.integers(0, shape[0], n), rng.integers(0, shape[1], n)
    free = ~(task.hits[users, items] | task.exclude[users, items])
    users, items = users[free], items[free]
    rows, columns = np.append(ones[0], users), np.append(ones[1], items)
    z = z[rows, columns].astype(np.float64)
    y = np.r_[np.ones(len(ones[0])), np.zeros(len(users))]
    absent = (~(task.hits | task.exclude)).sum() / max(len(users), 1)
    weight = np.r_[np.full(len(ones[0]), stand_for), np.full(len(users), absent)]
    return _logistic_line(z, y, weight, intercept)


def _logistic_line(
    z: np.ndarray, y: np.ndarray, weight: np.ndarray, intercept: float | None
) -> tuple[float, float]:
    """Fit a weighted logistic regression on one variable by Newton's method."""
    rate = float(np.clip((weight * y).sum() / weight.sum(), 1e-6, 1 - 1e-6))
    scale = float(z.std()) or 1.0
    a, b = 1.0, np.log(rate / (1 - rate)) if intercept is None else intercept
    x = z / scale
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(a * x + b, -30, 30)))
        slope, v = weight * (y - p), weight * p * (1 - p)
        gradient = np.array([(slope * x).sum(), slope.sum()]) - np.array([1e-3 * a, 0])
        H = np.array([[(v * x * x).sum() + 1e-3, (v * x).sum()], [(v * x).sum(), v.sum()]])
        if intercept is not None:
            H[0, 1], gradient[1] = 0, 0
        step = np.linalg.solve(H + 1e-9 * np.eye(2), gradient)
        step *= min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        a, b = a + step[0], b + step[1]
        if np.abs(step).max() < 1e-6:
            break
    # Logits are not quite linear in scores, and most pairs are unlikely: the slope suits those that
    # are likely, whose squared errors count most.
    slopes = max(a, 1e-6) * 2.0 ** np.linspace(-4, 2, 25)
    squares = [weight @ (y - 1 / (1 + np.exp(-np.clip(s * x + b, -30, 30)))) ** 2 for s in slopes]
    return float(slopes[np.argmin(squares)] / scale), float(b)
