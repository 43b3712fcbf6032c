"""Components of lists that follow from histories by sums: EASE, a content profile, popularity.

Each is a `Part`: vectors of items and users whose scalar product ranks. The vector of a user is a
sum over the items of the history, so a later rating adds to it and nothing is solved for.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy import sparse

from simrec.data.sides import SINGULAR, Side, Sides
from simrec.errors import InputError
from simrec.model.head import Encoder, Saved, StoredHead, restored_heads, saved_heads
from simrec.model.lists.blend import FEW
from simrec.model.lists.fading import Fading
from simrec.model.lists.spectrum import EXPONENT
from simrec.model.part import Entity, LaterRatings, NewRows, Part, encoded_by_column
from simrec.model.prepare import Prepared, PreparedSide
from simrec.scoring.output import Output
from simrec.scoring.pairs import Parts
from simrec.storage.arrays import Array, Sparse, columns

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.storage.artifacts import Artifact

# Share of an item's pairs up to which later ones do not move it.
_TOO_FEW = 0.05
# Share of the largest eigenvalue up to which one is 0 but for rounding.
_ROUNDING = 1e-6
_OFFSET = {"items": "who took it up", "users": "what they took up"}


@dataclass(frozen=True)
class PairWeight:
    """What a pair counts in a history: 1 + slope * (rating - mean).

    Attributes
    ----------
    slope : float
        0 where ratings do not matter; with a large one, low ratings push their neighbours down.
    mean : float
        Mean rating.
    liked : float
        Rating from which on an item counts as liked.
    """

    slope: float = 0.0
    mean: float = 0.0
    liked: float = 0.0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the weight of pairs with these ratings."""
        return (1 + self.slope * (values - self.mean)).astype(np.float32)


