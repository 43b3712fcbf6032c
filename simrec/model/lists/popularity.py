"""Popularity: how many liked an item; of a new one what its features tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Sides
from simrec.errors import InputError
from simrec.model.head import Encoder, Saved, restored_heads, saved_heads
from simrec.model.lists.column_weights import ColumnRegression, Weighed
from simrec.model.lists.fading import Fading, day_of
from simrec.model.lists.item_encoder import idf_of
from simrec.model.part import (
    Entity,
    LaterRatings,
    NewRows,
    Part,
    encoded_by_column,
    learners,
    with_new_rows,
)
from simrec.model.prepare import Prepared
from simrec.scoring.output import IDENTITY, Output
from simrec.scoring.pairs import Parts
from simrec.storage.arrays import Array, Sparse, rows_of

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.storage.artifacts import Artifact

# Items from which on features can tell anything.
_ENOUGH = 10


@dataclass(eq=False)
class PopularityPart(Part):
    """How many liked an item.

    Three coordinates: the logarithm of their number, its square root, and a constant of items
    without pairs in `fit`. Of new items features tell the former two. Errors of the logarithm are
    those of items with few likes, errors of the root count wherever they are. Those of users are
    constant. With `fading`, likes count less the older they are.

    Attributes
    ----------
    liked : float
        Rating from which on an item counts as liked.
    likes : Array
        How many liked each item.
    """

    liked: float
    likes: Array
    fading: Fading | None = None
    name: ClassVar[str] = "popularity"
    kind: ClassVar[str] = "popularity"

    def with_new(self, new: Sides[NewRows]) -> PopularityPart:
        """Make room for new entities: what their features say."""
        none = np.zeros(len(new.items.has_features), np.float32)
        heads = self.heads.map(with_new_rows, new)
        return replace(self, heads=heads, likes=new.items.insert(self.likes, none))

    def with_ratings(
        self, counts: Sides[Array], later: LaterRatings, rated: Sparse, only_new: Sides[bool]
    ) -> tuple[PopularityPart, Sides[np.ndarray]]:
        """Let likes fade until the latest rating, then count those of later ratings."""
        learned, part = learners(counts, later, only_new), self
        if self.fading is not None and not only_new.items and later.at is not None:
            fading, share = self.fading.until_day(float(later.at.max(initial=self.fading.until)))
            before, vectors = np.asarray(self.likes), np.array(self.heads.items.vectors)
            likes = before * np.float32(share)
            # What is still to come of items that came after `fit` does not fade.
            to_come = np.where(vectors[:, 2:] > 0, _unscaled(vectors) - before[:, None], 0)
            faded = _scaled(likes[:, None] + np.maximum(to_come, 0))
            vectors[:, :2] = np.where((before > 0)[:, None], faded, vectors[:, :2])
            head = replace(self.heads.items, vectors=vectors)
            heads = self.heads.with_side("items", head)
            part = replace(self, heads=heads, likes=likes, fading=fading)
        if len(learned.items):
            part = part._counted(learned.items, later, rated)
        return part, learned

    def _counted(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> PopularityPart:
        here = np.isin(later.rows.items, rows) & (later.values >= self.liked)
        if later.again is not None:  # these have been counted
            here &= ~later.again
        likes = np.array(self.likes)
        added: float | np.ndarray = 1.0
        if self.fading is not None:  # without a day, they are of the latest
            at = np.full(len(here), self.fading.until) if later.at is None else later.at
            added = self.fading.weights(np.minimum(at[here], self.fading.until))
        np.add.at(likes, later.rows.items[here], added)
        vectors, counted = np.array(self.heads.items.vectors[rows]), likes[rows]
        to_come = np.zeros((len(rows), 2))
        if later.arrived is not None and later.features is not None:
            new, known = later.arrived
            X = sparse.csr_matrix(rows_of(later.features.items, new))
            expected = _unscaled(self.heads.items.vectors_of_new(X, np.diff(X.indptr) > 0))
            to_come[np.isin(rows, new)] = (1 - known)[:, None] * expected
        vectors[:, :2] = _scaled(counted[:, None] + to_come)
        head = self.heads.items.changed(rows, vectors)
        return replace(self, likes=likes, heads=self.heads.with_side("items", head))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: features of an item that `fit` did not know, and the own pairs."""
        x, vector = entity.features, np.asarray(vector, np.float64)
        names, values, pieces = [f"average {SINGULAR[entity.side]}"], [""], vector[None]
        from_features = entity.side == "items" and vector[2] != 0
        if from_features and x is not None and x.nnz and entity.encoder is not None:
            pieces = encoded_by_column(entity.encoder, x, self.heads[entity.side].encoder)
            words = entity.encoder.words(x)
            names, values = [*names, *words], [*values, *words.values()]
        if entity.count:
            own = "who took it up" if entity.side == "items" else "what they took up"
            kept = len(pieces) if from_features else 0
            names, values = [*names[:kept], own], [*values[:kept], f"{entity.count:,} pairs"]
            pieces = np.vstack([pieces[:kept], vector - pieces[:kept].sum(0)])
        return Parts(names, values, pieces, np.zeros(len(vector)))

    def saved(self) -> Saved:
        """Return the part as plain data."""
        saved = saved_heads(self.name, self.heads)
        fading = None if self.fading is None else asdict(self.fading)
        saved.documents[self.name] = {"liked": self.liked, "fading": fading}
        saved.rows.items["popularity_likes"] = np.asarray(self.likes, np.float32)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> PopularityPart:
        """Rebuild the part from what `saved` returned."""
        liked, fading = (artifact.documents[cls.name][key] for key in ("liked", "fading"))
        if isinstance(liked, bool) or not isinstance(liked, int | float) or np.isnan(liked):
            raise InputError(f"popularity: {liked!r} is no number")
        heads = restored_heads(cls.name, artifact, towers)
        likes = artifact.array("popularity_likes", (len(towers.items.ids),))
        if heads.items.width != 3 or not (likes >= 0).all():
            raise InputError("popularity: expected three coordinates, and counts of at least 0")
        return cls(heads, output, liked, likes, None if fading is None else Fading.restored(fading))


