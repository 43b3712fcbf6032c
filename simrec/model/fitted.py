"""What a fitted `TwoTower` consists of: towers, parts, and a model directory to keep them in."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.data.sides import SINGULAR, Columns, Side, Sides
from simrec.data.tables import TableKind, TableLike, returned
from simrec.errors import InputError
from simrec.model import files
from simrec.model.catalogue import titles
from simrec.model.head import Head, JoinedHead
from simrec.model.lists.blend import NEW, Blend
from simrec.model.lists.uptake import UptakePart
from simrec.model.params import RankBy
from simrec.model.part import Part
from simrec.model.rating.part import RatingPart
from simrec.model.tower import Tower, Unknown
from simrec.simec.options import Params
from simrec.storage.arrays import Array, Sparse

if TYPE_CHECKING:
    from simrec.model.export.formats import Format
    from simrec.simec.simec import SimEc

T = TypeVar("T")


class FittedModel(Params):
    """The attributes of a fitted model; `TwoTower` describes them."""

    towers_: Sides[Tower]
    columns_: Columns
    parts_: dict[str, Part]
    rated_: Sparse
    liked_: Sparse | None
    blend_: Blend
    history_: list[dict[str, float]]
    chosen_: dict[str, Any]
    schema_: dict[str, dict[str, str]]
    model_id_: str | None
    parent_: str | None
    updates_: list[dict[str, Any]]
    _whole: Self
    _made: tuple[dict[str, Part], dict[str, Any]]

    @property
    def items_(self) -> IdMap:
        """All item ids the model knows.

        >>> len(model.items_), model.items_.rows([1, 999]).tolist()
        (100, [0, -1])
        """
        return self.towers_.items.ids

    @property
    def users_(self) -> IdMap:
        """All user ids the model knows, likewise.

        >>> len(model.users_)
        200
        """
        return self.towers_.users.ids

    @property
    def whole(self) -> Self:
        """The model that a guest model was made of; any other is itself.

        >>> model.whole is model
        True
        """
        return getattr(self, "_whole", self)

    @property
    def catalogue_(self) -> pa.Table | None:
        """The items table as it was given, a row for each of `items_`; None where there was none.

        For titles and filters (`where`, `at_most`); vectors and images are left out. It is saved
        with the model: set it to None before to leave it out.

        Examples
        --------
        >>> model.catalogue_.column_names
        ['title', 'genres', 'year', 'studio']
        """
        return self.towers_.items.table

    @catalogue_.setter
    def catalogue_(self, table: pa.Table | None) -> None:
        self.towers_.items.table = table

    def titles(self, ids: Any = None) -> dict[Any, str]:
        """Return the titles of items, of all by default: from the text that names them best.

        >>> list(model.titles([17]))
        [17]
        """
        return titles(self.catalogue_, self.items_, ids)

    @property
    def item_simec_(self) -> SimEc:
        """The item tower as a `SimEc`: item features against W_l, what was learned of the users.

        By default the encoder of new items, whose W_l is [w, 1] of the posterior means of the
        users; `transform` gives embeddings and biases in units of the ratings' spread. With
        ``refine=False`` W_l are the vectors of the known users, and `predict` gives ratings.

        Examples
        --------
        >>> model.item_simec_.last_layer_.shape  # embedding and bias x users with ratings
        (17, 160)
        """
        return self._simec("items")

    @property
    def user_simec_(self) -> SimEc:
        """The user tower as a `SimEc`: user features against W_l frozen to the item embeddings.

        >>> model.user_simec_.last_layer_.shape
        (17, 80)
        """
        return self._simec("users")

    def predictor(self) -> Part:
        """Return the part that `predict` answers by.

        >>> model.predictor().name
        'rating'
        """
        return self.parts_["rating"] if "rating" in self.parts_ else self.parts_["uptake"]

    def ranking(self, rank_by: RankBy) -> tuple[Sides[Head], float]:
        """Return the vectors whose scalar product ranks, and what is added to it for the score.

        >>> heads, shift = model.ranking("both")
        >>> heads.users.width == heads.items.width
        True
        """
        used = self._parts(rank_by)
        if rank_by != "both":
            part = used[rank_by]
            return Sides(part.heads.items, part.heads.users), part.output.shift

        def joined(side: Side) -> Head:
            heads = [part.heads[side] for part in used.values()]

            def factors(counts: np.ndarray) -> np.ndarray:
                found = (self.blend_.of(name, side, counts) for name in used)
                return np.hstack(
                    [
                        np.broadcast_to(one, (len(counts), head.width))
                        for one, head in zip(found, heads, strict=True)
                    ]
                )

            return JoinedHead(heads, factors, partial(self.blended_by, side))

        # One number for all of a user's items changes no list, and users differ in their weights.
        return Sides.of(joined), 0.0

    def blended_by(self, side: Side) -> Array:
        """Return by what entities are blended: pairs of users, and how far items are known.

        An item with few pairs in `fit` is not popular, which is known of it: 1. One that came later
        may become so, and is partly a cold one.

        >>> float(model.blended_by("items").max())
        1.0
        """
        counts, uptake = self.towers_[side].counts, self.parts_.get(UptakePart.name)
        if side == "users" or not isinstance(uptake, UptakePart):
            return counts
        return uptake.known(counts)

    def rating_bounds(self) -> tuple[float, float] | None:
        """Return the bounds of later ratings; None where there are none to hold them to.

        >>> model.rating_bounds()
        (0.5, 5.0)
        """
        part = self.parts_.get("rating")
        if not isinstance(part, RatingPart):
            return None
        low, high = part.bounds
        return None if low == high else (low, high)

    def describe(self, output: TableKind = "pandas") -> Any:
        """Return how each column of the items and users tables was read, and whether it is used.

        Parameters
        ----------
        output : {"pandas", "arrow", "polars", "duckdb"}
            What to return.

        Returns
        -------
        table
            side, column, read_as, example, values (how many different ones), missing (rows) and
            used: "yes", or why not. Read otherwise: `TwoTower(item_columns={"year": "category"})`.

        Examples
        --------
        >>> model.describe()[["side", "column", "read_as", "values"]].head(3)
            side   column                  read_as  values
        0  items  item_id                               80
        1  items    title  text: 50 words in lists      80
        2  items   genres                     list      16
        """
        self._check_fitted()
        from simrec.model.answer.describe import Description, column_table

        table = column_table(self.towers_, self.columns_)
        if output != "pandas":
            return returned(table, output)
        return Description(table.to_pandas().astype({"values": "Int64"}))

    def export(
        self,
        path: str | os.PathLike[str],
        format: Format,
        *,
        side: Literal["item", "user"] | None = None,
        items: TableLike | None = None,
        users: TableLike | None = None,
        rank_by: RankBy = "both",
        unknown: Unknown = "error",
    ) -> dict[str, Any]:
        """Write the model for another system, as a directory.

        Parameters
        ----------
        path : path
            The directory; an earlier export there is replaced.
        format : {"savedmodel", "tower", "parquet", "faiss"}
            The user tower over an index of the items as a SavedModel, one tower as a SavedModel,
            vectors whose inner product is the score, or an index of Faiss over the items.
        side : {"item", "user"}, optional
            The tower; of "parquet" both by default.
        items, users : table or path, optional
            Whom to export instead of all known ones, with features of those not known.
        rank_by : {"both", "rating", "uptake"}
            Which score to export; see `recommend`.
        unknown : {"error", "prior"}
            What a SavedModel does with an unknown user without features.

        Returns
        -------
        dict
            What was written; for "faiss" with the recall@10 of the index against exact search.

        Examples
        --------
        >>> written = model.export("vectors", "parquet")
        >>> written["items"], written["users"]
        (100, 200)
        """
        from simrec.model.export.formats import export

        self._check_fitted()
        tables = Sides(items, users)
        return export(self, path, format, side, tables, rank_by, unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a directory: no pickle, no code.

        Parameters
        ----------
        path : path
            The directory; an earlier model there is replaced in one step.

        Examples
        --------
        >>> model.save("model")
        >>> model.model_id_ == TwoTower.load("model").model_id_
        True
        """
        self._check_fitted()
        self.model_id_ = files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model written by `save`; nothing in the directory is executed.

        Examples
        --------
        >>> model.save("model")
        >>> TwoTower.load("model")
        <TwoTower() fitted to 2,314 ratings of 80 items by 160 users>
        """
        return files.load(cls, path)

    def _simec(self, side: Side) -> SimEc:
        self._check_fitted()
        return self._rating(f"{SINGULAR[side]}_simec_").simec(side)

    def _parts(self, rank_by: RankBy) -> dict[str, Part]:
        """Return the components that a ranking is made of."""
        if rank_by not in ("both", "rating", "uptake"):
            raise InputError(f"rank_by must be 'both', 'rating' or 'uptake', got {rank_by!r}.")
        if rank_by == "both":
            return {name: self.parts_[name.removeprefix(NEW)] for name in self.blend_.factors}
        if rank_by not in self.parts_:
            raise InputError(f"rank_by={rank_by!r}: the model has learned no {rank_by}.")
        return {rank_by: self.parts_[rank_by]}

    def _rating(self, what: str) -> RatingPart:
        part = self.parts_.get("rating")
        if not isinstance(part, RatingPart):
            raise InputError(f"{what}: the model was fitted without ratings.")
        return part

    def _fitted_to(self) -> str | None:
        if not hasattr(self, "parts_"):
            return None
        what = "ratings" if "rating" in self.parts_ else "interactions"
        n = self.towers_.map(lambda tower: int((np.asarray(tower.counts) > 0).sum()))
        return f"{self.rated_.nnz:,} {what} of {n.items:,} items by {n.users:,} users"

    def _returned(self, table: pa.Table, output: TableKind) -> Any:
        """Return a result under the names of columns that the model was trained with."""
        return returned(self.columns_.named(table), output)

    def _kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what was made of the model before, as long as it stays as it is."""
        kept = self.__dict__.get("_made")
        if kept is None or kept[0] is not self.parts_:
            kept = self._made = (self.parts_, {})
        if name not in kept[1]:
            kept[1][name] = make()
        return kept[1][name]

    def _check_fitted(self) -> None:
        if not hasattr(self, "parts_"):
            raise InputError("this TwoTower is not fitted yet: call fit, or TwoTower.load.")
