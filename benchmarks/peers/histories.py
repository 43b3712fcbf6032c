"""Peers that rank by which items a user has: EASE, implicit ALS, a content profile."""

import copy

import numpy as np
import pyarrow as pa
from scipy import linalg, sparse

from peers.base import Entities, pair_matrix
from peers.ranking import Popularity, Ranker
from simrec import Ratings
from simrec.data.ids import IdMap


class HistoryRanker(Ranker):
    """A peer that scores items by a user's history, a row of ones over the known items.

    All ratings count, also the low ones: on seed 10 that gave known users better lists than likes
    alone, of which a user may have none among a few ratings.
    """

    answers = ("known_users", "few_ratings")
    known_items_: IdMap
    users_: IdMap
    histories_: sparse.csr_matrix

    def remember(self, ratings: Ratings) -> None:
        """Take the histories of the users to answer for."""
        self.users_ = ratings.users
        self.histories_ = pair_matrix(ratings, ratings.users, self.known_items_)

    def fold_in(self, given: Ratings) -> "HistoryRanker":
        folded = copy.copy(self)
        folded.remember(given)
        return folded


class Ease(HistoryRanker):
    """EASE (Steck 2019): item to item weights in closed form, no item explained by itself."""

    name = "ease"
    l2 = 500.0

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Ease":
        self.known_items_ = train.items
        self.remember(train)
        inverse = self.inverse_gram()
        self.weights_ = inverse / -np.diag(inverse)
        np.fill_diagonal(self.weights_, 0)
        return self

    def inverse_gram(self) -> np.ndarray:
        """Give the inverse of the items' Gram matrix with l2 on its diagonal."""
        gram = (self.histories_.T @ self.histories_).toarray()
        gram[np.diag_indices_from(gram)] += self.l2
        # The inverse of a symmetric matrix by its Cholesky factor takes half of the operations.
        factor, _ = linalg.lapack.spotrf(gram.T, lower=1, overwrite_a=1)
        lower, _ = linalg.lapack.spotri(factor, lower=1, overwrite_c=1)
        return np.tril(lower) + np.tril(lower, -1).T

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        scores = self.histories_[self.users_.rows(users)] @ self.weights_
        return scores[:, self.known_items_.rows(items)]


class ImplicitAls(HistoryRanker):
    """Weighted least squares over all pairs (Hu et al. 2008), by the library implicit."""

    name = "als"
    modules = ("implicit.als",)
    packages = ("implicit",)
    n_factors = 128
    l2 = 30.0
    alpha = 3.0
    iterations = 15

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "ImplicitAls":
        from implicit.als import AlternatingLeastSquares

        self.known_items_ = train.items
        self.remember(train)
        self.model_ = AlternatingLeastSquares(
            factors=self.n_factors,
            regularization=self.l2,
            alpha=self.alpha,
            iterations=self.iterations,
            use_gpu=False,
            random_state=self.random_state,
        )
        self.model_.fit(self.histories_, show_progress=False)
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        rows = self.users_.rows(users)
        # For known users this is one more step of the fit.
        vectors = self.model_.recalculate_user(rows, self.histories_[rows])
        return vectors @ self.model_.item_factors[self.known_items_.rows(items)].T


class ContentProfile(HistoryRanker):
    """Cosine of an item's tf-idf features and the sum of those of the user's items."""

    name = "content"
    version = 2
    answers = ("known_users", "new_items", "few_ratings")

    def fit(
        self, train: Ratings, items: pa.Table | None, users: pa.Table | None
    ) -> "ContentProfile":
        self.known_items_ = train.items
        self.remember(train)
        self.items_ = Entities(train.items, items, "item_id", texts="words")
        weighted, _ = self.items_.terms()
        length = np.sqrt(np.asarray(weighted.power(2).sum(axis=1)).ravel())
        scaled = sparse.diags_array(1 / np.maximum(length, 1e-9)) @ weighted
        nothing = sparse.csr_matrix((1, scaled.shape[1]))
        self.terms_ = sparse.vstack([scaled, nothing], format="csr", dtype=np.float32)
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        histories = self.histories_[self.users_.rows(users)]
        profiles = histories @ self.terms_[: len(self.known_items_)]
        return (profiles @ self.terms_[self.items_.rows(items)].T).toarray()


class ContentPopularity(ContentProfile):
    """Content profile and popularity from features, each in its standard deviations."""

    name = "content-popularity"
    answers = ("new_items",)
    share = 0.5  # of popularity

    def fit(
        self, train: Ratings, items: pa.Table | None, users: pa.Table | None
    ) -> "ContentPopularity":
        self.popularity_ = Popularity(self.bounds, self.liked).fit(train, items, users)
        super().fit(train, items, users)
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        profile, popularity = super().score(users, items), self.popularity_.score(users, items)
        return profile / profile.std() + self.share * popularity / popularity.std()
