"""Features X and targets R of a similarity encoder: checked once, then fetched in batches.

Targets of k relations lie side by side as k * n columns, so that the network only knows rows and
columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError

FEATURE_KINDS = ("dense", "sparse", "identity")


def _example(bad: np.ndarray) -> str:
    return str(tuple(int(i) for i in np.argwhere(bad)[0]))


@dataclass(frozen=True)
class Features:
    """Feature rows: dense (any shape past the first axis), CSR, or the identity of m rows.

    Attributes
    ----------
    kind : {"dense", "sparse", "identity"}
    n_rows : int
    shape : tuple of int
        Shape of one row.
    data : ndarray, csr_matrix or None
    """

    kind: str
    n_rows: int
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def check(cls, X: Any, n_rows: int | None = None, name: str = "X") -> "Features":
        """Return checked float32 features; `X` None is the identity of `n_rows` rows."""
        if X is None:
            if n_rows is None:
                raise InputError(
                    f"{name} is None (the identity), but the number of rows is unknown"
                )
            return cls("identity", n_rows, (n_rows,), None)
        if sp.issparse(X):
            csr = sp.csr_matrix(X, dtype=np.float32)
            values = csr.data
            features = cls("sparse", csr.shape[0], (csr.shape[1],), csr)
        else:
            values = np.asarray(X)
            if values.dtype.kind not in "fiub":
                raise InputError(
                    f"{name} must hold numbers, got dtype {values.dtype}: encode categories first, "
                    "for example with simrec.FeatureEncoder"
                )
            values = np.ascontiguousarray(values, dtype=np.float32)
            if values.ndim < 2:
                raise InputError(f"{name} must have a row per entity, got shape {values.shape}")
            features = cls("dense", values.shape[0], values.shape[1:], values)
        bad = ~np.isfinite(values)
        if bad.any():
            raise InputError(
                f"{name} holds {int(bad.sum())} NaN or infinite values, the first at position "
                f"{_example(bad)}: replace them, for example by 0 with a column that says so"
            )
        if features.n_rows == 0:
            raise InputError(f"{name} has no rows")
        if n_rows is not None and features.n_rows != n_rows:
            raise InputError(
                f"{name} has {features.n_rows} rows, but the targets have {n_rows}: a row each"
            )
        return features

    def as_kind(self, kind: str) -> "Features":
        """Return the same rows as the kind that the encoder takes."""
        if kind == self.kind:
            return self
        data = self.data.toarray() if kind == "dense" else sp.csr_matrix(self.data)
        return Features(kind, self.n_rows, self.shape, data)

    def fetcher(self, densify: bool = False) -> Callable[[Any], Any]:
        """Return a graph function from row numbers to the encoder's input for those rows."""
        from simrec.simec.keras import tf

        if self.kind == "identity":
            return lambda rows: tf.cast(rows, tf.int32)
        if self.kind == "dense":
            dense = tf.constant(self.data)
            return lambda rows: tf.gather(dense, rows)
        start = tf.constant(self.data.indptr.astype(np.int64))
        columns = tf.constant(self.data.indices.astype(np.int64))
        values = tf.constant(self.data.data)

        def fetch(rows: Any) -> Any:
            entries = tf.ragged.range(tf.gather(start, rows), tf.gather(start, rows + 1))
            flat = entries.flat_values
            row = tf.cast(entries.value_rowids(), tf.int64)
            sparse = tf.SparseTensor(
                tf.stack([row, tf.gather(columns, flat)], axis=1),
                tf.gather(values, flat),
                tf.stack([tf.size(rows, out_type=tf.int64), self.shape[0]]),
            )
            return tf.sparse.to_dense(tf.sparse.reorder(sparse)) if densify else sparse

        return fetch


