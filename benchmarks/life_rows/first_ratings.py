"""Rows on first ratings in lists: new items and users, beside a retrained model."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from _lists import Task

from simrec import Ratings, TwoTower
from simrec.data.ids import IdMap
from simrec.data.split import ColdStartSplit
from simrec.scoring.metrics import hits, ndcg_at_k

Row = tuple[str, float, str]
GIVEN = (0, 1, 2, 3, 5, 10, 20, None)  # ratings of each new entity; None for all
_K = 10


@dataclass(frozen=True)
class Found:
    """What lists are after some ratings: NDCG@10 of each user by task, and share of places."""

    ndcg: dict[str, np.ndarray]
    share: float


class FirstRatings:
    """Ratings of new entities, a third of them to be found, the others given one after another.

    New items are given ratings of known users and new users those of known items, both at once.
    Lists of known users are made of the new items alone and of all items, those of new users of
    the known items.
    """

    def __init__(self, split: ColdStartSplit, liked: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.train = split.train
        self.given, self.hidden, self.rank = {}, {}, {}
        for side in ("items", "users"):
            ratings = getattr(split, f"new_{side}")
            rows = ratings.item_rows if side == "items" else ratings.user_rows
            hidden = rng.random(len(ratings)) < 1 / 3
            self.hidden[side] = ratings.select(hidden & (ratings.values >= liked))
            self.given[side] = ratings.select(~hidden)
            self.rank[side] = _order_within(rows[~hidden], rng)
        self.new_items = split.new_items.items
        warm = split.warm.select(split.warm.values >= liked)
        # Of all items as large a share of the pairs is to be found: a ninth of those given.
        some = self.hidden["items"].select(rng.random(len(self.hidden["items"])) < 2 / 9)
        self.all_hits = Ratings.from_arrow(pa.concat_tables([warm.to_arrow(), some.to_arrow()]))

    def after(self, n: int | None) -> Ratings | None:
        """Give the first n ratings of each new entity; None where there are none."""
        tables = []
        for side in ("items", "users"):
            first = self.rank[side] < (n if n is not None else np.inf)
            tables.append(self.given[side].select(first).to_arrow())
        table = pa.concat_tables(tables)
        return self.rated(table) if len(table) else None

    def with_given(self, given: Ratings) -> Ratings:
        """Give the training ratings and these."""
        return self.rated(pa.concat_tables([self.train.to_arrow(), given.to_arrow()]))

    def rated(self, table: pa.Table) -> Ratings:
        """Give a table as ratings, or as pairs where training has no ratings."""
        return Ratings.from_arrow(table, rating="rating" if self.train.has_ratings else None)

    def measure(self, model: TwoTower, given: Ratings | None) -> Found:
        """Make all lists with a model that knows what is given."""
        known, items = self.train.users, self.train.items
        had = [r.to_arrow().select(["user_id", "item_id"]) for r in (self.train, given) if r]
        seen = Ratings.from_arrow(pa.concat_tables(had), rating=None)
        everything = items.union(self.new_items)
        new_users = self.hidden["users"].users
        tasks = {
            "new items": Task.of(self.hidden["items"], known, self.new_items, exclude=seen),
            "all items": Task.of(self.all_hits, known, everything, exclude=seen),
            "new users": Task.of(self.hidden["users"], new_users, items, exclude=seen),
        }
        ndcg, share = {}, 0.0
        for name, task in tasks.items():
            best = _lists(model, task)
            ndcg[name] = ndcg_at_k(hits(best, task.relevant), np.diff(task.relevant.indptr))
            if name == "all items":
                share = float(self.new_items.contains(task.items.take(best[best >= 0])).mean())
        return Found(ndcg, share)


def first_rating_rows(
    model: TwoTower,
    refit: Callable[[Ratings], TwoTower],
    split: ColdStartSplit,
    liked: float,
    seed: int,
) -> Iterator[Row]:
    """Give first ratings, fold them in and retrain with them.

    From five ratings on folding in is to reach 90% of retraining, and new items to take within 10%
    of as many places; no cell is to be worse than the one before it by more than two standard
    errors over users.
    """
    first = FirstRatings(split, liked, seed)
    before: Found | None = None
    for n in GIVEN:
        given = first.after(n)
        folded = model if given is None else copy.copy(model).fold_in(given)
        found = first.measure(folded, given)
        again = found
        if given is not None:
            again = first.measure(refit(first.with_given(given)), given)
        what = f"{'all' if n is None else n} ratings"
        bar = ">= 0.9" if n is None or n >= 5 else "-"
        yield f"share of list places of new items, {what}: folded in", found.share, "-"
        yield f"share of list places of new items, {what}: retrained", again.share, "as folded in"
        for task, values in found.ndcg.items():
            mean, there = values.mean(), again.ndcg[task].mean()
            yield f"NDCG@10 of {task}, {what}: folded in", mean, "-"
            yield f"NDCG@10 of {task}, {what}: retrained", there, "-"
            yield f"NDCG@10 of {task}, {what}: folded in / retrained", mean / there, bar
            if before is not None:
                change = values - before.ndcg[task]
                error = max(change.std() / np.sqrt(len(change)), 1e-12)
                claim = f"NDCG@10 of {task}, {what}: change from before, in standard errors"
                yield claim, change.mean() / error, ">= -2"
        before = found


def _order_within(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give the ratings of each entity numbers in random order."""
    order = np.lexsort((rng.random(len(rows)), rows))
    starts = np.r_[0, np.flatnonzero(np.diff(rows[order])) + 1]
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
    return rank


def _lists(model: TwoTower, task: Task) -> np.ndarray:
    candidates: IdMap = task.items
    found = model.recommend(
        task.users.ids,
        k=_K,
        items=candidates.ids,
        exclude=task.exclude,
        unknown="prior",
        output="arrow",
    )
    best = np.full((len(task.users), _K), -1)
    ranks = found["rank"].to_numpy() - 1
    best[task.users.rows(found["user_id"]), ranks] = candidates.rows(found["item_id"])
    return best
