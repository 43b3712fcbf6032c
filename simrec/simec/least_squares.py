"""Alternating least squares between the encoder's last layer and W_l.

With a squared error and an unbounded output the loss is quadratic in the encoder's last (linear)
layer, and quadratic in W_l. Earlier layers stay as they are. Without hidden layers this solves a
linear similarity encoder; with hidden layers it solves for the linear parts of a network of random
features, which gradient training can then improve.
"""

import logging

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from simrec.errors import InputError
from simrec.simec.inputs import Features, Targets
from simrec.simec.keras import keras, tf
from simrec.simec.network import SimEcNetwork

logger = logging.getLogger(__name__)

_BLOCK = 1000  # rows whose products with all columns are formed at a time
_ENTRIES = 1 << 20  # entries of a sparse R handled at a time


class MaskedTargets:
    """Products with the observed entries of R, sparse or dense."""

    def __init__(self, targets: Targets):
        self.matrix = targets.matrix
        self.sparse, self.complete = targets.sparse, targets.complete
        size = self.matrix.shape[0] * self.matrix.shape[1]
        self.share = 1.0 if targets.complete else int(targets.counts().sum()) / size
        # Copied to TensorFlow once, not for each product.
        self.tensor = tf.constant(self.matrix) if targets.complete else None

    def _rows(self) -> list[slice]:
        m = self.matrix.shape[0]
        return [slice(a, min(a + _BLOCK, m)) for a in range(0, m, _BLOCK)]

    def times_last(self, last: np.ndarray) -> np.ndarray:
        """Return R W_l^T with zero for missing entries: m x d."""
        if self.sparse:
            return np.asarray(self.matrix @ last)
        if self.complete:
            return tf.matmul(self.tensor, last).numpy()
        return np.concatenate([np.nan_to_num(self.matrix[b]) @ last for b in self._rows()])

    def masked_product(self, y: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return (M * (Y W_l)) W_l^T, where M is 1 for observed entries and 0 elsewhere: m x d."""
        if self.complete:
            return y @ (last.T @ last)
        if self.sparse:
            csr = self.matrix
            row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
            z = np.empty(csr.nnz, np.float32)
            for a in range(0, csr.nnz, _ENTRIES):
                part = slice(a, a + _ENTRIES)
                z[part] = np.einsum("ed,ed->e", y[row[part]], last[csr.indices[part]])
            return np.asarray(sp.csr_matrix((z, csr.indices, csr.indptr), csr.shape) @ last)
        parts = [(~np.isnan(self.matrix[b]) * (y[b] @ last.T)) @ last for b in self._rows()]
        return np.concatenate(parts)

    def fit_last(self, y: np.ndarray, ridge: float) -> np.ndarray:
        """Return the W_l^T that fits the observed entries best, given Y: n x d."""
        d = y.shape[1]
        eye = ridge * max(float(np.einsum("id,id->", y, y)) / d, 1e-12) * np.eye(d)
        if self.complete:
            right = tf.matmul(self.tensor, y.astype(np.float32), transpose_a=True).numpy()
            return np.linalg.solve((y.T @ y).astype(np.float64) + eye, right.T).T
        upper = np.triu_indices(d)
        pairs = (y[:, upper[0]] * y[:, upper[1]]).astype(np.float32)
        if self.sparse:
            mask = sp.csr_matrix(
                (np.ones(self.matrix.nnz, np.float32), self.matrix.indices, self.matrix.indptr),
                self.matrix.shape,
            )
            products = np.asarray(mask.T @ pairs)
            right = np.asarray(self.matrix.T @ y)
        else:
            products = np.zeros((self.matrix.shape[1], len(upper[0])), np.float32)
            right = np.zeros((self.matrix.shape[1], d), np.float32)
            for b in self._rows():
                known = ~np.isnan(self.matrix[b])
                products += known.T.astype(np.float32) @ pairs[b]
                right += np.nan_to_num(self.matrix[b]).T @ y[b]
        gram = np.empty((len(products), d, d))
        gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = products
        return np.linalg.solve(gram + self.share * eye, right[..., None])[..., 0]


class EmbeddingLayer:
    """The encoder's last layer as a linear map of fixed features F: y = F C.

    For the identity, whose encoder is a table with a vector for each row, Y itself is solved for.
    """

    def __init__(self, network: SimEcNetwork, features: Features, densify: bool, ridge: float):
        layer = network.encoder.layers[-1]
        self.layer = layer
        self.is_table = isinstance(layer, keras.layers.Embedding)
        if self.is_table:
            return
        if not isinstance(layer, keras.layers.Dense) or layer.activation is not (
            keras.activations.linear
        ):
            raise InputError(
                "init='least_squares' solves for the encoder's last layer, which must be a linear "
                f"Dense layer, got {type(layer).__name__}"
            )
        hidden = keras.Model(network.encoder.input, layer.input)
        fetch = features.fetcher(densify)
        blocks = []
        for a in range(0, features.n_rows, 4096):
            part = hidden(fetch(tf.range(a, min(a + 4096, features.n_rows))))
            part = tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part
            blocks.append(part.numpy())
        self.F = np.concatenate(blocks)
        if layer.use_bias:
            self.F = np.concatenate([self.F, np.ones((len(self.F), 1), np.float32)], 1)
        gram = tf.matmul(self.F, self.F, transpose_a=True).numpy().astype(np.float64)
        gram[np.diag_indices_from(gram)] += ridge * np.trace(gram) / len(gram) + 1e-9
        self.factor = cho_factor(gram)
        self.ridge = ridge * np.trace(gram) / len(gram)
        self.C = np.zeros((self.F.shape[1], layer.units))

    def solve(self, targets: MaskedTargets, last: np.ndarray, iterations: int) -> np.ndarray:
        """Fit the layer to R given W_l and return Y.

        Complete rows take one solve. Where entries are missing, the normal equations couple rows
        and coordinates. Conjugate gradients preconditioned with the complete problem need few
        iterations, because a random mask acts nearly like multiplication by the observed share.
        """
        gram = (last.T @ last).astype(np.float64)
        gram[np.diag_indices_from(gram)] += 1e-9 * np.trace(gram) + 1e-12
        if self.is_table:
            self.table = self._solve_rows(targets, last, gram)
            return self.table
        right = self._transposed(targets.times_last(last))
        if targets.complete:
            self.C = np.linalg.solve(gram, cho_solve(self.factor, right).T).T
            return self._embed()
        shape, size = self.C.shape, self.C.size

        def normal_equations(flat: np.ndarray) -> np.ndarray:
            C = flat.reshape(shape)
            product = targets.masked_product(self._embed(C), last)
            return (self._transposed(product) + targets.share * self.ridge * (C @ gram)).ravel()

        def complete_solution(flat: np.ndarray) -> np.ndarray:
            solved = cho_solve(self.factor, flat.reshape(shape))
            return (np.linalg.solve(gram, solved.T).T / targets.share).ravel()

        solution, _ = cg(
            LinearOperator((size, size), normal_equations, dtype=np.float64),
            right.ravel(),
            x0=self.C.ravel(),
            maxiter=iterations,
            M=LinearOperator((size, size), complete_solution, dtype=np.float64),
            atol=0.0,
        )
        self.C = solution.reshape(shape)
        return self._embed()

    def _solve_rows(self, targets: MaskedTargets, last: np.ndarray, gram: np.ndarray) -> np.ndarray:
        """Return the Y that fits best given W_l, each row on its own."""
        if targets.complete:
            table = np.linalg.solve(gram, targets.times_last(last).T).T
        else:
            matrix = targets.matrix.T.tocsr() if targets.sparse else targets.matrix.T
            transposed = MaskedTargets(Targets(matrix, matrix.shape[1], 1, False))
            table = transposed.fit_last(last, 1e-6)
        return np.asarray(table, np.float32)

    def _embed(self, C: np.ndarray | None = None) -> np.ndarray:
        C = self.C if C is None else C
        return tf.matmul(self.F, C.astype(np.float32)).numpy()

    def _transposed(self, product: np.ndarray) -> np.ndarray:
        """Return F^T times rows, in the double precision of the solver."""
        return tf.matmul(self.F, product.astype(np.float32), transpose_a=True).numpy().astype(float)

    def store(self) -> None:
        """Write the solution into the Keras layer."""
        if self.is_table:
            self.layer.set_weights([self.table])
        elif self.layer.use_bias:
            self.layer.set_weights([self.C[:-1].astype(np.float32), self.C[-1].astype(np.float32)])
        else:
            self.layer.set_weights([self.C.astype(np.float32)])


def least_squares_start(
    network: SimEcNetwork,
    features: Features,
    targets: Targets,
    rows: np.ndarray,
    rows_of_targets: np.ndarray | None,
    sweeps: int,
    ridge: float,
    densify: bool,
) -> None:
    """Alternate between the embedding layer and W_l for `sweeps` rounds, in place.

    For a symmetric S (`rows_of_targets` given) W_l moves half way to the embeddings of its rows.
    The fixed point has the eigenvectors of the largest eigenvalues of S, as far as the encoder can
    express them. For any other R, W_l is solved for. A frozen W_l stays as it is.
    """
    if len(rows) < targets.n_rows:
        keep = np.zeros(targets.n_rows, bool)
        keep[rows] = True
        targets = _hide(targets, ~keep)
    masked = MaskedTargets(targets)
    layer = EmbeddingLayer(network, features, densify, ridge)
    last = network.last.numpy()
    for sweep in range(sweeps):
        # Each sweep starts from the solution of the one before: a few iterations are enough.
        y = layer.solve(masked, last, iterations=4)
        if not network.last.trainable or sweep == sweeps - 1:
            break
        if rows_of_targets is not None and targets.n_relations == 1:
            last = ((last + y[rows_of_targets]) / 2).astype(np.float32)
        else:
            last = masked.fit_last(y, 1e-6).astype(np.float32)
    layer.store()
    network.last.assign(last)
    logger.info("least squares: %d sweeps", sweep + 1)


def _hide(targets: Targets, rows: np.ndarray) -> Targets:
    """Return targets with no observed entry in these rows."""
    if targets.sparse:
        csr = targets.matrix
        drop = np.repeat(rows, np.diff(csr.indptr))
        counts = np.where(rows, 0, np.diff(csr.indptr))
        csr = sp.csr_matrix(
            (csr.data[~drop], csr.indices[~drop], np.concatenate([[0], np.cumsum(counts)])),
            csr.shape,
        )
        return Targets(csr, targets.n_columns, targets.n_relations, False)
    matrix = targets.matrix.copy()
    matrix[rows] = np.nan
    return Targets(matrix, targets.n_columns, targets.n_relations, False)