@dataclass(eq=False)
class HistoryPart(Part):
    """A component whose users' vectors are sums over their histories.

    Attributes
    ----------
    weight : PairWeight
        What a pair counts.
    numbers : Array
        A number of each item: of EASE and content profiles the factor of its vector that it adds to
        the vectors of its users, of popularity how many liked it.
    """

    weight: PairWeight
    numbers: Array
    kind: ClassVar[str]

    def with_new(self, new: Sides[NewRows]) -> Self:
        """Make room for new entities: what their features say; a new user has no history."""

        def grown(side: Side) -> StoredHead:
            head, more = self.heads[side], new[side]
            return head.grown(head.vectors_of_new(more.features, more.has_features), more.insert)

        numbers = np.full(len(new.items.has_features), self._number_of_new(), np.float32)
        return replace(self, heads=Sides.of(grown), numbers=new.items.insert(self.numbers, numbers))

    def with_ratings(
        self, counts: Sides[Array], later: LaterRatings, rated: Sparse, only_new: Sides[bool]
    ) -> tuple[Self, Sides[np.ndarray]]:
        """Add later pairs to the histories of their users, then let their items learn."""
        learned = later.rows.map(
            lambda rows, count, new: np.unique(rows[count[rows] == 0] if new else rows),
            counts,
            only_new,
        )
        part = self._with_histories(later, learned.users)
        if len(learned.items):
            part = part._with_items(learned.items, later, rated)
        return part, learned

    def _with_histories(self, later: LaterRatings, users: np.ndarray) -> Self:
        if not len(users):
            return self
        here = np.isin(later.rows.users, users)
        at, items = np.searchsorted(users, later.rows.users[here]), later.rows.items[here]
        used, place = np.unique(items, return_inverse=True)
        inputs = np.asarray(self.heads.items.vectors[used]) * self._inputs(used)[:, None]
        vectors = np.array(self.heads.users.vectors[users], np.float32)
        np.add.at(vectors, at, inputs[place] * self.weight(later.values[here])[:, None])
        heads = self.heads.with_side("users", self.heads.users.changed(users, vectors))
        return replace(self, heads=heads)

    def _inputs(self, items: np.ndarray) -> np.ndarray:
        return np.asarray(self.numbers[items], np.float32)

    def _number_of_new(self) -> float:
        return 0.0

    @abstractmethod
    def _with_items(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> Self:
        """Let items learn from later pairs."""

    def only_users(self, rows: np.ndarray) -> Self:
        """Keep some users."""
        return replace(self, heads=Sides(self.heads.items, self.heads.users.only(rows)))

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: feature columns of a cold item, or the entity's own pairs."""
        side, x, vector = entity.side, entity.features, np.asarray(vector, np.float64)
        none = np.zeros(len(vector))
        if entity.count:
            return Parts([_OFFSET[side]], [f"{entity.count:,} pairs"], vector[None], none)
        names, values, pieces = [f"average {SINGULAR[side]}"], [""], vector[None]
        if x is not None and x.nnz and entity.encoder is not None:
            pieces = encoded_by_column(entity.encoder, x, self.heads[side].encoder)
            words = entity.encoder.words(x)
            names, values = [*names, *words], [*values, *words.values()]
        return Parts(names, values, pieces, none)

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return the vectors as they are."""
        return vectors

    def saved(self) -> Saved:
        """Return heads, weight and numbers as plain data."""
        saved = saved_heads(self.name, self.heads)
        saved.documents[self.name] = asdict(self.weight)
        saved.rows.items[f"{self.name}_numbers"] = np.asarray(self.numbers, np.float32)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> Self:
        """Rebuild the part from what `saved` returned."""
        document = artifact.documents[cls.name]
        weight = PairWeight(**{one.name: document[one.name] for one in fields(PairWeight)})
        for value in (weight.slope, weight.mean, weight.liked):
            _check_number(value, cls.name)
        heads = restored_heads(cls.name, artifact, towers)
        numbers = artifact.array(f"{cls.name}_numbers", (len(towers.items.ids),))
        return cls(heads, output, weight, numbers, **cls._more(artifact, heads.items.width))

    @classmethod
    def _more(cls, artifact: Artifact, width: int) -> dict[str, Any]:
        return {}


def _check_number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or np.isnan(value):
        raise InputError(f"{name}.json: {value!r} is no number")


@dataclass(eq=False)
class EasePart(HistoryPart):
    """EASE in its leading coordinates; see `simrec.model.lists.spectrum`.

    Attributes
    ----------
    eigenvalues : numpy.ndarray
        Of the coordinates.
    ridge : float
        Ridge of the items' leverages in units of the eigenvalues.
    """

    eigenvalues: np.ndarray
    ridge: float
    name: ClassVar[str] = "ease"
    kind: ClassVar[str] = "ease"

    def _inputs(self, items: np.ndarray) -> np.ndarray:
        return np.abs(super()._inputs(items))

    def _with_items(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> Self:
        """Project the users of each item onto the eigenvectors, as fitting to all pairs would.

        An item that came later is no part of the eigenvectors: this is its regression on those that
        are, which needs no leverage, and its number is negative. Of other items, those that few of
        their pairs are new to stay as they are.
        """
        n = np.diff(columns(rated, rows).indptr)
        here = later.rows.items[np.isin(later.rows.items, rows)]
        n_later = np.bincount(np.searchsorted(rows, here), minlength=len(rows))
        added = np.asarray(self.numbers[rows]) <= 0
        moved = added | (n_later > _TOO_FEW * n)
        rows, n, added = rows[moved], n[moved], added[moved]
        pairs = columns(rated, rows)
        who, place = np.unique(pairs.indices, return_inverse=True)
        ones = np.ones(len(place), np.float32)
        pairs = type(pairs)((ones, place, pairs.indptr), shape=(len(rows), len(who)))
        total = np.asarray(pairs @ self._unweighted(who, rated))
        # What an item adds to its own users tells nothing of it.
        own = np.asarray(self.heads.items.vectors[rows]) * self._inputs(rows)[:, None]
        total[added] -= n[added, None] * own[added] if self.weight.slope else 0
        e = self.eigenvalues
        # Of coordinates without weight in fitting, users have rounding errors alone.
        there = e > _ROUNDING * e.max()
        V = total * np.divide(1, e, out=np.zeros_like(e), where=there)
        V *= (np.maximum(n, 1.0) ** -EXPONENT)[:, None]
        leverage = np.minimum(np.square(V) @ (e / (e + self.ridge)), 0.95)
        leverage[added] = 0
        vectors = V * (np.maximum(n, 1.0) ** EXPONENT / (1 - leverage))[:, None]
        inputs = np.maximum(n, 1.0) ** (-2 * EXPONENT) * (1 - leverage)
        # An item that had no pairs comes in step by step, and is no evidence of taste before.
        vectors[added] *= np.minimum(n[added] / FEW, 1)[:, None]
        inputs[added & (n < FEW)] = 0
        numbers = np.array(self.numbers)
        numbers[rows] = np.where(added, -inputs, inputs)
        head = self.heads.items.changed(rows, vectors.astype(np.float32))
        return replace(self, heads=self.heads.with_side("items", head), numbers=numbers)

    def _unweighted(self, users: np.ndarray, rated: Sparse) -> np.ndarray:
        """Return the vectors of users whose pairs all count 1, as those of eigenvectors do."""
        if not self.weight.slope:
            return np.asarray(self.heads.users.vectors[users])
        histories = sparse.csr_matrix(rated[users])
        used, place = np.unique(histories.indices, return_inverse=True)
        ones, shape = np.ones(len(place), np.float32), (len(users), len(used))
        histories = sparse.csr_matrix((ones, place, histories.indptr), shape=shape)
        inputs = np.asarray(self.heads.items.vectors[used]) * self._inputs(used)[:, None]
        return np.asarray(histories @ inputs)

    def saved(self) -> Saved:
        """Return the part as plain data."""
        saved = super().saved()
        saved.arrays["ease_eigenvalues"] = self.eigenvalues
        saved.documents["ease"] |= {"ridge": self.ridge}
        return saved

    @classmethod
    def _more(cls, artifact: Artifact, width: int) -> dict[str, Any]:
        document = artifact.documents["ease"]
        _check_number(document["ridge"], "ease")
        values = artifact.array("ease_eigenvalues", (width,))
        if not (values > 0).all():
            raise InputError("ease_eigenvalues: expected positive numbers")
        return {"eigenvalues": values, "ridge": float(document["ridge"])}


@dataclass(eq=False)
class ContentPart(HistoryPart):
    """Content profiles: projected features of an item, and their sum over a user's items."""

    name: ClassVar[str] = "content"
    kind: ClassVar[str] = "content"

    def _number_of_new(self) -> float:
        return 1.0

    def _with_items(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> Self:
        return self


@dataclass(eq=False)
class PopularityPart(HistoryPart):
    """The logarithm of how many liked an item; of a new one what its features tell.

    Three coordinates: that of items with pairs, that of new items, and a constant of new items.
    Those of users are constant. With `fading`, likes count less the older they are.
    """

    fading: Fading | None = None
    name: ClassVar[str] = "popularity"
    kind: ClassVar[str] = "popularity"

    def with_ratings(
        self, counts: Sides[Array], later: LaterRatings, rated: Sparse, only_new: Sides[bool]
    ) -> tuple[Self, Sides[np.ndarray]]:
        """Let likes fade until the latest rating, then count those of later ratings."""
        part = self
        if self.fading is not None and not only_new.items and later.at is not None:
            fading, share = self.fading.until_day(float(later.at.max(initial=self.fading.until)))
            likes = np.asarray(self.numbers) * np.float32(share)
            vectors = np.array(self.heads.items.vectors)
            vectors[:, 0] = np.log1p(likes) * (1 - vectors[:, 2])
            head = replace(self.heads.items, vectors=vectors)
            heads = self.heads.with_side("items", head)
            part = replace(self, heads=heads, numbers=likes, fading=fading)
        return super(PopularityPart, part).with_ratings(counts, later, rated, only_new)

    def _inputs(self, items: np.ndarray) -> np.ndarray:
        return np.zeros(len(items), np.float32)

    def _with_items(self, rows: np.ndarray, later: LaterRatings, rated: Sparse) -> Self:
        here = np.isin(later.rows.items, rows) & (later.values >= self.weight.liked)
        likes = np.array(self.numbers)
        added: float | np.ndarray = 1.0
        if self.fading is not None:  # without a day, they are of the latest
            at = np.full(len(here), self.fading.until) if later.at is None else later.at
            added = self.fading.weights(np.minimum(at[here], self.fading.until))
        np.add.at(likes, later.rows.items[here], added)
        n = np.diff(columns(rated, rows).indptr)
        X = None if later.features is None else later.features.items[rows]
        return replace(self, numbers=likes).between(rows, n, X)

    def between(self, rows: np.ndarray, counts: np.ndarray, X: sparse.csr_matrix | None) -> Self:
        """Let what features tell of items fade as pairs come in."""
        head, share = self.heads.items, np.minimum(counts / FEW, 1)
        cold = np.tile(head.prior, (len(rows), 1))
        if X is not None:
            cold = head.vectors_of_new(X, np.diff(X.indptr) > 0)
        vectors = (1 - share)[:, None] * cold
        vectors[:, 0] = np.log1p(np.asarray(self.numbers[rows])) * share
        head = head.changed(rows, vectors.astype(np.float32))
        return replace(self, heads=self.heads.with_side("items", head))

    def saved(self) -> Saved:
        """Return the part as plain data."""
        saved = super().saved()
        if self.fading is not None:
            saved.documents["fading"] = asdict(self.fading)
        return saved

    @classmethod
    def _more(cls, artifact: Artifact, width: int) -> dict[str, Any]:
        document = artifact.documents.get("fading")
        return {} if document is None else {"fading": Fading.restored(document)}


def histories(data: Prepared, weight: PairWeight) -> sparse.csr_matrix:
    """Return this worker's users x items: what each pair counts in a history."""
    ratings = data.ratings
    values = weight(ratings.values)
    shape = (ratings.n_users, ratings.n_items)
    return sparse.csr_matrix((values, (ratings.user_rows, ratings.item_rows)), shape=shape)


def head_of(side: PreparedSide, vectors: np.ndarray, encoder: Encoder) -> StoredHead:
    """Put the vectors of the rated where they stand, and what features say of all others."""
    n, out = len(side.tower.ids), vectors.astype(np.float32, copy=False)
    if len(vectors) < n:
        out = np.empty((n, vectors.shape[1]), np.float32)
        unrated = np.asarray(side.tower.counts) == 0
        out[side.rated_rows] = vectors
        out[unrated] = encoder(side.tower.features[unrated])
    return StoredHead(out, encoder, encoder.weights[-1].astype(np.float32))
