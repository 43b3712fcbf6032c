"""The life of an entity after fitting: from new to known, and out again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap, as_chunked
from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.answer.explain import explain
from simrec.model.answer.similar import similar
from simrec.model.tower import Unknown
from simrec.model.update.update import fold_in, update

if TYPE_CHECKING:
    from simrec.data.features import FeatureEncoder
    from simrec.model.tower import Tower
    from simrec.model.update.evidence import Evidence
    from simrec.scoring.output import Output

T = TypeVar("T", bound="Life")


class Life:
    """What a fitted `TwoTower` has, and can do beside answering."""

    objective: str
    item_tower_: Tower
    user_tower_: Tower
    output_: Output
    chosen_: dict[str, Any]
    evidence_: Evidence | None
    model_id_: str | None
    parent_: str | None
    updates_: list[dict[str, Any]]

    def fold_in(
        self: T,
        ratings: Ratings | TableLike | None,
        users: TableLike | None = None,
        items: TableLike | None = None,
    ) -> T:
        """Let users and items without ratings have some, without training again.

        A new entity has the posterior of its embedding given its ratings, around what its features
        say; with no rating it is the cold answer exactly. Those who have ratings already stay as
        they are: `update` is for them. The model is changed in place; `save` keeps it.

        Parameters
        ----------
        ratings : Ratings, table or path, or None
            Ratings of new users, new items, or both.
        users, items : table or path, optional
            Features of entities the model does not know. Those without are taken as average.

        Returns
        -------
        TwoTower
            Itself.
        """
        self._check_fitted()
        fold_in(self, ratings, items, users)
        return self._derived()

    def update(
        self: T,
        ratings: Ratings | TableLike,
        users: TableLike | None = None,
        items: TableLike | None = None,
    ) -> T:
        """Learn a day's new ratings, users and items, at a small part of the cost of a fit.

        Everyone with a new rating learns from it, known or new; what was believed so far stands
        for all ratings before. A pair that is rated again counts as further evidence. Encoders and
        the columns of features stay as fitted: a category that is new is encoded as unknown, and
        counted in `updates_`. The model is changed in place; when saved it names its parent.

        Parameters
        ----------
        ratings : Ratings, table or path
            The new ratings only.
        users, items : table or path, optional
            Features of entities the model does not know.

        Returns
        -------
        TwoTower
            Itself.
        """
        self._check_fitted()
        learned = update(self, ratings, items, users)
        self._derived()
        self.updates_ = [*self.updates_, {**learned, "parent": self.parent_}]
        return self

    def forget(self: T, user_ids: Any) -> T:
        """Take users out of the model: ids, features, vectors and all that was learned of them.

        What items have learned from the ratings of users, in `fit`, in `update`, or when they were
        folded in together, is a sum over all their ratings and stays until the next fit without
        those users. Users who were folded in beside known items leave nothing behind.

        Parameters
        ----------
        user_ids : id or ids
            Whom to forget.

        Returns
        -------
        TwoTower
            Itself.
        """
        self._check_fitted()
        tower = self.user_tower_
        one = isinstance(user_ids, str | int | np.integer | pa.Scalar)
        values = as_chunked([user_ids] if one else user_ids, "user_id")
        if not len(values):
            return self
        rows = tower.ids.rows(values, "user_id")
        if (rows < 0).any():
            missing = np.flatnonzero(rows < 0)
            raise InputError(
                f"user_id: {len(missing)} users to forget are not in the model, for example "
                f"{values[int(missing[0])].as_py()!r}."
            )
        keep = np.setdiff1d(np.arange(len(tower.ids)), rows)
        if not len(keep):
            raise InputError("user_id: a model cannot forget all of its users.")
        self.user_tower_ = replace(
            tower,
            ids=IdMap(tower.ids.take(keep)),
            counts=tower.counts[keep],
            vectors=np.asarray(tower.vectors[keep]),
            features=tower.features[keep],
        )
        if self.evidence_ is not None:
            self.evidence_ = replace(self.evidence_, users=self.evidence_.users.take(keep))
        return self._derived()

    def _derived(self: T) -> T:
        """Be another model than the one that was saved or loaded, which is now the parent."""
        self.parent_, self.model_id_ = self.model_id_ or self.parent_, None
        return self

    def explain(
        self: T,
        user_id: Any,
        item_id: Any,
        users: TableLike | None = None,
        items: TableLike | None = None,
        unknown: Unknown = "error",
    ) -> pa.Table:
        """Tell what adds how much to the score of a user and an item.

        A part of the user and a part of the item that act together share their product equally.

        Parameters
        ----------
        user_id, item_id : id
            The pair.
        users, items : table or path, optional
            Features of an id the model does not know.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.

        Returns
        -------
        pyarrow.Table
            A row for the mean and for each part of the item and of the user: side, feature, value,
            bias (what it adds beside anyone), taste (what it adds beside this one) and
            contribution, their sum. Contributions sum to the score before it is bounded.
        """
        self._check_fitted()
        return explain(self, user_id, item_id, users, items, unknown)

    def similar_items(self: T, item: Any, k: int = 10) -> pa.Table:
        """Find the items that the same users like.

        Parameters
        ----------
        item : id, mapping or table
            An id the model knows, or the features of one item.
        k : int
            How many.

        Returns
        -------
        pyarrow.Table
            Columns item_id, similarity (from -1 to 1: the correlation of what users think of
            both, popularity aside) and rank.
        """
        self._check_fitted()
        return similar(self.item_tower_, self.user_tower_, item, k, self._blocks)

    def similar_users(self: T, user: Any, k: int = 10) -> pa.Table:
        """Find the users who like the same items; see `similar_items`."""
        self._check_fitted()
        return similar(self.user_tower_, self.item_tower_, user, k, self._blocks)

    @property
    def items_(self) -> IdMap:
        """All item ids the model knows."""
        return self.item_tower_.ids

    @property
    def users_(self) -> IdMap:
        """All user ids the model knows."""
        return self.user_tower_.ids

    @property
    def item_vectors_(self) -> np.ndarray:
        """Vectors of the items, in the order of `items_`."""
        return self.item_tower_.vectors

    @property
    def user_vectors_(self) -> np.ndarray:
        """Vectors of the users, in the order of `users_`."""
        return self.user_tower_.vectors

    @property
    def item_counts_(self) -> np.ndarray:
        """Ratings of each item in training."""
        return self.item_tower_.counts

    @property
    def user_counts_(self) -> np.ndarray:
        """Ratings of each user in training."""
        return self.user_tower_.counts

    @property
    def item_prior_(self) -> np.ndarray:
        """Vector of an average item."""
        return self.item_tower_.prior

    @property
    def user_prior_(self) -> np.ndarray:
        """Vector of an average user."""
        return self.user_tower_.prior

    @property
    def item_encoder_(self) -> FeatureEncoder | None:
        """From item tables to feature rows."""
        return self.item_tower_.encoder

    @property
    def user_encoder_(self) -> FeatureEncoder | None:
        """From user tables to feature rows."""
        return self.user_tower_.encoder

    @property
    def _blocks(self) -> int:
        """Blocks of coordinates in a vector."""
        return 1 if self.objective == "ranking" else 3

    def _check_fitted(self) -> None:
        if not hasattr(self, "user_tower_"):
            raise InputError("this TwoTower is not fitted yet: call fit, or TwoTower.load.")
