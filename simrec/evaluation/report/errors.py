"""Errors of the tested copy: by task, by popularity of the item, by groups of a feature."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.evaluation.baselines import BiasBaseline
from simrec.evaluation.evaluate import evaluate
from simrec.evaluation.metrics import rmse
from simrec.evaluation.report.levels import levels
from simrec.evaluation.report.subject import Subject, liked_from

if TYPE_CHECKING:
    import pandas as pd

# Groups of fewer test ratings say too little.
_LEAST = 50


class Popularity:
    """Recommend what most people liked; of items nobody has rated, any."""

    def __init__(self, train: Ratings, threshold: float, seed: int) -> None:
        good = train.values >= threshold
        self._items = train.items
        self._counts = np.bincount(train.item_rows[good], minlength=train.n_items)
        self._rng = np.random.default_rng(seed)
        self.objective = "ranking"

    def predict(self, pairs: pa.Table) -> np.ndarray:
        """Predict nothing: a popularity is no rating."""
        return np.full(pairs.num_rows, np.nan, np.float32)

    def recommend(
        self, users: pa.Array, k: int, items: pa.Array, exclude: Ratings | None = None
    ) -> pa.Table:
        """Give the k most popular of `items` to each user, without those they rated."""
        rows = self._items.rows(items)
        counts = np.where(rows >= 0, self._counts[rows], 0) + self._rng.random(len(items))
        order = np.argsort(-counts)
        by_user: dict[int, Any] = {}
        if exclude is not None:
            known, seen = exclude.users.rows(users), exclude.to_csr()
            places = IdMap.from_values(items).rows(exclude.items.ids)
            by_user = {n: places[seen[r].indices] for n, r in enumerate(known) if r >= 0}
        chosen = []
        for number in range(len(users)):
            # Enough to have k left when all that was rated is out.
            skip = by_user.get(number, ())
            head = order[: k + len(skip)]
            chosen.append(head[~np.isin(head, skip)][:k])
        lengths = [len(c) for c in chosen]
        flat = np.concatenate(chosen)
        return pa.table(
            {
                "user_id": users.take(pa.array(np.repeat(np.arange(len(users)), lengths))),
                "item_id": items.take(pa.array(flat)),
                "rank": np.concatenate([np.arange(1, n + 1) for n in lengths]),
            }
        )


def four_tasks(subject: Subject, k: int = 10) -> "pd.DataFrame":
    """Evaluate the copy, with popularity's rankings beside its own (``ndcg_popular``)."""
    threshold = liked_from(subject)
    options: dict[str, Any] = {"k": k, "threshold": threshold, "random_state": subject.seed}
    table = evaluate(subject.tested, subject.split, unknown="prior", **options)
    popular = Popularity(subject.split.train, threshold, subject.seed)
    table["ndcg_popular"] = evaluate(popular, subject.split, **options)[f"ndcg@{k}"]
    return table


def by_popularity(subject: Subject, bins: int = 10) -> "pd.DataFrame":
    """Give errors of held-out ratings of known items, by how often the item was rated.

    Returns
    -------
    pandas.DataFrame
        A row for each tenth of the items, least rated first: ratings_from and ratings_to (training
        ratings of its items), n, rmse, rmse_bias; and a last one for new items (0 ratings).
    """
    import pandas as pd

    split = subject.split
    counts = np.bincount(split.train.item_rows, minlength=split.train.n_items)
    # Ties are broken by row, so that all tenths are equally large.
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    tenth = rank * bins // max(len(counts), 1)
    answers = _answers(subject, split.warm)
    item = split.train.items.rows(split.warm.items.ids)[split.warm.item_rows]
    rows = []
    for number in range(bins):
        members = counts[tenth == number]
        inside = (item >= 0) & (tenth[item] == number)
        if len(members) and inside.any():
            ends = {"ratings_from": int(members.min()), "ratings_to": int(members.max())}
            rows.append({**ends, **_errors(answers, inside)})
    if len(split.new_items):
        new = _answers(subject, split.new_items)
        everything = np.ones(len(split.new_items), bool)
        rows.append({"ratings_from": 0, "ratings_to": 0, **_errors(new, everything)})
    return pd.DataFrame(rows)


def by_feature(subject: Subject) -> "pd.DataFrame":
    """Give errors on held-out items and users by groups of each of their features.

    Returns
    -------
    pandas.DataFrame
        side, column, level, n, rmse, rmse_bias, lean (mean of prediction minus rating); columns
        whose groups differ most come first.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for side in ("item", "user"):
        table, ratings, encoder = subject.table(side), subject.new(side), subject.encoder(side)
        if table is None or encoder is None or not len(ratings):
            continue
        answers = _answers(subject, ratings)
        ids, of_rating = (
            (ratings.items, ratings.item_rows)
            if side == "item"
            else (ratings.users, ratings.user_rows)
        )
        places = IdMap.from_values(table[f"{side}_id"])
        order = np.argsort(places.rows(table[f"{side}_id"]))
        found = places.rows(ids.ids)
        row_of = np.where(found >= 0, order[found], -1)[of_rating]
        for column, kind in encoder.columns_.items():
            some = []
            for level, mask in levels(table[column], kind).items():
                inside = (row_of >= 0) & mask[row_of]
                if inside.sum() >= _LEAST:
                    label = {"side": side, "column": column, "level": level}
                    some.append({**label, **_errors(answers, inside)})
            if len(some) > 1:
                sizes, found_errors = ([r[key] for r in some] for key in ("n", "rmse"))
                middle = np.average(found_errors, weights=sizes)
                spread = np.average((np.array(found_errors) - middle) ** 2, weights=sizes)
                rows += [{**r, "spread": spread} for r in some]
    made = pd.DataFrame(rows)
    if len(made):
        made = made.sort_values("spread", ascending=False, kind="stable").drop(columns="spread")
    return made.reset_index(drop=True)


def _answers(subject: Subject, ratings: Ratings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give ratings, predictions, and predictions of the biases."""
    pairs = ratings.to_arrow().select(["user_id", "item_id"])
    predicted = subject.tested.predict(pairs, unknown="prior")
    return ratings.values, predicted, BiasBaseline.fit(subject.split.train).predict(ratings)


def _errors(answers: tuple[np.ndarray, ...], inside: np.ndarray) -> dict[str, Any]:
    values, predicted, bias = (answer[inside] for answer in answers)
    return {
        "n": int(inside.sum()),
        "rmse": rmse(values, predicted),
        "rmse_bias": rmse(values, bias),
        "lean": float(np.mean(predicted - values)),
    }
