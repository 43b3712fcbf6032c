"""Where W_l starts; and the closed form: alternating least squares between the encoder and W_l.

With a squared error and an unbounded output the loss is quadratic in the encoder's last (linear)
layer, and quadratic in W_l; a bounded output is fitted through its inverse. Earlier layers stay as
they are. Without hidden layers this solves a linear similarity encoder; with hidden layers it
solves for the linear parts of a network of random features, which gradient training can then
improve. NumPy alone.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve, eigh

from simrec.errors import InputError
from simrec.simec.inputs import Features, Problem, Targets
from simrec.simec.linear_algebra import conjugate_gradients, randomised_svd

logger = logging.getLogger(__name__)

_BLOCK = 1000  # rows whose products with all columns are formed at a time
_ENTRIES = 1 << 20  # entries of a sparse R handled at a time
_SAMPLE = 2000  # rows that W_l's start is decomposed from


@dataclass(frozen=True, eq=False)
class LinearEncoder:
    """Embed feature rows by ``x @ kernel + bias``, and the identity by the rows of the kernel."""

    kind: str
    kernel: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, features: Features) -> np.ndarray:
        """Return the embeddings of checked feature rows."""
        if self.kind == "identity":
            return self.kernel[: features.n_rows].copy()
        found = features.data @ self.kernel
        return np.asarray(found if self.bias is None else found + self.bias, np.float32)

    def network(self) -> Any:
        """Return the same encoder as a Keras model."""
        from simrec.simec.encoders import DenseStack

        n, d = self.kernel.shape
        stack = DenseStack(self.kind, n, (d,), bias=self.bias is not None)
        model = stack.build(np.random.default_rng(0))
        model.set_weights([self.kernel] if self.bias is None else [self.kernel, self.bias])
        return model


def first_last_layer(problem: Problem, init: str) -> np.ndarray:
    """Return W_l^T where training starts: as given, or else as `init` says."""
    targets, d = problem.targets, problem.params["embedding_dim"]
    if problem.last_layer is not None:
        return check_last_layer(problem.last_layer, d, targets)
    if init == "random":
        return problem.rng.normal(0, 0.1, (targets.matrix.shape[1], d)).astype(np.float32)
    return _spectral(problem, d)


def _spectral(problem: Problem, d: int) -> np.ndarray:
    """Return W_l^T from a truncated decomposition of some sampled rows.

    A symmetric S (`rows_of_targets` given) uses the d largest positive eigenvalues of the block of
    sampled targets, W_l = L^{1/2} U^T, and Nystroem's formula for the other targets. Any other R
    uses the truncated SVD of the sampled rows, W_l = s^{1/2} V^T, scaled to all rows.
    """
    targets, rng = problem.targets, problem.rng
    if problem.rows_of_targets is not None:
        some = np.sort(rng.permutation(targets.n_columns)[:_SAMPLE])
        rows = _linear_targets(problem, targets.matrix[problem.rows_of_targets[some]])
        rows = rows.toarray() if sp.issparse(rows) else rows
        block, n = rows[:, some], len(some)
        block = (block + block.T).astype(np.float64) / 2
        values, vectors = eigh(block, subset_by_index=[max(0, n - d), n - 1])
        values, vectors = values[::-1], vectors[:, ::-1]
        # W_l^T W_l has no negative eigenvalues: such directions start small.
        values = np.maximum(values, max(float(values[0]), 1e-12) * 1e-6)
        pad = max(d - n, 0)
        values = np.pad(values, (0, pad), constant_values=values[0])
        vectors = np.pad(vectors, ((0, 0), (0, pad)))
        return ((rows.T @ vectors) / np.sqrt(values)).astype(np.float32)
    m = targets.n_rows
    some = np.sort(rng.permutation(m)[:_SAMPLE])
    rows = _linear_targets(problem, targets.matrix[some])
    rank = min(d, *[s - 1 for s in rows.shape])
    _, values, vectors = randomised_svd(rows, max(rank, 1), rng)
    # Singular values grow with the square root of the number of rows.
    scaled = vectors.T * np.sqrt(values * np.sqrt(m / len(some)))
    last = rng.normal(0, 0.1, (rows.shape[1], d)).astype(np.float32)
    last[:, : scaled.shape[1]] = scaled
    return last


def _linear_targets(problem: Problem, matrix: Any) -> Any:
    """Return rows of R on the scale of z: (R - g(0)) / g'(0), with zero where missing.

    Observed entries are divided by the observed share, so that sums over rows keep their
    expectation.
    """
    output = problem.output
    at_zero, slope = (float(g(np.zeros(1))[0]) for g in (output, output.slopes))
    if sp.issparse(matrix):
        share = matrix.nnz / (matrix.shape[0] * matrix.shape[1])
        matrix = matrix.copy()
        matrix.data = (matrix.data - at_zero) / (slope * max(share, 1e-12))
        return matrix
    if problem.targets.complete:
        return (matrix - at_zero) / slope
    share = float((~np.isnan(matrix)).mean())
    return np.nan_to_num(matrix - at_zero, nan=0.0) / (slope * max(share, 1e-12))


def check_last_layer(last_layer: Any, d: int, targets: Targets) -> np.ndarray:
    """Return a given W_l (d x n, or d x n x k) as the network keeps it: a row per column of R."""
    given, k = np.asarray(last_layer, dtype=np.float32), targets.n_relations
    expected = (d, targets.n_columns, k) if k > 1 else (d, targets.n_columns)
    if given.shape != expected:
        raise InputError(
            f"last_layer must be {' x '.join(map(str, expected))} (embedding_dim x targets"
            f"{' x relations' if k > 1 else ''}), got shape {given.shape}"
        )
    if not np.isfinite(given).all():
        raise InputError("last_layer holds NaN or infinite values")
    return np.ascontiguousarray(given.T.reshape(-1, d))


class EmbeddingLayer:
    """The encoder's last layer as a linear map of fixed features F: y = F C.

    F (dense or CSR) includes a constant if the layer has a bias; without features, for the
    identity, Y itself is solved for. The ridge is relative to the features' mean square.
    """

    def __init__(self, F: Any, d: int, ridge: float):
        self.F = F
        if F is None:
            return
        gram = F.T @ F
        gram = (gram.toarray() if sp.issparse(gram) else gram).astype(np.float64)
        gram[np.diag_indices_from(gram)] += ridge * np.trace(gram) / len(gram) + 1e-9
        self.factor = cho_factor(gram)
        self.ridge = ridge * np.trace(gram) / len(gram)
        self.C = np.zeros((F.shape[1], d))

    def solve(self, targets: Targets, last: np.ndarray, iterations: int) -> np.ndarray:
        """Fit the layer to R given W_l and return Y.

        Complete rows take one solve. Where entries are missing, the normal equations couple rows
        and coordinates. Conjugate gradients preconditioned with the complete problem need few
        iterations, because a random mask acts nearly like multiplication by the observed share.
        """
        gram = (last.T @ last).astype(np.float64)
        gram[np.diag_indices_from(gram)] += 1e-9 * np.trace(gram) + 1e-12
        if self.F is None:  # each row on its own
            if targets.complete:
                table = np.linalg.solve(gram, _times_last(targets, last).T).T
            else:
                matrix = targets.matrix.T.tocsr() if targets.sparse else targets.matrix.T
                table = _fit_last(Targets(matrix, matrix.shape[1], 1, False), last)
            self.C = np.asarray(table, np.float32)
            return self.C
        right, ridge = self._transposed(_times_last(targets, last)), targets.share * self.ridge

        def normal_equations(C: np.ndarray) -> np.ndarray:
            product = _masked_product(targets, self._embed(C), last)
            return self._transposed(product) + ridge * (C @ gram)

        def complete_solution(C: np.ndarray) -> np.ndarray:
            return np.linalg.solve(gram, cho_solve(self.factor, C).T).T / targets.share

        if targets.complete:
            self.C = complete_solution(right)
        else:
            self.C = conjugate_gradients(
                normal_equations, right, complete_solution, self.C, iterations, tolerance=1e-5
            )
        return self._embed(self.C)

    def _embed(self, C: np.ndarray) -> np.ndarray:
        return np.asarray(self.F @ C.astype(np.float32))

    def _transposed(self, product: np.ndarray) -> np.ndarray:
        """Return F^T times rows, in the double precision of the solver."""
        return np.asarray(self.F.T @ product.astype(np.float32)).astype(np.float64)


def alternate(
    layer: EmbeddingLayer,
    targets: Targets,
    last: np.ndarray,
    frozen: bool,
    rows_of_targets: np.ndarray | None,
    sweeps: int,
) -> np.ndarray:
    """Alternate between the embedding layer and W_l^T for `sweeps` rounds; return W_l^T.

    For a symmetric S (`rows_of_targets` given) W_l moves half way to the embeddings of its rows.
    The fixed point has the eigenvectors of the largest eigenvalues of S, as far as the encoder can
    express them. For any other R, W_l is solved for. A frozen W_l stays as it is.
    """
    for sweep in range(1 if frozen else sweeps):
        # Each sweep starts from the solution of the one before: a few iterations are enough.
        y = layer.solve(targets, last, iterations=200 if frozen else 4)
        if frozen or sweep == sweeps - 1:
            break
        if rows_of_targets is not None:
            last = ((last + y[rows_of_targets]) / 2).astype(np.float32)
        else:
            last = _fit_last(targets, y).astype(np.float32)
    logger.info("least squares: %d sweeps", sweep + 1)
    return last


def fit_closed_form(problem: Problem) -> tuple[LinearEncoder, np.ndarray]:
    """Fit a linear encoder, and W_l^T unless it is frozen."""
    params, features = problem.params, problem.features
    last = first_last_layer(problem, "spectral")
    F = features.data
    bias = F is not None and params["bias"]
    if bias:
        one = np.ones((features.n_rows, 1), np.float32)
        F = sp.hstack([F, one], "csr") if sp.issparse(F) else np.hstack([F, one])
    layer = EmbeddingLayer(F, params["embedding_dim"], params["ridge"])
    targets, output = problem.targets, problem.output
    if output.shift or output.bounded:  # what the inverse of the output makes of the targets
        matrix = targets.matrix.copy()
        values = matrix.data if targets.sparse else matrix
        values[...] = output.link(values) - np.float32(output.shift)
        targets = replace(targets, matrix=matrix)
    frozen = problem.last_layer is not None
    last = alternate(layer, targets, last, frozen, problem.rows_of_targets, params["sweeps"])
    C = layer.C.astype(np.float32)
    return LinearEncoder(features.kind, *((C[:-1], C[-1]) if bias else (C,))), last


def _blocks(targets: Targets) -> list[slice]:
    return [slice(a, min(a + _BLOCK, targets.n_rows)) for a in range(0, targets.n_rows, _BLOCK)]


def _times_last(targets: Targets, last: np.ndarray) -> np.ndarray:
    """Return R W_l^T with zero for missing entries: m x d."""
    matrix = targets.matrix
    if targets.sparse:
        return np.asarray(matrix @ last)
    if targets.complete:
        return matrix @ last.astype(np.float32)
    return np.concatenate([np.nan_to_num(matrix[b]) @ last for b in _blocks(targets)])


def _masked_product(targets: Targets, y: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return (M * (Y W_l)) W_l^T, where M is 1 for observed entries and 0 elsewhere: m x d."""
    matrix = targets.matrix
    if targets.sparse:
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        z = np.empty(matrix.nnz, np.float32)
        for a in range(0, matrix.nnz, _ENTRIES):
            part = slice(a, a + _ENTRIES)
            z[part] = np.einsum("ed,ed->e", y[row[part]], last[matrix.indices[part]])
        return np.asarray(sp.csr_matrix((z, matrix.indices, matrix.indptr), matrix.shape) @ last)
    parts = [(~np.isnan(matrix[b]) * (y[b] @ last.T)) @ last for b in _blocks(targets)]
    return np.concatenate(parts)


