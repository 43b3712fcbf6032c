"""The tasks of a split, and what a model answers to them: predictions and lists.

And copies of a model that learn from other ratings than it did, so that it can be tested.
"""

import copy
import inspect
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings, liked_from
from simrec.data.sides import USUAL, Sides
from simrec.data.split import ColdStartSplit
from simrec.errors import InputError, check_seed
from simrec.scoring import metrics

logger = logging.getLogger(__name__)

TASK_NAMES = {
    "warm": "known users and items",
    "new_items": "new items",
    "new_users": "new users",
    "new_both": "new items for new users",
}
"""What each task is about, in words."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task: ratings to predict, users to make lists for, candidates without those of `exclude`.

    `users` have at least one relevant item each; `relevant` (users x candidates) stores these.
    """

    name: str
    ratings: Ratings
    candidates: IdMap
    exclude: Ratings | None
    users: pa.Array
    relevant: sparse.csr_matrix

    @classmethod
    def of(
        cls,
        name: str,
        ratings: Ratings,
        candidates: IdMap,
        exclude: Ratings | None,
        threshold: float,
        max_users: int,
        random_state: int,
    ) -> "Task":
        """Find the users with relevant items, at most `max_users` of them."""
        good = ratings.values >= threshold
        items = candidates.rows(ratings.items.ids)[ratings.item_rows[good]]
        entries = (np.ones(len(items), np.float32), (ratings.user_rows[good], items))
        relevant = sparse.csr_matrix(entries, shape=(ratings.n_users, len(candidates)))
        users = np.flatnonzero(np.diff(relevant.indptr))
        if len(users) > max_users:
            rng = np.random.default_rng(check_seed(random_state))
            users = np.sort(rng.choice(users, max_users, replace=False))
        return cls(name, ratings, candidates, exclude, ratings.users.take(users), relevant[users])

    def predictions(self, model: Any) -> np.ndarray:
        """Ask a model for a prediction of each rating."""
        if not len(self.ratings):
            return np.empty(0, np.float32)
        # Without the ratings, which are to be predicted.
        pairs = self.ratings.to_arrow().select(["user_id", "item_id"])
        predictions = np.asarray(model.predict(pairs, **_options(model.predict)))
        if predictions.shape != (len(self.ratings),):
            raise InputError(
                f"{self.name}: predict gave shape {predictions.shape} for {len(self.ratings)} "
                "pairs; evaluation needs one number for each"
            )
        missing = ~np.isfinite(predictions)
        if missing.any():
            example = pairs.slice(int(np.argmax(missing)), 1).to_pylist()[0]
            raise InputError(
                f"{self.name}: {int(missing.sum())} of {len(self.ratings)} predictions are missing "
                f"(NaN or infinite), the first for {example}; errors over the others would not "
                "compare with anything. Mend the model, or leave these pairs out of the split."
            )
        return predictions

    def has_lists(self, model: Any) -> bool:
        """Tell whether there are users to make lists for, and a model can make them."""
        answers = self.name in getattr(model, "tasks", (self.name,))
        return len(self.users) > 0 and hasattr(model, "recommend") and answers

    def lists(self, model: Any, k: int) -> np.ndarray:
        """Ask a model for lists: rows among `candidates`, -1 where a list ends early."""
        ids = np.full((len(self.users), k), -1, np.int64)
        if not len(self.users):
            return ids
        options = _options(model.recommend)
        table = model.recommend(
            self.users, k=k, items=self.candidates.ids, exclude=self.exclude, **options
        )
        if not isinstance(table, pa.Table):
            table = pa.Table.from_pandas(table, preserve_index=False)
        own = getattr(model, "columns_", USUAL)
        user = IdMap(self.users).rows(table.column(own.user_id))
        item = self.candidates.rows(table.column(own.item_id))
        rank = table.column("rank").to_numpy()
        if (user < 0).any() or (item < 0).any() or (rank < 1).any() or (rank > k).any():
            raise InputError(
                "recommend gave users or items that were not asked for, or ranks outside 1..k"
            )
        ids[user, rank - 1] = item
        return ids

    def hits(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Say which places of lists hold a relevant item, and how many each user has."""
        return metrics.hits(ids, self.relevant), np.diff(self.relevant.indptr)

    def ndcg(self, ids: np.ndarray) -> np.ndarray:
        """Return the NDCG of each user's list."""
        return metrics.ndcg_at_k(*self.hits(ids))


def tasks_of(
    split: ColdStartSplit, threshold: float, max_users: int, random_state: int
) -> Iterator[Task]:
    """Give the four tasks of a split; refuse test ratings that are in the training set too."""
    parts = split.tasks()
    for name, ratings in parts.items():
        _refuse_overlap(name, ratings, split.train)
    kept = split.train.items.union(parts["warm"].items).union(parts["new_users"].items)
    held_out = parts["new_items"].items.union(parts["new_both"].items)
    for name, ratings in parts.items():
        candidates = kept if name in ("warm", "new_users") else held_out
        exclude = split.train if name == "warm" else None
        yield Task.of(name, ratings, candidates, exclude, threshold, max_users, random_state)


def as_model(model: Any, caller: str) -> Any:
    """Return a model, loaded if it is given by its directory; refuse what cannot be asked."""
    if isinstance(model, str | os.PathLike):
        from simrec.model.two_tower import TwoTower

        return TwoTower.load(model)
    is_class = isinstance(model, type)
    if is_class or not (hasattr(model, "predict") or hasattr(model, "recommend")):
        got = f"the class {model.__name__}; give a fitted one" if is_class else type(model).__name__
        raise InputError(
            f"{caller}: a model has predict(pairs) or recommend(users, k, items, exclude), or is "
            f"the path of a saved one; got {got}."
        )
    return model


def has_ratings(train: Ratings) -> bool:
    """Tell ratings from interactions, which have none or all the same value."""
    return train.has_ratings and bool((train.values != train.values[:1]).any())


def predicts_ratings(model: Any) -> bool:
    """Tell whether a model's predictions are on the scale of ratings."""
    return hasattr(model, "predict") and "rating" in getattr(model, "parts_", ("rating",))


def liked_threshold(train: Ratings, threshold: float | None = None) -> float:
    """Return the rating from which an item is relevant: by default, from 55% of the way up.

    That is 4 of whole numbers from 1 to 5, and every interaction where there are no ratings.
    """
    if threshold is not None:
        return float(threshold)
    return liked_from((float(train.values.min()), float(train.values.max())))


def warn_about(model: Any, split: ColdStartSplit) -> None:
    """Log how many ids a model answers for as average ones, and if it has learned too much."""
    towers, n_train = getattr(model, "towers_", None), len(split.train)
    learned = 0 if towers is None else int(np.sum(towers.items.counts))
    if learned > n_train:
        told = "the model has learned %d ratings, the training part has %d: %s"
        logger.warning(told, learned, n_train, "it may have seen the answers")
    for side in ("users", "items"):
        known = getattr(model, f"{side}_", None)
        if not isinstance(known, IdMap):
            continue
        asked = getattr(split.train, side)
        for ratings in split.tasks().values():
            asked = asked.union(getattr(ratings, side))
        missing = int((~known.contains(asked.ids)).sum())
        if missing:
            told = (
                "%d of %d %s have neither ratings nor features: they are answered as average ones"
            )
            logger.warning(told, missing, len(asked), side)


def _options(method: Any) -> dict[str, str]:
    """Return the option that has a model answer unknown ids as average ones, if it has one."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return {}
    return {"unknown": "prior"} if "unknown" in parameters else {}


def _refuse_overlap(task: str, test: Ratings, train: Ratings) -> None:
    users = train.users.rows(test.users.ids)[test.user_rows]
    items = train.items.rows(test.items.ids)[test.item_rows]
    stored = train.user_rows.astype(np.int64) * train.n_items + train.item_rows
    known = (users >= 0) & (items >= 0)
    both = np.flatnonzero(known & np.isin(users * train.n_items + items, stored))
    if len(both):
        example = test.select(both[:1]).to_arrow().to_pylist()[0]
        raise InputError(
            f"{len(both)} of {len(test)} test ratings ({task}) are in the training set too, "
            f"the first is {example}. A model that has seen the answer is not tested: make the "
            "split with cold_start_split, or drop these rows from one of the two."
        )


def unfitted_copy(
    model: Any, random_state: int | None = None, ratings: Ratings | None = None, quiet: bool = False
) -> Any:
    """Make a model of the same settings that is yet to be fitted, with another seed if given.

    A model without bounds takes those of `ratings`, if given: all of them, where it is fitted to
    some. A `quiet` one shows no progress of its own.
    """
    if not hasattr(model, "get_params"):
        return copy.deepcopy(model)
    settings = dict(model.get_params())
    if random_state is not None and "random_state" in settings:
        settings["random_state"] = random_state
    if "keep_evidence" in settings:  # a copy is asked for intervals and learns later ratings
        settings["keep_evidence"] = True
    if quiet and "verbose" in settings:
        settings["verbose"] = 0
    if ratings is not None and ratings.has_ratings and settings.get("bounds", ()) is None:
        low, high = float(ratings.values.min()), float(ratings.values.max())
        settings["bounds"] = (low, high) if low < high else None
    return type(model)(**settings)


def check_tables(model: Any, tables: Sides[pa.Table | None]) -> None:
    """Refuse to train a copy of a model without the features that the model was trained with."""
    for side, tower in model.towers_.named():
        if tower.encoder is not None and tables[side] is None:
            raise InputError(
                f"the model was trained with features of {side}, and a copy of it has to be "
                f"trained to test it: give the table with --{side}."
            )


def fitted_copy(fresh: Any, model: Any, train: Ratings, tables: Sides[pa.Table | None]) -> Any:
    """Fit an unfitted copy of a model; a table that the model was not trained with is left out."""
    used = model.towers_.map(lambda tower, table: tower.encoder and table, tables)
    return fresh.fit(train, items=used.items, users=used.users)
