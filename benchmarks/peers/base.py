"""What every peer is, and the tables of features as the peers take them."""

from importlib import import_module, metadata
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec import FeatureEncoder, Ratings
from simrec.data.ids import IdMap

Bounds = tuple[float, float]


class Peer:
    """A model to compare with: fitted once, it answers for known and new users and items.

    A new one is a subclass with `name`, `fit` and `predict`, listed in `peers.PEERS`. Raise
    `version` with every change that changes results: what was measured before is then not used
    again. `modules` are imported before the clock starts, `packages` are the installed packages
    whose versions are written down with the result. Peers that rank count ratings of at least
    `liked` as likes; `answers` names the tasks of `lists.py` that they have an answer to.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    answers: ClassVar[tuple[str, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, bounds: Bounds, liked: float = 4.0, random_state: int = 0) -> None:
        self.bounds = bounds
        self.liked = liked
        self.random_state = random_state

    @classmethod
    def load(cls) -> None:
        """Import what the peer needs; importing is not fitting."""
        for module in cls.modules:
            import_module(module)

    @classmethod
    def fingerprint(cls) -> str:
        """Name the code that gives the results, so that they can be kept."""
        versions = [f"{package}-{metadata.version(package)}" for package in cls.packages]
        return " ".join([f"{cls.name}-v{cls.version}", *versions])

    @classmethod
    def installed(cls) -> bool:
        """Say whether the packages that the peer needs are there."""
        return all(any(metadata.distributions(name=package)) for package in cls.packages)

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Peer":
        """Learn from ratings, and from features of items and users, rated or not."""
        raise NotImplementedError

    def predict(self, pairs: pa.Table) -> np.ndarray:
        """Predict a rating for each row of columns user_id and item_id."""
        raise NotImplementedError

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        """Score every one of these items for every one of these users, to rank them."""
        scores = np.empty((len(users), len(items)), np.float32)
        for first in range(0, len(users), 256):
            block = users[first : first + 256]
            pairs = pa.table(
                {
                    "user_id": block.take(np.repeat(np.arange(len(block)), len(items))),
                    "item_id": items.take(np.tile(np.arange(len(items)), len(block))),
                }
            )
            scores[first : first + 256] = self.predict(pairs).reshape(len(block), len(items))
        return scores

    def fold_in(self, given: Ratings) -> "Peer":
        """Give a peer that also knows these ratings of new users, and leave this one as it is."""
        raise NotImplementedError

    def lists(self, users: IdMap, items: IdMap, k: int, exclude: Ratings | None) -> np.ndarray:
        """Rank items for each user: their rows, best first, -1 where fewer than k are left."""
        best = np.full((len(users), k), -1)
        order = self.shuffled(items)
        seen = pair_matrix(exclude, users, items) if exclude is not None else None
        for first in range(0, len(users), 512):
            block = slice(first, first + 512)
            scores = np.array(self.score(users.ids[block], items.ids), np.float32)
            if not np.isfinite(scores).all():
                raise ValueError(f"{self.name}: scores are not all finite")
            if seen is not None:
                scores[seen[block].nonzero()] = -np.inf
            top = order[np.argsort(-scores[:, order], axis=1, kind="stable")[:, :k]]
            left = np.isfinite(np.take_along_axis(scores, top, axis=1))
            best[block, : top.shape[1]] = np.where(left, top, -1)
        return best

    def shuffled(self, items: IdMap) -> np.ndarray:
        """Give the rows of items in the order in which equal scores are ranked: at random.

        In the order of the ids it would not be fair: many a data set numbers popular items first.
        """
        return np.random.default_rng(self.random_state).permutation(len(items))

    def clip(self, predictions: np.ndarray) -> np.ndarray:
        """Keep predictions within the bounds of the ratings."""
        return np.clip(predictions, *self.bounds)


class Entities:
    """All users or all items: the rated ones first, then those that only have features.

    Attributes
    ----------
    n_rated : int
        Rows below it have ratings in training, in the order of the ratings' id map.
    features : scipy.sparse.csr_matrix
        One row per entity; zeros for those the table does not have. Encoded as SimRec does by
        default (learned from rated entities only), and numbers in ten bins as well: none of the
        peers that see sparse features could bend a line by itself.
    groups : numpy.ndarray
        What belongs together, numbered: the features of one column, or the bins of one.
    is_word : numpy.ndarray of bool
        Which features are words. Where `texts` is "words", texts are rows of TF-IDF of length 1,
        for peers that rank by words or regress on them; "components" are the principal components
        that SimRec takes, and "none" leaves texts out.
    is_vector : numpy.ndarray of bool
        Which features are coordinates of vectors.
    """

    def __init__(
        self, rated: IdMap, table: pa.Table | None, key: str, texts: str = "components"
    ) -> None:
        ids = rated.ids
        self.is_word = self.is_vector = np.zeros(0, bool)
        if table is None:
            self.features = sparse.csr_matrix((len(ids), 0), dtype=np.float32)
            self.groups = np.zeros(0, np.int64)
        else:
            of_table = table.column(key).combine_chunks().cast(ids.type)
            is_new = ~rated.contains(of_table)
            ids = pa.concat_arrays([ids, of_table.filter(pa.array(is_new))])
        self.n_rated = len(rated)
        self._sorted = IdMap.from_values(ids)
        self._places = np.empty(len(ids), np.int64)
        self._places[self._sorted.rows(ids)] = np.arange(len(ids))
        if table is not None:
            self._encode(table, of_table, is_new, key, texts)

    def __len__(self) -> int:
        return len(self._places)

    def rows(self, ids: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """Row of each id; -1 for one that has neither ratings nor features."""
        rows = self._sorted.rows(ids)
        return np.where(rows >= 0, self._places[rows], -1)

    def terms(self) -> tuple[sparse.csr_matrix, np.ndarray]:
        """Give what is there or not (tags, categories, bins, words) by TF-IDF, and its groups.

        Document frequencies are of the rated entities; plain numbers have none and are left out.
        """
        X = self.features
        is_one = np.asarray((X != 0).sum(axis=0) == (X == 1).sum(axis=0)).ravel()
        frequency = np.asarray(X[: self.n_rated].sum(axis=0)).ravel()
        idf = np.log((1 + self.n_rated) / (1 + np.maximum(frequency, 0)))
        weight = np.where(self.is_word, 1.0, idf).astype(np.float32)
        at = np.flatnonzero(is_one | self.is_word)
        return sparse.csr_matrix(X[:, at] @ sparse.diags_array(weight[at])), self.groups[at]

    def _encode(
        self, table: pa.Table, ids: pa.Array, is_new: np.ndarray, key: str, texts: str
    ) -> None:
        known = table.filter(pa.array(~is_new))
        encoder = FeatureEncoder(id_column=key).fit(known)
        of_text = [c for c, kind in encoder.columns_.items() if kind == "text"]
        if of_text and texts != "components":
            encoder = FeatureEncoder(dict.fromkeys(of_text, "ignore"), id_column=key).fit(known)
        of_words = of_text if texts == "words" else []
        blocks, groups = [encoder.transform(table)], [encoder.groups_]
        numbers = [column for column, kind in encoder.columns_.items() if kind == "number"]
        blocks += [_bins(table.column(column), known.column(column)) for column in numbers]
        blocks += [_words(table.column(column), known.column(column)) for column in of_words]
        for group, block in enumerate(blocks[1:], start=len(encoder.columns_)):
            groups.append(np.full(block.shape[1], group))
        encoded = sparse.hstack(blocks, format="csr", dtype=np.float32)
        order = np.full(len(self), -1)
        order[self.rows(ids)] = np.arange(len(ids))
        rows = np.flatnonzero(order >= 0)
        ones = np.ones(len(rows), np.float32)
        has = sparse.csr_matrix((ones, (rows, order[rows])), shape=(len(self), len(ids)))
        self.features = sparse.csr_matrix(has @ encoded)
        self.groups = np.concatenate(groups)
        self.is_word = self.groups >= self.groups.max(initial=-1) + 1 - len(of_words)
        vectors = [g for g, kind in enumerate(encoder.columns_.values()) if kind == "vector"]
        self.is_vector = np.isin(self.groups, vectors)


def pair_matrix(ratings: Ratings, users: IdMap, items: IdMap) -> sparse.csr_matrix:
    """Give a one for each rated pair of these users and items; other pairs are left out."""
    user_rows = users.rows(ratings.users.ids)[ratings.user_rows]
    item_rows = items.rows(ratings.items.ids)[ratings.item_rows]
    here = (user_rows >= 0) & (item_rows >= 0)
    ones = np.ones(here.sum(), np.float32)
    where = (user_rows[here], item_rows[here])
    return sparse.csr_matrix((ones, where), shape=(len(users), len(items)))


def _bins(values: pa.ChunkedArray, known: pa.ChunkedArray, n_bins: int = 10) -> sparse.csr_matrix:
    """One feature for each tenth of the known values; none where there is no value."""
    numbers = pc.cast(values, pa.float64()).to_numpy()
    seen = pc.cast(known, pa.float64()).to_numpy()
    edges = np.unique(np.nanquantile(seen, np.linspace(0, 1, n_bins + 1)[1:-1]))
    rows = np.flatnonzero(~np.isnan(numbers))
    places = np.searchsorted(edges, numbers[rows], side="right")
    ones = np.ones(len(rows), np.float32)
    return sparse.csr_matrix((ones, (rows, places)), shape=(len(numbers), len(edges) + 1))


def _words(texts: pa.ChunkedArray, known: pa.ChunkedArray) -> sparse.csr_matrix:
    """Words of texts by TF-IDF, each text of length 1, without those of a single known text."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
    vectorizer.fit(pc.fill_null(known, "").to_pylist())
    return vectorizer.transform(pc.fill_null(texts, "").to_pylist())
