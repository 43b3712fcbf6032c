"""One table for a model and a split: a row for each task, the baselines beside every error."""

from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.split import ColdStartSplit
from simrec.errors import InputError
from simrec.evaluation import metrics
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline

if TYPE_CHECKING:
    import pandas as pd


class Predictor(Protocol):
    """What can be evaluated: anything that predicts. With `recommend`, its rankings are too."""

    def predict(self, pairs: pa.Table) -> np.ndarray:
        """Return a prediction for each (user_id, item_id) row of a table."""


def evaluate(
    model: Predictor,
    split: ColdStartSplit,
    k: int = 10,
    threshold: float | None = None,
    *,
    max_users: int = 2000,
    random_state: int = 0,
    unknown: Literal["error", "prior"] = "error",
) -> "pd.DataFrame":
    """Measure a fitted model on the four tasks of a split.

    Errors are over all ratings of a task; a model whose `objective` is ranking has none. Rankings
    are over the task's users who rated at least one item `threshold` or more (its relevant items),
    at most `max_users` of them, drawn at random with a fixed seed. What is ranked:

    ========= ==================================================================
    warm      the kept items, without those the user rated in training
    new_items the held-out items
    new_users the kept items
    new_both  the held-out items
    ========= ==================================================================

    Kept items are those that were not held out whole. Items a user never rated count as not
    relevant, so the figures compare models; they are not the share of good recommendations.

    Parameters
    ----------
    model : Predictor
        Fitted on ``split.train``, e.g. a `TwoTower`: anything with ``predict(pairs)`` and, for
        rankings, ``recommend(users, k, items, exclude)``, which gives a table with user_id,
        item_id and rank (from 1). Without the latter the ranking columns are NaN.
    split : ColdStartSplit
        As made by `cold_start_split`.
    k : int
        Length of the ranked lists.
    threshold : float, optional
        Ratings from here on make an item relevant. Default: three quarters of the way from the
        lowest to the highest training rating, 4 on a scale of 1 to 5.
    max_users : int
        Most users to rank for in each task.
    random_state : int
        Seed of the draw of these users.
    unknown : {"error", "prior"}
        Passed on to the model where it is "prior": ids with neither ratings nor features are then
        answered as average entities instead of refused.

    Returns
    -------
    pandas.DataFrame
        A row for each task; columns task, n (ratings), rmse, mae; rmse_mean and rmse_bias, the
        errors of the mean and of the shrunk biases of ``split.train``; n_ranked (users ranked
        for), precision@k, recall@k, ndcg@k, map@k, mrr (means over users), and coverage (share of
        the ranked items that is in at least one list). NaN where there is nothing to measure.

    Raises
    ------
    InputError
        If a test rating is in the training set too, or a prediction is missing.
    """
    import pandas as pd

    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a positive integer, got {k!r}")
    train, tasks = split.train, split.tasks()
    for task, ratings in tasks.items():
        _refuse_overlap(task, ratings, train)
    if threshold is None:
        low, high = float(train.values.min()), float(train.values.max())
        threshold = low + 0.75 * (high - low)
    mean, bias = MeanBaseline.fit(train), BiasBaseline.fit(train)
    kept = train.items.union(tasks["warm"].items).union(tasks["new_users"].items)
    held_out = tasks["new_items"].items.union(tasks["new_both"].items)
    options: dict[str, Any] = {} if unknown == "error" else {"unknown": unknown}
    # What a ranking model predicts is no rating: it has no error to compare.
    rates = getattr(model, "objective", "rating") != "ranking"
    rows = []
    for task, ratings in tasks.items():
        rmse = mae = float("nan")
        if rates:
            predictions = _predict(model, task, ratings, options)
            rmse = metrics.rmse(ratings.values, predictions)
            mae = metrics.mae(ratings.values, predictions)
        row = {
            "task": task,
            "n": len(ratings),
            "rmse": rmse,
            "mae": mae,
            "rmse_mean": metrics.rmse(ratings.values, mean.predict(ratings)),
            "rmse_bias": metrics.rmse(ratings.values, bias.predict(ratings)),
        }
        candidates = kept if task in ("warm", "new_users") else held_out
        relevant = _relevant(ratings, candidates, threshold)
        rng = np.random.default_rng(random_state)
        users = np.flatnonzero(np.diff(relevant.indptr))
        if len(users) > max_users:
            users = np.sort(rng.choice(users, max_users, replace=False))
        if not hasattr(model, "recommend"):
            users = users[:0]
        exclude = train if task == "warm" else None
        ids = _rank(model, ratings.users.take(users), candidates, int(k), exclude, options)
        rows.append(row | _ranking(ids, relevant[users], int(k)))
    return pd.DataFrame(rows)