class Penalties(NamedTuple):
    """How popularity is regressed on features: weighed by rarity or not, and the penalties."""

    rarity: bool
    penalty: float
    columns: list[float]  # what the penalty of each column is divided by


def choose_penalties(
    data: Prepared, liked: float, rng: np.random.Generator, fading: Fading | None = None
) -> Penalties | None:
    """Choose the penalty of each column on items held out in turn; None if features do not help."""
    side, scaled = data.sides.items, _scaled(_likes(data, liked, fading)[0])
    X, spreads = side.X[:, :-1], scaled.std(0)
    if not X.shape[1] or len(scaled) < _ENOUGH or not np.ptp(scaled, axis=0).all():
        return None
    y, seed = (scaled - scaled.mean(0)) / spreads, rng.integers(1 << 31)
    tried = []
    for rarity in (False, True):
        regression = _regression(X, side.groups[:-1], y, rarity, np.random.default_rng(seed))
        tried.append((regression.plain(), rarity, regression))
    plain, rarity, regression = min(tried, key=lambda one: one[0].error)
    chosen = regression.chosen(plain)
    if chosen.error >= y.size:
        return None
    return Penalties(rarity, chosen.penalty, chosen.columns.tolist())


def fit_popularity(
    data: Prepared,
    liked: float,
    penalties: Penalties | None,
    fading: Fading | None = None,
) -> PopularityPart:
    """Count who liked each item, and regress it on features.

    Parameters
    ----------
    data : Prepared
        Pairs and features.
    liked : float
        Rating from which on an item counts as liked.
    penalties : Penalties or None
        How to regress; None for the mean.
    fading : Fading, optional
        How likes fade.
    """
    ratings, side = data.ratings, data.sides.items
    likes, fading = _likes(data, liked, fading)
    scaled = _scaled(likes)
    encoder = _encoder(side.X[:, :-1], side.groups[:-1], scaled, penalties)
    vectors = np.column_stack([scaled, np.zeros_like(likes)])
    items = side.head(vectors, encoder, encoder.weights[-1])
    constant = Encoder(np.zeros((data.sides.users.tower.features.shape[1] + 1, 3), np.float32))
    constant.weights[-1] = 1
    ones = np.ones((ratings.n_users, 3), np.float32)
    users = data.sides.users.head(ones, constant, constant.weights[-1])
    of_all = np.zeros(len(side.tower.ids), np.float32)
    of_all[side.rated_rows] = likes
    return PopularityPart(Sides(items, users), IDENTITY, liked, of_all, fading)


def _scaled(likes: np.ndarray) -> np.ndarray:
    """Return the logarithm and the root, of a column for each or one for both."""
    likes = likes.reshape(len(likes), -1)
    return np.column_stack([np.log1p(likes[:, 0]), np.sqrt(likes[:, -1])])


def _unscaled(vectors: np.ndarray) -> np.ndarray:
    logarithm, root = np.maximum(vectors[:, :2], 0).T
    return np.column_stack([np.expm1(logarithm), np.square(root)])


def _counted(data: Prepared, these: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    ratings = data.ratings
    found = np.bincount(ratings.item_rows[these], weights, minlength=ratings.n_items)
    return data.workers.sum(found.astype(np.float64))


def _likes(data: Prepared, liked: float, fading: Fading | None) -> tuple[np.ndarray, Fading | None]:
    """Return how many liked each item, and the fading with its scale."""
    at, these = day_of(data.ratings), data.ratings.values >= liked
    likes = _counted(data, these)
    if fading is None or at is None:
        return likes, fading
    recent = _counted(data, these, fading.weights(at[these]))
    if likes.any():  # over all items they sum up to the same
        fading = replace(fading, scale=float(likes.sum() / max(recent.sum(), 1e-30)))
    return recent * fading.scale, fading


def _regression(
    X: sparse.csr_matrix,
    groups: np.ndarray,
    scaled: np.ndarray,
    rarity: bool,
    rng: np.random.Generator,
) -> ColumnRegression:
    encoder = Encoder(np.empty((0, 0)), idf=idf_of(X) if rarity else None)
    return ColumnRegression(encoder.inputs(X).tocsr().astype(np.float32), groups, scaled, rng)


def _encoder(
    X: sparse.csr_matrix, groups: np.ndarray, scaled: np.ndarray, penalties: Penalties | None
) -> Encoder:
    """Fit an encoder of the logarithm and the root of the likes, and a constant."""
    weights = np.zeros((X.shape[1] + 1, 3), np.float32)
    weights[-1] = *scaled.mean(0), 1
    if penalties is None:
        return Encoder(weights)
    rarity, penalty, columns = penalties
    regression = _regression(X, groups, scaled, rarity, np.random.default_rng(0))
    chosen = Weighed(penalty, np.array(columns, np.float32), np.empty(0))
    weights[:, :2] = regression.weights(chosen)
    return Encoder(weights, idf=idf_of(X) if rarity else None)
