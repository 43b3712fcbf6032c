"""Closed form: alternating least squares between the encoder's last layer and W_l.

With a squared error and an unbounded output the loss is quadratic in the encoder's last (linear)
layer, and quadratic in W_l; a bounded output is fitted through its inverse. Earlier layers stay as
they are. Without hidden layers this solves a linear similarity encoder; with hidden layers it
solves for the linear parts of a network of random features, which gradient training can then
improve. NumPy alone.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from simrec.scoring.output import Output
from simrec.simec.fitted import LinearEncoder
from simrec.simec.initial import first_last_layer
from simrec.simec.inputs import Problem, Targets
from simrec.simec.linear_algebra import conjugate_gradients

logger = logging.getLogger(__name__)

_BLOCK = 1000  # rows whose products with all columns are formed at a time
_ENTRIES = 1 << 20  # entries of a sparse R handled at a time


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
        if self.F is None:
            self.C = _fit_rows(targets, last, gram)
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
        if rows_of_targets is not None and targets.n_relations == 1:
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
    linear = _on_the_scale_of_products(problem.targets, problem.output)
    frozen = problem.last_layer is not None
    last = alternate(layer, linear, last, frozen, problem.rows_of_targets, params["sweeps"])
    C = layer.C.astype(np.float32)
    return LinearEncoder(features.kind, *((C[:-1], C[-1]) if bias else (C,))), last


def _on_the_scale_of_products(targets: Targets, output: Output) -> Targets:
    """Return what the inverse of the output makes of the targets."""
    if not output.shift and not output.bounded:
        return targets
    matrix = targets.matrix.copy()
    values = matrix.data if targets.sparse else matrix
    values[...] = output.link(values) - np.float32(output.shift)
    return replace(targets, matrix=matrix)


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


def _fit_last(targets: Targets, y: np.ndarray, ridge: float = 1e-6) -> np.ndarray:
    """Return the W_l^T that fits the observed entries best, given Y: n x d."""
    matrix, d = targets.matrix, y.shape[1]
    eye = ridge * max(float(np.einsum("id,id->", y, y)) / d, 1e-12) * np.eye(d)
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


def _fit_rows(targets: Targets, last: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return the Y that fits best given W_l, each row on its own."""
    if targets.complete:
        table = np.linalg.solve(gram, _times_last(targets, last).T).T
    else:
        matrix = targets.matrix.T.tocsr() if targets.sparse else targets.matrix.T
        table = _fit_last(Targets(matrix, matrix.shape[1], 1, False), last)
    return np.asarray(table, np.float32)