@dataclass(frozen=True)
class Targets:
    """Targets of m rows and k * n columns, some of them observed.

    Attributes
    ----------
    matrix : ndarray or csr_matrix
        float32, m x (k n), relation after relation. NaN marks what is missing in a dense one; in a
        sparse one what is not stored is missing.
    n_columns : int
        n, the number of targets of one relation.
    n_relations : int
        k.
    complete : bool
        Whether every entry is observed.
    """

    matrix: Any
    n_columns: int
    n_relations: int
    complete: bool

    @classmethod
    def check(cls, R: Any, name: str = "R") -> "Targets":
        """Return checked targets from a matrix, an m x n x k array, or a sequence of matrices."""
        if isinstance(R, list | tuple) and R and all(sp.issparse(r) for r in R):
            shapes = {r.shape for r in R}
            if len(shapes) > 1:
                raise InputError(f"the relations in {name} have different shapes: {sorted(shapes)}")
            return cls._sparse(sp.hstack([sp.csr_matrix(r) for r in R], "csr"), len(R), name)
        if sp.issparse(R):
            return cls._sparse(R, 1, name)
        dense = np.asarray(R)
        if dense.dtype.kind not in "fiub":
            raise InputError(f"{name} must hold numbers, got dtype {dense.dtype}")
        if dense.ndim not in (2, 3):
            raise InputError(f"{name} must be m x n or m x n x k, got shape {dense.shape}")
        n_relations = 1 if dense.ndim == 2 else dense.shape[2]
        n_columns = dense.shape[1]
        if dense.ndim == 3:
            dense = np.moveaxis(dense, 2, 1).reshape(dense.shape[0], -1)
        dense = np.ascontiguousarray(dense, dtype=np.float32)
        if dense.size == 0:
            raise InputError(f"{name} is empty: shape {dense.shape}")
        # The sum is finite only if all terms are: one pass, no array of the size of R.
        complete = bool(np.isfinite(dense.sum()))
        if not complete:
            if np.isinf(dense).any():
                raise InputError(
                    f"{name} holds infinite values, the first at {_example(np.isinf(dense))}: "
                    "a missing value is NaN"
                )
            missing = np.isnan(dense)
            complete = not missing.any()
            if missing.all():
                raise InputError(f"{name} has no observed entry: all values are NaN")
        return cls(dense, n_columns, n_relations, complete)

    @classmethod
    def _sparse(cls, R: Any, n_relations: int, name: str) -> "Targets":
        csr = sp.csr_matrix(R, dtype=np.float32)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        if csr.nnz == 0:
            raise InputError(
                f"{name} has no observed entry: nothing is stored in the sparse matrix"
            )
        if not np.isfinite(csr.data).all():
            raise InputError(
                f"{name} stores {int((~np.isfinite(csr.data)).sum())} NaN or infinite values: in a "
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

    def take(self, rows: np.ndarray) -> "Targets":
        """Return the targets of these rows."""
        return Targets(self.matrix[rows], self.n_columns, self.n_relations, self.complete)

    def select_columns(self, columns: np.ndarray) -> "Targets":
        """Return these targets of every relation."""
        offsets = np.arange(self.n_relations) * self.n_columns
        where = (offsets[:, None] + columns[None, :]).ravel()
        return Targets(self.matrix[:, where], len(columns), self.n_relations, self.complete)

    def relation(self, r: int) -> Any:
        """Return the matrix of relation `r`."""
        return self.matrix[:, r * self.n_columns : (r + 1) * self.n_columns]

    def fetcher(self, column_weights: np.ndarray | None = None) -> Callable[[Any], dict[str, Any]]:
        """Return a graph function from row numbers to the observed entries of those rows.

        Dense: ``targets`` (b x columns) and, unless all count alike, ``weights``. Sparse: flat
        ``targets``, ``columns`` and ``segments`` (each entry's row within the batch), and
        ``weights`` where relations weigh differently.
        """
        from simrec.simec.keras import tf

        weights = None if column_weights is None else tf.constant(column_weights, tf.float32)
        if self.sparse:
            start = tf.constant(self.matrix.indptr.astype(np.int64))
            columns = tf.constant(self.matrix.indices.astype(np.int32))
            values = tf.constant(self.matrix.data)

            def fetch_entries(rows: Any) -> dict[str, Any]:
                entries = tf.ragged.range(tf.gather(start, rows), tf.gather(start, rows + 1))
                flat = entries.flat_values
                found = {
                    "targets": tf.gather(values, flat),
                    "columns": tf.gather(columns, flat),
                    "segments": tf.cast(entries.value_rowids(), tf.int32),
                }
                if weights is not None:
                    found["weights"] = tf.gather(weights, found["columns"])
                return found

            return fetch_entries
        matrix = tf.constant(self.matrix)
        complete = self.complete

        def fetch_rows(rows: Any) -> dict[str, Any]:
            targets = tf.gather(matrix, rows)
            if complete and weights is None:
                return {"targets": targets}
            if complete:
                return {"targets": targets, "weights": tf.ones_like(targets) * weights}
            missing = tf.math.is_nan(targets)
            mask = tf.cast(~missing, tf.float32)
            # NaN times a weight of zero is NaN: replace the value too.
            targets = tf.where(missing, tf.zeros_like(targets), targets)
            return {"targets": targets, "weights": mask if weights is None else mask * weights}

        return fetch_rows


def row_batches(
    counts: np.ndarray, batch_size: int, rng: np.random.Generator | None
) -> list[np.ndarray]:
    """Split the rows that have entries into batches with about equal numbers of entries.

    Parameters
    ----------
    counts : ndarray
        Observed entries per row.
    batch_size : int
        Rows of a batch if all rows had the mean number of entries.
    rng : numpy.random.Generator or None
        Shuffles the rows; None keeps their order.
    """
    rows = np.flatnonzero(counts)
    if rng is not None:
        rows = rng.permutation(rows)
    total = int(counts[rows].sum())
    n_batches = max(1, round(len(rows) / batch_size))
    done = np.cumsum(counts[rows]) - counts[rows]
    number = done * n_batches // total
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def check_columns(targets: int | Sequence[int] | np.ndarray, n_columns: int) -> np.ndarray:
    """Return target columns as an array: the first `targets`, or those given."""
    if isinstance(targets, int | np.integer):
        if not 1 <= targets <= n_columns:
            raise InputError(f"targets must be between 1 and {n_columns}, got {targets}")
        return np.arange(int(targets))
    columns = np.asarray(targets)
    if columns.ndim != 1 or columns.dtype.kind not in "iu" or len(columns) == 0:
        raise InputError("targets must be a number of columns or a list of column numbers")
    if columns.min() < 0 or columns.max() >= n_columns:
        raise InputError(f"targets must be between 0 and {n_columns - 1}, got {columns.max()}")
    if len(np.unique(columns)) != len(columns):
        raise InputError("targets names a column twice")
    return columns.astype(np.int64)
