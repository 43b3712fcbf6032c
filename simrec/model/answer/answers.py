"""The answers of a fitted `TwoTower`: predictions, vectors, neighbours, explanations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.ratings import Ratings
from simrec.data.sides import SINGULAR, Side, Sides
from simrec.data.tables import TableKind, TableLike
from simrec.errors import InputError
from simrec.model.answer.lists import ListAnswers, check_k
from simrec.model.answer.recommend import choose
from simrec.model.answer.similar import Liked, similar
from simrec.model.head import Found
from simrec.model.params import RankBy
from simrec.model.part import Entity, Part
from simrec.model.prepare import read_pairs, read_ratings
from simrec.model.tower import Tower, Unknown
from simrec.scoring.metrics import rmse
from simrec.scoring.pairs import Parts, score_pairs, shares


class Answers(ListAnswers):
    """Everything that asks a fitted model and leaves it as it is."""

    def predict(
        self,
        pairs: Any,
        item_id: Any = None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        unknown: Unknown = "error",
        return_std: bool = False,
    ) -> Any:
        """Predict the ratings of pairs; without ratings in training, the probability of uptake.

        Parameters
        ----------
        pairs : table, path or Ratings; or an id, or ids
            Columns user_id and item_id; or a user or several, with `item_id`.
        item_id : id or ids, optional
            The items, where `pairs` are users: as many, or one for all.
        items, users : table or path, optional
            Features of ids the model does not know.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features: refuse, or answer for an
            average item or user.
        return_std : bool
            Whether to return a standard deviation for each prediction: that of the rating around
            it, with the noise of ratings, larger the less is known of item and user.

        Returns
        -------
        numpy.ndarray, or two of them
            A float32 for each pair, within the bounds; with `return_std` the predictions and their
            standard deviations.

        Examples
        --------
        >>> model.predict(split.warm).shape, model.predict(7, [17, 24, 1]).shape
        ((254,), (3,))
        >>> mean, std = model.predict(split.warm, return_std=True)
        >>> model.predict([7, 8], [17, 999], unknown="prior").dtype
        dtype('float32')
        """
        self._check_fitted()
        table = read_pairs(pairs, item_id, self.columns_)
        tables = Sides(items, users)

        def find(side: Side) -> Found:
            ids = table[f"{SINGULAR[side]}_id"]
            return self.towers_[side].find(ids, tables[side], unknown)

        found = Sides.of(find)
        scores, std = self._predicted(found, "return_std" if return_std else "")
        return (scores, std) if return_std else scores

    def _predicted(
        self, found: Sides[Found], asked: str = ""
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Predict pairs that were looked up, with deviations where an option has asked for them."""
        part = self.predictor()
        vectors = part.heads.map(lambda head, where: head.gathered(where), found)
        z = score_pairs(vectors.users[0], vectors.items[0], vectors.users[1], vectors.items[1])
        if not asked:
            return part.output(z), None
        rating = self._rating(asked)

        def variance(side: Side) -> np.ndarray:
            return rating.variance(side, found[side], self.towers_[side].counts, asked)

        return part.output(z), rating.std(z, variance("users") + variance("items"), asked)

    def score(
        self,
        ratings: Ratings | TableLike,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> float:
        """Return how well the model predicts ratings, as one number; `evaluate` says more.

        Parameters
        ----------
        ratings : Ratings, table or path
            Ratings that the model was not fitted to. Ids of which nothing is known are predicted as
            average ones.
        items, users : table or path, optional
            Features of ids the model does not know.

        Returns
        -------
        float
            The share of the variance that is explained (R^2): 1 at best, 0 for the mean, NaN where
            all ratings are alike.

        Examples
        --------
        >>> 0 < model.score(split.warm) < 1
        True
        """
        self._check_fitted()
        given = read_ratings(ratings, None, self.columns_)
        if "rating" not in self.parts_ or not given.has_ratings:
            raise InputError("score: needs ratings; `evaluate` measures lists.")
        found = self.predict(given, items=items, users=users, unknown="prior")
        spread = float(given.values.std(dtype=np.float64))
        return 1 - (rmse(given.values, found) / spread) ** 2 if spread else float("nan")

    def embed_items(
        self, items: Any = None, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the vectors of items, all known ones by default: columns item_id and vector.

        >>> model.embed_items().columns.tolist(), len(model.embed_items())
        (['item_id', 'vector'], 100)
        """
        return self._returned(self._embed("items", items, rank_by), output)

    def embed_users(
        self, users: Any = None, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the vectors of users, all known ones by default: columns user_id and vector.

        >>> len(model.embed_users([7, 8], rank_by="rating"))
        2
        """
        return self._returned(self._embed("users", users, rank_by), output)

    def explain(
        self,
        user_id: Any,
        item_id: Any,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        rank_by: RankBy | None = None,
        unknown: Unknown = "error",
        output: TableKind = "pandas",
    ) -> Any:
        """Return what adds how much to the score of a user and an item.

        A part of the user and a part of the item that act together share their product equally.

        Parameters
        ----------
        user_id, item_id : id
            The pair.
        items, users : table or path, optional
            Features of an id the model does not know.
        rank_by : {"both", "rating", "uptake"}, optional
            Which score to explain; by default that of `predict`.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return.

        Returns
        -------
        pandas.DataFrame or other table
            A row for the mean and for each part of the item and of the user: side, feature, value,
            bias (what it adds for any partner), taste (what it adds for this one) and
            contribution, their sum. Contributions sum to the score before its output. Where the
            user's history or a column of vectors adds to it, the value names up to three items that
            the user liked (without ratings: took up) and that are nearest to this one.

        Examples
        --------
        >>> why = model.explain(7, 17)
        >>> why.columns.tolist()
        ['side', 'feature', 'value', 'bias', 'taste', 'contribution']
        >>> bool(abs(why["contribution"].sum() - model.predict(7, 17)[0]) < 1e-4)
        True
        """
        self._check_fitted()
        predictor = self.predictor()
        parts = {predictor.name: predictor} if rank_by is None else self._parts(rank_by)
        ids, tables = Sides(item_id, user_id), Sides(items, users)
        found = Sides.of(lambda side: self.towers_[side].find([ids[side]], tables[side], unknown))
        entities = self.towers_.map(_entity, found)
        did = "liked" if "rating" in self.parts_ else "took up"
        liked = Liked(
            self.towers_,
            entities,
            self.liked_rows(entities.users.row),
            did,
            predictor,
            predictor.heads.items.of(found.items)[0],
        )
        rows: dict[tuple[str, str], np.ndarray] = {}
        values: dict[tuple[str, str], tuple[float, str]] = {}  # of the larger piece
        known = Sides.of(lambda side: found[side].of_all(self.blended_by(side)))
        for name, part in parts.items():

            def apart(side: Side, part: Part = part, name: str = name) -> Parts:
                entity, head = entities[side], part.heads[side]
                vector = head.of(found[side])[0]
                pieces = part.explained(entity, vector)
                if rank_by != "both":
                    return pieces
                factors = self.blend_.of(name, side, known[side])[0]
                scaled = pieces.vectors * factors
                return replace(pieces, vectors=scaled, constant=pieces.constant * factors)

            pieces = Sides.of(apart)
            if not pieces.items.vectors.any():
                continue
            prefix = "" if len(parts) == 1 else f"{part.name}: "
            if rank_by != "both":
                rows["model", "mean"] = np.array([part.output.shift, 0.0])
            for side, mine in pieces.named():
                both = np.stack(shares(mine, pieces.other(side)), axis=1)
                partner = pieces.other(side).vectors.sum(0)  # without what lets biases through
                for i in np.argsort(-np.abs(both.sum(1)), kind="stable"):
                    what, adds = mine.names[i], both[i].sum() > 0
                    encoder = part.heads[side].encoder
                    value = liked.value(side, what, mine.values[i], adds, encoder, partner)
                    key, size = (SINGULAR[side], f"{prefix}{what}"), float(abs(both[i].sum()))
                    values[key] = max(values.get(key, (-1.0, "")), (size, value))
                    rows[key] = rows.get(key, 0.0) + both[i]  # uptake has weights for cold and warm
        names = ("side", "feature", "value", "bias", "taste")
        pieces_of = ((*k, values.get(k, (0, ""))[1], *map(float, one)) for k, one in rows.items())
        columns = list(zip(*pieces_of, strict=True)) or [()] * len(names)  # nothing adds anything
        types = [*[pa.string()] * 3, *[pa.float64()] * 2]
        arrays = [pa.array(one, kind) for one, kind in zip(columns, types, strict=True)]
        table = pa.table(arrays, names)
        total = pc.add(table["bias"], table["taste"])
        return self._returned(table.append_column("contribution", total), output)

    def similar_items(
        self, item: Any, k: int = 10, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return neighbours of an item, by correlation of predicted scores.

        Parameters
        ----------
        item : id, ids, mapping or table
            Ids the model knows, or the features of one item.
        k : int
            How many for each.
        rank_by : {"both", "rating", "uptake"}
            Which scores to compare; "both" for those of `predict`.
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return.

        Returns
        -------
        pandas.DataFrame or other table
            Columns item_id, similarity (from -1 to 1: the correlation of the scores that users
            give to both) and rank; for several items also for_item_id.

        Examples
        --------
        >>> model.similar_items(17, k=2).columns.tolist()
        ['item_id', 'similarity', 'rank']
        """
        return self._returned(self._similar("items", item, k, rank_by), output)

    def similar_users(
        self, user: Any, k: int = 10, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return neighbours of a user; see `similar_items`.

        >>> len(model.similar_users(7, k=3))
        3
        """
        return self._returned(self._similar("users", user, k, rank_by), output)

    def _similar(self, side: Side, entity: Any, k: int, rank_by: RankBy) -> pa.Table:
        """Compare by one component: for "both", that of `predict`."""
        self._check_fitted()
        part = self.predictor() if rank_by == "both" else self._parts(rank_by)[rank_by]
        return similar(side, self.towers_, part, entity, check_k(k))

    def liked_rows(self, user: int) -> np.ndarray:
        """Return the rows of the items that a user, by row, liked; without ratings, took up.

        None where that is not kept (``keep_evidence=False``), and of a user without a row.

        >>> set(model.liked_rows(0)) <= set(model.rated_[[0]].indices)
        True
        """
        matrix = self.liked_ if "rating" in self.parts_ else self.rated_
        if matrix is None or not 0 <= user < matrix.shape[0]:
            return np.empty(0, np.int64)
        return np.unique(matrix[np.array([user])].indices)

    def _embed(self, side: Side, given: Any, rank_by: RankBy) -> pa.Table:
        self._check_fitted()
        tower = self.towers_[side]
        ids, found = choose(tower, given, "error")
        vectors = self.ranking(rank_by)[0][side].of(found)
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return pa.table({tower.id_column: ids, "vector": lists})


def _entity(tower: Tower, found: Found) -> Entity:
    """Return what is known of the one entity that was found."""
    row = int(found.rows[0])
    if row < found.n_known:
        features = tower.features[row]
        return Entity(tower.side, row, int(tower.counts[row]), features, tower.encoder)
    new = None if found.average[0] or found.fresh is None else found.fresh[row - found.n_known]
    return Entity(tower.side, -1, 0, new, tower.encoder)