def _fit_last(targets: Targets, y: np.ndarray) -> np.ndarray:
    """Return the W_l^T that fits the observed entries best, given Y: n x d."""
    matrix, d = targets.matrix, y.shape[1]
    eye = 1e-6 * max(float(np.einsum("id,id->", y, y)) / d, 1e-12) * np.eye(d)
    if targets.complete:
        right = matrix.T @ y.astype(np.float32)
        return np.linalg.solve((y.T @ y).astype(np.float64) + eye, right.T).T
    upper = np.triu_indices(d)
    pairs = (y[:, upper[0]] * y[:, upper[1]]).astype(np.float32)
    if targets.sparse:
        ones = np.ones(matrix.nnz, np.float32)
        mask = sp.csr_matrix((ones, matrix.indices, matrix.indptr), matrix.shape)
        products, right = np.asarray(mask.T @ pairs), np.asarray(matrix.T @ y)
    else:
        products = np.zeros((matrix.shape[1], len(upper[0])), np.float32)
        right = np.zeros((matrix.shape[1], d), np.float32)
        for b in _blocks(targets):
            products += (~np.isnan(matrix[b])).T.astype(np.float32) @ pairs[b]
            right += np.nan_to_num(matrix[b]).T @ y[b]
    gram = np.empty((len(products), d, d))
    gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = products
    return np.linalg.solve(gram + targets.share * eye, right[..., None])[..., 0]
