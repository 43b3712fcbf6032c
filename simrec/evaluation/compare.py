"""Compare models on the same ratings and users: paired differences with their intervals."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simrec.data.split import ColdStartSplit
from simrec.errors import InputError
from simrec.evaluation import tasks
from simrec.evaluation.evaluate import Predictor

logger = logging.getLogger(__name__)

# Probability with which an interval holds the true difference, and the share of the first model's
# figure from which a difference matters.
_LEVEL, _MARGIN = 0.95, 0.01


def compare(
    models: Mapping[str, Predictor | str | Sequence[Predictor | str]],
    split: ColdStartSplit,
    k: int = 10,
    threshold: float | None = None,
    *,
    max_users: int = 5000,
    random_state: int = 0,
) -> pd.DataFrame:
    """Compare fitted models on the four tasks of a split, each with the first.

    All answer the same ratings and make lists for the same users, so differences are paired.
    Users are left out one by one, each with all their ratings, because ratings of one user are not
    independent (a cluster jackknife). The interval of two fitted models says what other users
    of the same kind could show: it is about these two fits, and the same model fitted with another
    seed can differ from itself by more. To compare ways of fitting, give several fits of each; how
    much they differ is then part of the interval.

    Parameters
    ----------
    models : mapping of str to Predictor
        Two or more fitted models by name: anything with ``predict(pairs)`` or ``recommend(users,
        k, items, exclude)``, the path of a saved one, or a list of fits of it with several seeds.
        What one of two lacks is left out.
    split : ColdStartSplit
        As made by `cold_start_split` or `time_split`; the models were fitted on its `train`.
    k : int
        Length of the lists.
    threshold : float, optional
        Ratings from here on make an item relevant; see `evaluate`.
    max_users : int
        Most users to make lists for in each task.
    random_state : int
        Seed of the draw of these users.

    Returns
    -------
    pandas.DataFrame
        A row for each task, metric and model but the first: task, metric, model, other (the first
        model), n_users, value, other_value, difference (value - other_value), low and high (its
        interval of 95%), better (the name of the better one, or None where the difference is not
        clear or does not matter), result (of `model`, in words). A model is called better where the
        interval has one sign also when widened for the number of figures (Bonferroni), and the
        difference is at least 1%.

    Examples
    --------
    >>> from simrec import TwoTower, cold_start_split, make_synthetic
    >>> data = make_synthetic(n_users=100, n_items=60, n_ratings=1500)
    >>> split = cold_start_split(data.ratings)
    >>> without = TwoTower(epochs=4).fit(split.train)
    >>> with_items = TwoTower(epochs=4).fit(split.train, items=data.items)
    >>> found = compare({"without": without, "with items": with_items}, split)
    >>> found.columns[:3].tolist()
    ['task', 'metric', 'model']
    """
    fits = _named(models, split)
    threshold = tasks.liked_threshold(split.train, threshold)
    first, *others = fits
    rows = []
    for task in tasks.tasks_of(split, threshold, max_users, random_state):
        logger.info("comparing %s", task.name)
        rated = tasks.has_ratings(split.train) and len(task.ratings) > 0
        squares, lists = {}, {}
        for name, several in fits.items():
            if rated and all(map(tasks.predicts_ratings, several)):
                errors = [task.predictions(fit) - task.ratings.values for fit in several]
                squares[name] = np.stack(errors) ** 2
            if all(map(task.has_lists, several)):
                lists[name] = np.stack([task.ndcg(task.lists(fit, k)) for fit in several])
        for name in others:
            for metric, found, groups in (
                (f"ndcg@{k}", lists, np.arange(len(task.users))),
                ("rmse", squares, task.ratings.user_rows),
            ):
                if name in found and first in found:
                    root = metric == "rmse"
                    line = {"task": task.name, "metric": metric, "model": name, "other": first}
                    pair = (found[name], found[first])
                    rows.append({**line, **paired_difference(pair, groups, root)})
    if not rows:
        raise InputError("the models have no task and no figure in common to compare.")
    for row in rows:
        row["better"] = _better(row, sum(r["model"] == row["model"] for r in rows))
        row["result"] = in_words(row)
    return pd.DataFrame(rows).drop(columns=["se", "freedom"])


def in_words(row: Mapping[str, Any]) -> str:
    """Say how a model stands to the other in a row of the table.

    >>> row = {"metric": "rmse", "model": "a", "better": None, "difference": -0.005}
    >>> in_words({**row, "other_value": 1.0, "low": -0.007, "high": -0.003})
    'better by 0.5%, too little to matter'
    >>> in_words({**row, "other_value": 1.0, "low": -0.007, "high": 0.001})
    'no clear difference'
    """
    share = abs(row["difference"] / row["other_value"]) if row["other_value"] else float("inf")
    gains = (row["difference"] > 0) == (row["metric"] != "rmse")
    how = f"{'better' if gains else 'worse'} by {share:.{1 if share < 0.1 else 0}%}"
    how = how if np.isfinite(share) else how.split(" by")[0]
    if isinstance(row["better"], str):
        return how
    if row["low"] * row["high"] <= 0:
        return "no clear difference"
    return f"{how}, too little to matter" if share < _MARGIN else f"{how}, but it may be chance"


def _named(models: Any, split: Any) -> dict[str, list[Any]]:
    """Return the fits of each model by its name; refuse anything else."""
    given = models if isinstance(models, Mapping) else {}
    fits = {name: list(m) if isinstance(m, list | tuple) else [m] for name, m in given.items()}
    if len(fits) < 2 or not all(fits.values()):
        raise InputError(
            'compare needs a mapping of names to two models or more, such as {"a": a, "b": [b0, '
            f"b1]}}; got {models!r:.200}."
        )
    if not isinstance(split, ColdStartSplit):
        raise InputError(
            "compare needs a split (see cold_start_split, time_split) whose training part the "
            f"models were fitted on; got {type(split).__name__}."
        )
    return {name: [tasks.as_model(fit, "compare") for fit in m] for name, m in fits.items()}


def _better(row: Mapping[str, Any], n: int) -> str | None:
    """Name the better model of a row, one of n; None where the difference is not clear."""
    far = stdtrit(row["freedom"], 1 - (1 - _LEVEL) / (2 * n)) * row["se"]
    difference = row["difference"]
    matters = abs(difference) >= _MARGIN * abs(row["other_value"])
    if not (abs(difference) > far and row["low"] * row["high"] > 0 and matters):
        return None
    return row["model"] if (difference > 0) == (row["metric"] != "rmse") else row["other"]


def joined(parts: Sequence[str]) -> str:
    """Write a list of words: a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def paired_difference(
    pair: tuple[np.ndarray, np.ndarray], groups: np.ndarray, root: bool
) -> dict[str, Any]:
    """Return the figures of two models, their difference, its interval and standard error.

    `pair` has fits x cases of each model.
    """
    # A case's figure is the mean over fits; what they differ by comes on top, see below.
    sums = [np.bincount(groups, v.mean(axis=0, dtype=np.float64)) for v in pair]
    cases = np.column_stack([*sums, np.bincount(groups)]).astype(np.float64)
    cases = cases[cases[:, 2] > 0]
    n = len(cases)
    value, other = _figures(cases.sum(axis=0)[None], root)[0]
    difference = float(value - other)
    se = np.inf
    if n > 1:  # by the jackknife: each user left out once
        figures = _figures(cases.sum(axis=0) - cases, root)
        se = float(np.sqrt((n - 1) * (figures[:, 0] - figures[:, 1]).var()))
    se, freedom = _with_fits(pair, root, se, cases[:, 2])
    far = float(stdtrit(freedom, 0.5 + _LEVEL / 2)) * se
    return {
        "n_users": n,
        "value": float(value),
        "other_value": float(other),
        "difference": difference,
        "low": difference - far,
        "high": difference + far,
        "se": se,
        "freedom": freedom,
    }


def _figures(totals: np.ndarray, root: bool) -> np.ndarray:
    """Give the figures of both models from rows of (sum, sum of the other, number of cases)."""
    means = totals[:, :2] / totals[:, 2:]
    return np.sqrt(means) if root else means


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
    freedom = float(total**2 / below) if 0 < below < np.inf else 1.0
    return float(np.sqrt(total)), freedom
