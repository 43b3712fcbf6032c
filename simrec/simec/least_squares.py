"""A closed-form start: alternating least squares between the embedding layer and W_l.

For a squared error and an identity output the loss is quadratic in the encoder's last (linear)
layer, and quadratic in W_l. Whatever comes before the last layer is left as it is: with no hidden
layer this solves a linear similarity encoder, with hidden layers it starts from their random
features, which gradient training then improves.
"""

import logging

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from simrec.errors import InputError
from simrec.simec.inputs import Features, Targets
from simrec.simec.keras import keras, tf
from simrec.simec.network import SimEcNetwork

logger = logging.getLogger(__name__)

_BLOCK = 1000  # rows whose products with all columns are formed at a time
_ENTRIES = 1 << 20  # entries of a sparse R handled at a time


class Observed:
    """Products with the observed part of R, sparse or dense."""

    def __init__(self, targets: Targets):
        self.targets = targets
        self.matrix = targets.matrix
        size = self.matrix.shape[0] * self.matrix.shape[1]
        self.share = 1.0 if targets.complete else int(targets.counts().sum()) / size
        # Handed over once: every product with an array would copy it anew.
        self.tensor = tf.constant(self.matrix) if targets.complete else None

    def _rows(self) -> list[slice]:
        m = self.matrix.shape[0]
        return [slice(a, min(a + _BLOCK, m)) for a in range(0, m, _BLOCK)]

    def known(self, last: np.ndarray) -> np.ndarray:
        """Return R W_l^T, missing entries as zero: m x d."""
        if self.targets.sparse:
            return np.asarray(self.matrix @ last)
        if self.targets.complete:
            return tf.matmul(self.tensor, last).numpy()
        return np.concatenate([np.nan_to_num(self.matrix[b]) @ last for b in self._rows()])

    def masked_product(self, y: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return (M * (Y W_l)) W_l^T with M the mask of what is observed: m x d."""
        if self.targets.complete:
            return y @ (last.T @ last)
        if self.targets.sparse:
            csr = self.matrix
            row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
            z = np.empty(csr.nnz, np.float32)
            for a in range(0, csr.nnz, _ENTRIES):
                part = slice(a, a + _ENTRIES)
                z[part] = np.einsum("ed,ed->e", y[row[part]], last[csr.indices[part]])
            return np.asarray(sp.csr_matrix((z, csr.indices, csr.indptr), csr.shape) @ last)
        parts = [(~np.isnan(self.matrix[b]) * (y[b] @ last.T)) @ last for b in self._rows()]
        return np.concatenate(parts)

    def columns(self, y: np.ndarray, ridge: float) -> np.ndarray:
        """Return the W_l^T that fits the observed entries best, given Y: n x d."""
        d = y.shape[1]
        eye = ridge * max(float(np.einsum("id,id->", y, y)) / d, 1e-12) * np.eye(d)
        if self.targets.complete:
            right = tf.matmul(self.tensor, y.astype(np.float32), transpose_a=True).numpy()
            return np.linalg.solve((y.T @ y).astype(np.float64) + eye, right.T).T
        upper = np.triu_indices(d)
        pairs = (y[:, upper[0]] * y[:, upper[1]]).astype(np.float32)
        if self.targets.sparse:
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
    """The encoder's last layer as a linear map of fixed features F: y = F C."""

    def __init__(self, network: SimEcNetwork, features: Features, densify: bool, ridge: float):
        layer = network.encoder.layers[-1]
        self.layer = layer
        self.free = isinstance(layer, keras.layers.Embedding)
        if self.free:
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
        self.gram = gram
        self.factor = cho_factor(gram)
        self.ridge = ridge * np.trace(gram) / len(gram)
        self.C = np.zeros((self.F.shape[1], layer.units))

    def solve(self, observed: Observed, last: np.ndarray, iterations: int) -> np.ndarray:
        """Fit the layer to R given W_l and return Y.

        Complete rows take one solve. Where entries are missing the normal equations couple rows
        and coordinates; conjugate gradients preconditioned with the complete problem need few
        steps, because a mask is nearly its share times one.
        """
        inner = (last.T @ last).astype(np.float64)
        inner[np.diag_indices_from(inner)] += 1e-9 * np.trace(inner) + 1e-12
        if self.free:
            return self._solve_rows(observed, last, inner)
        right = self._transposed(observed.known(last))
        if observed.targets.complete:
            self.C = np.linalg.solve(inner, cho_solve(self.factor, right).T).T
            return self._embed()

        def operator(C: np.ndarray) -> np.ndarray:
            y = tf.matmul(self.F, C.astype(np.float32)).numpy()
            product = observed.masked_product(y, last)
            return self._transposed(product) + observed.share * self.ridge * (C @ inner)

        def precondition(C: np.ndarray) -> np.ndarray:
            return np.linalg.solve(inner, cho_solve(self.factor, C).T).T / observed.share

        residual = right - operator(self.C)
        z = precondition(residual)
        direction, rho = z, float((residual * z).sum())
        for _ in range(iterations):
            image = operator(direction)
            step = rho / max(float((direction * image).sum()), 1e-30)
            self.C = self.C + step * direction
            residual = residual - step * image
            z = precondition(residual)
            fresh = float((residual * z).sum())
            if fresh < 1e-8 * abs(float((right * self.C).sum())):
                break
            direction, rho = z + (fresh / rho) * direction, fresh
        return self._embed()

    def _solve_rows(self, observed: Observed, last: np.ndarray, inner: np.ndarray) -> np.ndarray:
        if observed.targets.complete:
            self.table = np.linalg.solve(inner, observed.known(last).T).T
        else:
            flipped = Observed(
                Targets(observed.matrix.T, len(observed.matrix.T), 1, False)
                if not observed.targets.sparse
                else Targets(observed.matrix.T.tocsr(), observed.matrix.shape[0], 1, False)
            )
            self.table = flipped.columns(last, 1e-6)
        return np.asarray(self.table, np.float32)

    def _embed(self) -> np.ndarray:
        return tf.matmul(self.F, self.C.astype(np.float32)).numpy()

    def _transposed(self, product: np.ndarray) -> np.ndarray:
        """Return F^T times rows, in the double precision of the solver."""
        return tf.matmul(self.F, product.astype(np.float32), transpose_a=True).numpy().astype(float)

    def store(self) -> None:
        """Write the solution into the Keras layer."""
        if self.free:
            self.layer.set_weights([np.asarray(self.table, np.float32)])
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
) -> list[float]:
    """Alternate between the embedding layer and W_l for `sweeps` rounds, in place.

    For a symmetric S (`rows_of_targets` given) W_l moves half way to the embeddings of its rows,
    which has the eigenvectors of the largest eigenvalues (of S as the encoder can express it) as
    its fixed point; for any other R it is solved for. A frozen W_l stays as it is.

    Returns
    -------
    list of float
        Root mean square change of W_l, by sweep.
    """
    if len(rows) < targets.n_rows:
        keep = np.zeros(targets.n_rows, bool)
        keep[rows] = True
        targets = _hide(targets, ~keep)
    observed = Observed(targets)
    layer = EmbeddingLayer(network, features, densify, ridge)
    last = network.last.numpy()
    changes = []
    for sweep in range(max(1, sweeps)):
        # The last sweep's solution is a good start: a few steps each are enough.
        y = layer.solve(observed, last, iterations=4)
        if not network.last.trainable or sweep == sweeps - 1:
            break
        if rows_of_targets is not None and targets.n_relations == 1:
            fresh = (last + y[rows_of_targets]) / 2
        else:
            fresh = observed.columns(y, 1e-6)
        changes.append(float(np.sqrt(np.mean((fresh - last) ** 2))))
        last = fresh.astype(np.float32)
    layer.store()
    network.last.assign(last.astype(np.float32))
    logger.info("least squares: %d sweeps", len(changes) + 1)
    return changes


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
