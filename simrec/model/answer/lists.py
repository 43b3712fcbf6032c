"""The lists of a fitted `TwoTower`: items for users, users for an item, questions to a newcomer."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.data.tables import TableKind, TableLike, is_table
from simrec.errors import InputError, is_number, is_whole
from simrec.model.answer import recommend as rank
from simrec.model.answer.rerank import Rerank, directions
from simrec.model.answer.where import Where, matches
from simrec.model.fitted import FittedModel
from simrec.model.head import Found
from simrec.model.params import RankBy
from simrec.model.tower import Unknown

# Items, at most, that are chosen from to ask anybody: those with most ratings.
_ASKED = 5_000


def check_k(k: Any, name: str = "k") -> int:
    """Return a number of results; InputError unless it is a whole number from 1 on."""
    if not is_whole(k, 1):
        raise InputError(f"{name} must be a whole number from 1 on, got {k!r}.")
    return int(k)


class ListAnswers(FittedModel):
    """Rankings of a fitted model, which leave it as it is."""

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        items: Any = None,
        new_items_only: bool = False,
        exclude: Ratings | TableLike | Literal["rated"] | None = "rated",
        rank_by: RankBy = "both",
        unknown: Unknown = "error",
        explore: float = 0.0,
        where: Where | None = None,
        at_most: Mapping[str, int] | None = None,
        diversity: float = 0.0,
        sample: int | None = None,
        output: TableKind = "pandas",
    ) -> Any:
        """Recommend the k best items to each user.

        Parameters
        ----------
        users : id, ids, table or path, optional
            For whom: ids, or a table with user_id and, for new users, their features. All users
            the model knows by default.
        k : int
            How many for each; fewer, or none, where there are not as many candidates.
        items : id, ids, table or path, optional
            The candidates, likewise. All items the model knows by default.
        new_items_only : bool
            Whether to recommend only candidates without any ratings.
        exclude : "rated", None, Ratings, table or path
            What is not to be recommended: what a user has rated, nothing, or what a user has rated
            and the pairs of a table (user_id, item_id).
        rank_by : {"both", "rating", "uptake"}
            Rank by the blend of all components, by the predicted rating, or by uptake alone.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        explore : float
            Rank by score + explore * posterior standard deviation of the item, an upper confidence
            bound, so that new items get a chance.
        where : mapping, optional
            A predicate over columns of `items`, where it is a table, and of `catalogue_`, such as
            ``{"year": {">=": 1990}, "genres": {"contains": "War"}}``; see
            `simrec.model.answer.where`.
        at_most : mapping of str to int, optional
            How many of one value of a column a list may have, such as ``{"studio": 2}``.
        diversity : float
            From 0 (the best by score) to 1: how much to prefer items unlike those higher up, chosen
            one by one among the best ten times k (maximal marginal relevance).
        sample : int, optional
            Seed with which to rank by a draw from the posteriors of the items, with deviations
            `explore` times as large (Thompson sampling). Adds a column `propensity`, the
            probability of an item to be in the list, for `off_policy`.
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return: a frame of pandas or Polars, an Arrow table or a relation of DuckDB.

        Returns
        -------
        pandas.DataFrame or other table
            Columns user_id and item_id (under the names that the model was trained with), score
            and rank (from 1), users in the order given; of equal scores, items likewise. The score
            is the weighted sum of all components, which has no unit; with `rank_by` the predicted
            rating before its output (not confined to the bounds; with a sigmoid, its logit) or the
            logit of uptake. It does not contain what `explore` adds.

        Examples
        --------
        >>> model.recommend(7, k=2).columns.tolist()
        ['user_id', 'item_id', 'score', 'rank']
        >>> recent = model.recommend(7, where={"year": {">": 2000}}, at_most={"studio": 1})
        >>> recent["rank"].tolist() == list(range(1, len(recent) + 1))
        True
        >>> model.recommend(7, explore=1.0, sample=0)["propensity"].between(0, 1).all()
        np.True_
        """
        self._check_fitted()
        check_k(k)
        table = None
        if is_table(items) and (where is not None or at_most):
            table = items = self.towers_.items.read(items)[0]
        given = Sides(items, users)
        chosen = Sides.of(lambda side: rank.choose(self.towers_[side], given[side], unknown))
        described = None
        if where is not None or at_most:
            described = rank.attributes(self.towers_.items, chosen.items[1], table)
        keep = np.ones(len(chosen.items[0]), bool)
        if new_items_only:
            keep = chosen.items[1].of_all(self.towers_.items.counts) == 0
        if where is not None and described is not None:
            keep &= matches(where, described)
        if not keep.all():
            chosen = Sides(rank.only(*chosen.items, keep), chosen.users)
            described = None if described is None else described.filter(pa.array(keep))
        seen = None
        if exclude is not None:
            more = None if isinstance(exclude, str) and exclude == "rated" else exclude
            seen = rank.exclusions(chosen, self.rated_, more, self.columns_)
        if explore and rank_by == "uptake":
            raise InputError("explore: ratings are explored, not uptake; rank by both or rating.")
        bonus = self.exploration(chosen.items[1], explore)
        heads, shift = self.ranking(rank_by)
        k = max(1, min(int(k), len(chosen.items[0])))  # before memory is taken for it
        found, whole = chosen.items[1], self.whole

        def directions_of(rows: np.ndarray) -> np.ndarray:
            unit = whole._kept("directions", lambda: directions(whole.predictor(), whole.towers_))
            return unit(found.take(rows))

        rerank = Rerank.of(at_most, described, diversity, sample, explore, directions_of)
        return self._returned(rank.recommend(chosen, heads, k, seen, bonus, shift, rerank), output)

    def audience(
        self,
        items: Any,
        k: int = 10,
        *,
        users: Any = None,
        exclude: Literal["rated"] | None = "rated",
        rank_by: RankBy = "both",
        reach: int | None = 10,
        reach_users: int = 10_000,
        unknown: Unknown = "error",
        output: TableKind = "pandas",
    ) -> Any:
        """Return the users for whom items add most: whom to tell of a new item.

        Parameters
        ----------
        items : id, ids, table or path
            The items; with their features, where they are new.
        k : int
            How many users for each.
        users : id, ids, table or path, optional
            Whom to choose from. All users the model knows by default.
        exclude : "rated" or None
            Whether to leave out those who have rated an item.
        rank_by : {"both", "rating", "uptake"}
            Which score to go by; see `recommend`.
        reach : int, optional
            Count the users who would have an item among so many best; None for no such column.
        reach_users : int
            Users it is counted on, at most: every n-th, each counted n times.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return.

        Returns
        -------
        pandas.DataFrame or other table
            Columns item_id, user_id, lift (the score less the user's mean over all items; by
            the blend, in standard deviations of the user's scores), score, rank and reach.

        Examples
        --------
        >>> best = model.audience({"item_id": 999, "year": 2020, "genres": ["Drama"]}, k=3)
        >>> best.columns.tolist()
        ['item_id', 'user_id', 'lift', 'score', 'rank', 'reach']
        """
        self._check_fitted()
        check_k(k)
        if exclude not in ("rated", None):
            raise InputError(f"exclude must be 'rated' or None, got {exclude!r}.")
        given = Sides(items, users)
        chosen = Sides.of(lambda side: rank.choose(self.towers_[side], given[side], unknown))
        heads, shift = self.ranking(rank_by)
        level = self._kept(
            f"level {rank_by}",
            lambda: rank.Level.of(np.asarray(heads.items.vectors), in_units=rank_by != "both"),
        )
        reached = None
        if reach is not None:
            found = chosen.items[1]
            at = self._kept(
                f"thresholds {rank_by} {check_k(reach, 'reach')} {check_k(reach_users)}",
                lambda: rank.thresholds(heads, self.towers_.users, self.rated_, reach, reach_users),
            )
            reached = at.reach(heads.items.of(found), found.known_rows)
        rated = None if exclude is None else self.rated_
        table = rank.audience(chosen, heads, shift, level, int(k), rated, reached)
        return self._returned(table, output)

    def ask(
        self,
        user: Any = None,
        k: int = 5,
        *,
        items: Any = None,
        popularity: bool = True,
        output: TableKind = "pandas",
    ) -> Any:
        """Return the items whose ratings by a user would tell most of what else they like.

        Parameters
        ----------
        user : id, optional
            The user; somebody of whom nothing is known by default.
        k : int
            How many items.
        items : id, ids, table or path, optional
            What to choose from. All rated items by default.
        popularity : bool
            Whether an item counts by the share of users who have rated it: the chance that this
            one knows it. False where `items` are known to the user.
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return.

        Returns
        -------
        pandas.DataFrame or other table
            Columns item_id, gain (the share of the variance of the user's scores of these items
            that a rating takes away, after those above) and rank.

        Examples
        --------
        >>> model.ask(k=3).columns.tolist()
        ['item_id', 'gain', 'rank']
        """
        self._check_fitted()
        check_k(k)
        whole, tower, rated = self.whole, self.towers_.items, np.empty(0, np.int64)
        if user is not None:
            found = self.towers_.users.find([user], None, "prior")
            rated = self.rated_[found.rows[found.known]].indices
        ids, chosen = rank.choose(tower, items, "error")
        keep = (chosen.of_all(tower.counts) > 0) & ~np.isin(chosen.rows, rated)
        ids, chosen = rank.only(ids, chosen, keep)
        n_users = max(int((np.asarray(whole.towers_.users.counts) > 0).sum()), 1)
        chances = np.ones(len(chosen.rows))
        if popularity:
            chances = np.minimum(np.asarray(tower.counts[chosen.rows]) / n_users, 1)
            if len(chances) > _ASKED:  # a rare item is worth no question
                keep = chances >= np.partition(chances, -_ASKED)[-_ASKED]
                (ids, chosen), chances = rank.only(ids, chosen, keep), chances[keep]
        units = whole._kept(
            "ask",
            lambda: [
                directions(whole.parts_[name], whole.towers_)
                for name in ("rating", "uptake")
                if name in whole.parts_
            ],
        )
        vectors = [
            np.hstack([unit(some) for unit in units]) / np.sqrt(len(units))
            for some in (chosen, tower.known(rated))
        ]
        places, gain = rank.questions(vectors[0], vectors[1], chances, int(k))
        table = {
            "item_id": ids.take(pa.array(places)),
            "gain": gain,
            "rank": np.arange(1, len(places) + 1, dtype=np.int32),
        }
        return self._returned(pa.table(table), output)

    def exploration(self, items: Found, explore: float) -> np.ndarray | None:
        """Return explore * posterior standard deviation of items; None where it is 0.

        >>> model.exploration(model.towers_.items.everyone(), 1.0).shape
        (100,)
        """
        if not is_number(explore) or not 0 <= explore < np.inf:
            raise InputError(f"explore must be a number from 0 on, got {explore!r}.")
        if not explore:
            return None
        rating = self._rating("explore")
        variance = rating.variance("items", items, self.towers_.items.counts, "explore")
        return (explore * np.sqrt(variance)).astype(np.float32)
