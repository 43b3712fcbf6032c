"""Features X and targets R of a similarity encoder, checked, and batches of their rows.

Targets of k relations lie side by side as k * n columns, so that the network only knows rows and
columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError
from simrec.scoring.output import Output

FEATURE_KINDS = ("dense", "sparse", "identity")


@dataclass(frozen=True)
class Features:
    """Rows of one `shape`: dense (of any shape), CSR, or the identity, which has no data."""

    kind: str
    n_rows: int
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def check(cls, X: Any, n_rows: int | None = None) -> "Features":
        """Return checked float32 features; `X` None is the identity of `n_rows` rows."""
        if X is None:
            assert n_rows is not None
            return cls("identity", n_rows, (n_rows,), None)
        if sp.issparse(X):
            csr = sp.csr_matrix(X, dtype=np.float32)
            values = csr.data
            features = cls("sparse", csr.shape[0], (csr.shape[1],), csr)
        else:
            values = np.asarray(X)
            if values.dtype.kind not in "fiub":
                raise InputError(
                    f"X must hold numbers, got dtype {values.dtype}: encode categories first, "
                    "for example with simrec.FeatureEncoder"
                )
            values = np.ascontiguousarray(values, dtype=np.float32)
            if values.ndim < 2:
                raise InputError(f"X must have a row per entity, got shape {values.shape}")
            features = cls("dense", values.shape[0], values.shape[1:], values)
        bad = ~np.isfinite(values)
        if bad.any():
            raise InputError(
                f"X holds {int(bad.sum())} NaN or infinite values, the first at position "
                f"{_first(bad)}: replace them, for example by 0 with a column that says so"
            )
        if features.n_rows == 0:
            raise InputError("X has no rows")
        if n_rows is not None and features.n_rows != n_rows:
            raise InputError(
                f"X has {features.n_rows} rows, but the targets have {n_rows}: a row each"
            )
        return features

    @classmethod
    def like_fitted(cls, X: Any, kind: str, shape: tuple[int, ...]) -> "Features":
        """Return checked features of the kind and shape that a model was fitted on."""
        if X is None and kind != "identity":
            raise InputError("X is None, but the model was fitted on features")
        if X is not None and kind == "identity":
            raise InputError("fitted with X=None (the identity), the model takes no features")
        features = cls.check(X, shape[0] if X is None else None)
        if features.shape != shape:
            raise InputError(
                f"a row of X has shape {features.shape}, but the model was fitted on {shape}"
            )
        return features.as_kind(kind)

    def as_kind(self, kind: str) -> "Features":
        """Return the same rows as the kind that the encoder takes."""
        if kind == self.kind:
            return self
        data = self.data.toarray() if kind == "dense" else sp.csr_matrix(self.data)
        return Features(kind, self.n_rows, self.shape, data)


@dataclass(frozen=True)
class Targets:
    """Targets of m rows and k relations of n columns each, some of them observed.

    `matrix` is float32, m x (k n). In a dense one NaN is missing, in a CSR one what is not stored.
    """

    matrix: Any
    n_columns: int
    n_relations: int
    complete: bool

    @classmethod
    def check(cls, R: Any) -> "Targets":
        """Return checked targets from a matrix, an m x n x k array, or a sequence of matrices."""
        if isinstance(R, list | tuple) and R and all(sp.issparse(r) for r in R):
            shapes = {r.shape for r in R}
            if len(shapes) > 1:
                raise InputError(f"the relations in R have different shapes: {sorted(shapes)}")
            return cls._sparse(sp.hstack([sp.csr_matrix(r) for r in R], "csr"), len(R))
        if sp.issparse(R):
            return cls._sparse(R, 1)
        dense = np.asarray(R)
        if dense.dtype.kind not in "fiub":
            raise InputError(f"R must hold numbers, got dtype {dense.dtype}")
        if dense.ndim not in (2, 3):
            raise InputError(f"R must be m x n or m x n x k, got shape {dense.shape}")
        n_columns, n_relations = dense.shape[1], 1 if dense.ndim == 2 else dense.shape[2]
        if dense.ndim == 3:
            dense = np.moveaxis(dense, 2, 1).reshape(dense.shape[0], -1)
        dense = np.ascontiguousarray(dense, dtype=np.float32)
        if dense.size == 0:
            raise InputError(f"R is empty: shape {dense.shape}")
        infinite, missing = np.isinf(dense), np.isnan(dense)
        if infinite.any():
            raise InputError(
                f"R holds infinite values, the first at {_first(infinite)}: a missing value is NaN"
            )
        if missing.all():
            raise InputError("R has no observed entry: all values are NaN")
        return cls(dense, n_columns, n_relations, complete=not missing.any())

    @classmethod
    def _sparse(cls, R: Any, n_relations: int) -> "Targets":
        csr = sp.csr_matrix(R, dtype=np.float32)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        if csr.nnz == 0:
            raise InputError("R has no observed entry: nothing is stored in the sparse matrix")
        if not np.isfinite(csr.data).all():
            raise InputError(
                f"R stores {int((~np.isfinite(csr.data)).sum())} NaN or infinite values: in a "
                "sparse matrix a missing entry is simply not stored"
            )
        return cls(csr, csr.shape[1] // n_relations, n_relations, False)

    @property
    def sparse(self) -> bool:
        """Whether the observed entries are kept as a list rather than as a matrix."""
        return bool(sp.issparse(self.matrix))

    @property
    def n_rows(self) -> int:
        """Number of rows m."""
        return int(self.matrix.shape[0])

    @cached_property
    def share(self) -> float:
        """Share of the entries that is observed."""
        return 1.0 if self.complete else int(self.counts().sum()) / np.prod(self.matrix.shape)

    def counts(self) -> np.ndarray:
        """Return the number of observed entries of each row."""
        if self.sparse:
            return np.diff(self.matrix.indptr)
        if self.complete:
            return np.full(self.n_rows, self.matrix.shape[1])
        return (~np.isnan(self.matrix)).sum(1)

    def values(self) -> np.ndarray:
        """Return all observed values, flat."""
        if self.sparse:
            return np.asarray(self.matrix.data)
        return self.matrix.ravel() if self.complete else self.matrix[~np.isnan(self.matrix)]


@dataclass(frozen=True, eq=False)
class Problem:
    """What a `SimEc` is fitted to, with its options.

    `rows_of_targets` has the row of each target where a term of the loss compares the two.
    """

    params: Mapping[str, Any]
    features: Features
    targets: Targets
    output: Output
    rows_of_targets: np.ndarray | None
    last_layer: np.ndarray | None
    rng: np.random.Generator


def row_batches(
    counts: np.ndarray, batch_size: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """Split the rows that have entries into batches with about equal numbers of entries.

    `counts` are the entries of each row, `batch_size` the rows of a batch if all had the mean
    number; `rng` shuffles the rows.
    """
    rows = np.flatnonzero(counts)
    if rng is not None:
        rows = rng.permutation(rows)
    n_batches = max(1, round(len(rows) / batch_size))
    done = np.cumsum(counts[rows]) - counts[rows]
    number = done * n_batches // int(counts[rows].sum())
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def _first(bad: np.ndarray) -> str:
    return str(tuple(int(i) for i in np.argwhere(bad)[0]))