def _predict(model: Predictor, task: str, ratings: Ratings, options: dict[str, Any]) -> np.ndarray:
    if not len(ratings):
        return np.empty(0, np.float32)
    # The ids alone: what is to be predicted is not shown.
    pairs = ratings.to_arrow().select(["user_id", "item_id"])
    predictions = np.asarray(model.predict(pairs, **options))
    if predictions.shape != (len(ratings),):
        raise InputError(
            f"{task}: predict gave shape {predictions.shape} for {len(ratings)} pairs; "
            "evaluate needs one number for each"
        )
    missing = ~np.isfinite(predictions)
    if missing.any():
        example = pairs.slice(int(np.argmax(missing)), 1).to_pylist()[0]
        raise InputError(
            f"{task}: {int(missing.sum())} of {len(ratings)} predictions are missing (NaN or "
            f"infinite), the first for {example}; errors over the others would not compare with "
            "anything. Mend the model, or leave these pairs out of the split."
        )
    return predictions


def _relevant(ratings: Ratings, candidates: IdMap, threshold: float) -> sparse.csr_matrix:
    """Return the task's users x candidates, stored where the rating reaches the threshold."""
    good = ratings.values >= threshold
    items = candidates.rows(ratings.items.ids)[ratings.item_rows[good]]
    shape = (ratings.n_users, len(candidates))
    entries = (np.ones(len(items), np.float32), (ratings.user_rows[good], items))
    return sparse.csr_matrix(entries, shape=shape)


def _rank(
    model: Any,
    users: pa.Array,
    candidates: IdMap,
    k: int,
    exclude: Ratings | None,
    options: dict[str, Any],
) -> np.ndarray:
    """Return the rows among `candidates` of each user's k best, -1 where a list ends early."""
    ids = np.full((len(users), k), -1, np.int64)
    if not len(users):
        return ids
    # The users of a task come in ascending order, so they are a map as they are.
    order = IdMap(users)
    table = model.recommend(users, k=k, items=candidates.ids, exclude=exclude, **options)
    user = order.rows(table.column("user_id"))
    item = candidates.rows(table.column("item_id"))
    rank = table.column("rank").to_numpy()
    if (user < 0).any() or (item < 0).any() or (rank < 1).any() or (rank > k).any():
        raise InputError(
            "recommend gave users or items that were not asked for, or ranks outside 1..k"
        )
    ids[user, rank - 1] = item
    return ids


def _ranking(ids: np.ndarray, relevant: sparse.csr_matrix, k: int) -> dict[str, float]:
    """Return the ranking columns of a row: means over users."""
    hit, n_relevant = metrics.hits(ids, relevant), np.diff(relevant.indptr)
    per_user = {
        f"precision@{k}": metrics.precision_at_k(hit),
        f"recall@{k}": metrics.recall_at_k(hit, n_relevant),
        f"ndcg@{k}": metrics.ndcg_at_k(hit, n_relevant),
        f"map@{k}": metrics.map_at_k(hit, n_relevant),
        "mrr": metrics.mrr(hit),
    }
    means = {name: float(v.mean()) if len(v) else float("nan") for name, v in per_user.items()}
    covered = metrics.coverage(ids, relevant.shape[1]) if len(ids) else float("nan")
    return {"n_ranked": len(ids), **means, "coverage": covered}


def _refuse_overlap(task: str, test: Ratings, train: Ratings) -> None:
    users = train.users.rows(test.users.ids)[test.user_rows] if len(test) else np.empty(0, int)
    items = train.items.rows(test.items.ids)[test.item_rows] if len(test) else np.empty(0, int)
    known = np.flatnonzero((users >= 0) & (items >= 0))
    if not len(known):
        return
    pairs = users[known] * train.n_items + items[known]
    stored = train.user_rows.astype(np.int64) * train.n_items + train.item_rows
    both = known[np.isin(pairs, stored)]
    if len(both):
        example = test.select(both[:1]).to_arrow().to_pylist()[0]
        raise InputError(
            f"{task}: {len(both)} of {len(test)} test ratings are in the training set too, "
            f"the first is {example}. A model that has seen the answer is not tested: make the "
            "split with cold_start_split, or drop these rows from one of the two."
        )
