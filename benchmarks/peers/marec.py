"""MARec: EASE whose items with few pairs or none learn from items with similar features."""

import numpy as np
import pyarrow as pa
from scipy import optimize, sparse

from peers.base import Entities
from peers.histories import Ease
from simrec import Ratings


class Marec(Ease):
    """EASE aligned with metadata (Monteil et al. 2024), in closed form.

    Features predict pairs: X~ = X G, where G is a sum of the similarities of items in each column
    of features, weighted by least squares on X without the item itself. The weights between items
    are min |X + X~ D - X B|^2 + l2 |B|^2, diag(B) = 0. D is 0 for items with many pairs and rises
    to `beta` for those with none; a new item has a column of X~ alone. A variant, not the authors'
    code: theirs may weigh X~ otherwise, which was not checked against the paper. `smoothing` was
    chosen on seed 10 of Frappe, ML-100K and MovieTweetings.
    """

    name = "marec"
    answers = ("known_users", "new_items", "few_ratings")
    l2 = 100.0
    smoothing = 10.0  # added to the squared length of features: a cosine of few of them counts less
    beta = 1.0
    percentile = 10.0  # of the items' counts, up to which features are added

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "Marec":
        self.known_items_ = train.items
        self.remember(train)
        self.items_ = Entities(train.items, items, "item_id", texts="words")
        X, n = self.histories_, train.n_items
        self.blocks_ = self._blocks()
        known = [block[:n] for block in self.blocks_]
        self.column_weights_ = _column_weights(X, known)
        inverse = self.inverse_gram()
        counts = np.bincount(X.indices, minlength=n)
        few = max(np.percentile(counts, self.percentile), 1)
        D = self.beta * np.maximum(1 - counts / few, 0)
        at = np.flatnonzero(D > 0)
        # inverse @ X'X is I - l2 * inverse.
        self.smooth_ = -self.l2 * inverse
        self.smooth_[np.diag_indices(n)] += 1
        B = self.smooth_.copy()
        if len(at):
            B[:, at] += self.smooth_ @ self._similar(known, at) * D[at]
        self.weights_ = B - inverse * (np.diag(B) / np.diag(inverse))
        return self

    def score(self, users: pa.Array, items: pa.Array) -> np.ndarray:
        rows = self.items_.rows(items)
        if (rows >= 0).all() and (rows < len(self.known_items_)).all():
            return super().score(users, items)
        # New ones among them: of all the same, what features say.
        smooth = self.histories_[self.users_.rows(users)] @ self.smooth_
        scores = np.zeros((len(users), len(items)), np.float32)
        for weight, block in zip(self.column_weights_, self.blocks_, strict=True):
            if weight > 0:
                of_known = np.asarray(smooth @ block[: len(self.known_items_)])
                scores += weight * (block[rows] @ of_known.T).T
        return scores

    def _blocks(self) -> list[sparse.csr_matrix]:
        """Give the terms of each column, scaled so that products are smoothed cosines."""
        terms, groups = self.items_.terms()
        blocks = []
        for group in np.unique(groups):
            block = sparse.csr_matrix(terms[:, groups == group])
            length = np.sqrt(self.smoothing + np.asarray(block.power(2).sum(axis=1)).ravel())
            scaled = sparse.diags_array(1 / length) @ block
            nothing = sparse.csr_matrix((1, block.shape[1]))
            blocks.append(sparse.vstack([scaled, nothing], format="csr", dtype=np.float32))
        return blocks

    def _similar(self, known: list[sparse.csr_matrix], at: np.ndarray) -> np.ndarray:
        """Give the similarity of all known items with some, 0 with themselves."""
        total = sum(
            weight * (block @ block[at].T).toarray()
            for weight, block in zip(self.column_weights_, known, strict=True)
            if weight > 0
        )
        similar = np.asarray(total) + np.zeros((len(self.known_items_), len(at)), np.float32)
        similar[at, np.arange(len(at))] = 0
        return similar


def _column_weights(X: sparse.csr_matrix, blocks: list[sparse.csr_matrix]) -> np.ndarray:
    """Weigh columns so that the sum of their predictions is nearest to the pairs; none below 0."""
    own = [np.asarray(block.power(2).sum(axis=1)).ravel() for block in blocks]
    gram, right = np.zeros((len(blocks), len(blocks))), np.zeros(len(blocks))
    for first in range(0, X.shape[0], 256):
        some = X[first : first + 256]
        dense = some.toarray()
        said = [
            ((some @ block) @ block.T).toarray() - dense * diagonal
            for block, diagonal in zip(blocks, own, strict=True)
        ]
        for k, one in enumerate(said):
            right[k] += np.vdot(one, dense)
            gram[k, : k + 1] += [np.vdot(one, other) for other in said[: k + 1]]
    gram = np.tril(gram) + np.tril(gram, -1).T
    gram += 1e-9 * np.trace(gram) * np.eye(len(gram)) + 1e-30 * np.eye(len(gram))
    root = np.linalg.cholesky(gram).T
    return optimize.nnls(root, np.linalg.solve(root.T, right))[0]
