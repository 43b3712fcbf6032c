"""Ridge regression on features whose columns count by what they say of held-out rows."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.simec.linear_algebra import by_column, conjugate_gradients

# Penalties of all columns, and steps of the weight of one.
_PENALTIES = tuple(0.1 * 4.0**k for k in range(7))
_STEPS = (0.25, 4.0)
_LARGEST = 256.0
# Weights with which a column is tried: one of many features may do harm with a large one. It is
# left out if it gains less than a share of the error, or so many standard errors, with each.
_WEIGHTS = (1.0, 1 / 16, 1 / 256)
_GAIN, _CLEAR = 5e-4, 3.0
# Standard errors by which a column on its own has to be better than the mean. Of 120 columns of
# noise on four data sets four are so by two, and real ones of 700 items are not by three.
_CLEAR_ALONE = 2.0
_FOLDS, _ROUNDS = 5, 2
# Share of the rows from which on a feature is kept as a dense one.
_FULL = 0.3
# Conjugate gradients: steps at most, and the residual, relative to the right-hand side, at which
# they end: for an error, and for weights.
_ITERATIONS, _TOLERANCE, _TOLERANCE_OF_WEIGHTS = 100, 3e-3, 3e-4


@dataclass(frozen=True, eq=False)
class Weighed:
    """A penalty, weights of the columns beside it, and squared errors of rows held out."""

    penalty: float
    columns: np.ndarray
    errors: np.ndarray

    @property
    def error(self) -> float:
        """The sum of the squared errors."""
        return float(self.errors.sum())


class ColumnRegression:
    """Ridge regressions on the same rows, with any weights of their columns.

    Weights multiply squared features, so that a penalty is divided by them. Features are taken
    around their means. Fits without each fold are solved side by side, in a number for each row.

    Parameters
    ----------
    Z : csr_matrix
        Feature rows.
    groups : numpy.ndarray
        The column of each feature.
    y : numpy.ndarray
        What to predict: a number for each row, or several.
    rng : numpy.random.Generator
        Source of the folds.
    """

    def __init__(
        self, Z: sparse.csr_matrix, groups: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> None:
        self._learn(Z, groups, y, rng.permutation(len(y)) % _FOLDS)

    def _learn(
        self, Z: sparse.csr_matrix, groups: np.ndarray, y: np.ndarray, fold: np.ndarray
    ) -> None:
        self._given = Z, groups, y, fold
        # What nearly all rows have, such as coordinates of vectors, is faster as a dense matrix.
        full = np.bincount(Z.indices, minlength=Z.shape[1]) > _FULL * Z.shape[0]
        # Features in another order, so that each kind is a block.
        self._order, self._n_thin = np.argsort(full, kind="stable"), int((~full).sum())
        Z = sparse.csr_matrix(Z[:, self._order])
        self._Z, self._dense = Z[:, : self._n_thin], Z[:, self._n_thin :].toarray()
        self._ZT, self._groups = self._Z.T.tocsr(), groups[self._order]
        self._mean = np.asarray(Z.mean(0), np.float32).ravel()
        self._y = y.astype(np.float32).reshape(len(y), -1)
        seen = (fold[:, None] != np.arange(_FOLDS)).astype(np.float32)
        self._seen = np.repeat(seen, self._y.shape[1], axis=1)
        tiled = np.tile(self._y, _FOLDS)
        # Around the mean of the rows that each fit has seen.
        self._off = tiled - (tiled * self._seen).sum(0) / self._seen.sum(0)
        self._squares = Z.multiply(Z).tocsr()
        self._found: np.ndarray | None = None  # solution to go on from, of the same folds

    def plain(self) -> Weighed:
        """Choose one penalty of all columns."""
        n = int(self._groups.max(initial=-1)) + 1
        return self._with_penalty(np.ones(n, np.float32))

    def chosen(self, plain: Weighed) -> Weighed:
        """Choose the penalty and the weights of columns, given what `plain` returned.

        Columns that tell nothing are left out first: what is chosen of the others does not depend
        on them, not even by rounding.
        """
        if len(plain.columns) == 1:
            return plain
        columns = self.telling(plain, range(len(plain.columns))).columns
        kept, rest = np.flatnonzero(columns).tolist(), self
        Z, groups, y, fold = self._given
        if len(kept) < len(columns):
            rest, own = copy(self), np.isin(groups, kept)
            rest._learn(Z[:, own], groups[own], y, fold)
        best = rest._with_penalty(columns)
        for _ in range(_ROUNDS):
            before = best
            for column in kept:
                best = rest._moved(best, column)
            if best is before:
                break
        return best

    def telling(self, plain: Weighed, columns: Iterable[int]) -> Weighed:
        """Leave out those of some columns without which rows are predicted as well."""
        best = plain
        for column in columns:
            best = self._told(best, column)
        return best

    def _with_penalty(self, columns: np.ndarray) -> Weighed:
        """Choose the penalty, from the largest one on for as long as a smaller one gains."""
        self._found, best = None, Weighed(np.inf, columns, np.array([np.inf]))
        for penalty in reversed(_PENALTIES):
            tried = Weighed(penalty, columns, self._errors(penalty, columns))
            if tried.error >= best.error:
                break
            best = tried
        return best

    def _with_weight(self, best: Weighed, column: int, weight: float) -> Weighed:
        columns = best.columns.copy()
        columns[column] = weight
        return replace(best, columns=columns, errors=self._errors(best.penalty, columns))

    def _told(self, best: Weighed, column: int) -> Weighed:
        """Give a column the first weight with which it clearly gains, or none."""
        without = self._with_weight(best, column, 0.0)
        for weight in _WEIGHTS:
            same = best.columns[column] == weight
            tried = best if same else self._with_weight(best, column, weight)
            if _clearly_better(tried.errors, without.errors, _CLEAR):
                return tried
        return without

    def tells(self, best: Weighed) -> bool:
        """Tell whether held-out rows are clearly predicted better than by the mean."""
        mean = np.square(self._off * (1 - self._seen), dtype=np.float64).sum(1)
        return _clearly_better(best.errors, mean, _CLEAR_ALONE)

    def _moved(self, best: Weighed, column: int) -> Weighed:
        """Change the weight of a column, down or else up, while that gains."""
        for step in _STEPS:
            first = best
            while 1 / _LARGEST <= (weight := best.columns[column] * step) <= _LARGEST:
                trial = self._with_weight(best, column, float(weight))
                if trial.error >= (1 - _GAIN) * best.error:
                    break
                best = trial
            if best is not first:
                break
        return best

    def _errors(self, penalty: float, columns: np.ndarray) -> np.ndarray:
        """Return the squared error of each row, held out."""
        seen, tried = self._seen, Weighed(penalty, columns, self._y)
        self._found = self._solve(self._off * seen, seen, tried, self._found, _TOLERANCE)
        left = self._off - self._image(self._found, columns)
        return np.square(left * (1 - seen), dtype=np.float64).sum(1)

    def weights(self, weighed: Weighed) -> np.ndarray:
        """Return the weights of the features and at last of a constant, fitted to all rows."""
        mean = self._y.mean(0)
        off = self._y - mean
        found = self._solve(off, np.ones_like(off), weighed, None, _TOLERANCE_OF_WEIGHTS)
        weights = self._back(found, weighed.columns)
        in_order = np.empty_like(weights)
        in_order[self._order] = weights
        return np.vstack([in_order, mean - self._mean @ weights])

    def _back(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the weights of features that a combination of rows stands for."""
        back = np.empty((len(self._mean), P.shape[1]), np.float32)
        back[: self._n_thin] = self._ZT @ P
        back[self._n_thin :] = self._dense.T @ P
        back -= self._mean[:, None] * P.sum(0)
        back *= columns[self._groups][:, None]
        return back

    def _image(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        weights = self._back(P, columns)
        image = np.asarray(self._Z @ weights[: self._n_thin])
        image += self._dense @ weights[self._n_thin :]
        return image - self._mean @ weights

    def _solve(
        self,
        right: np.ndarray,
        seen: np.ndarray,
        weighed: Weighed,
        start: np.ndarray | None,
        tolerance: float,
    ) -> np.ndarray:
        """Solve (Z W Z' + penalty) A = right among the rows that were seen."""
        penalty, columns = np.float32(weighed.penalty), weighed.columns
        diagonal = np.asarray(self._squares @ columns[self._groups])[:, None] + penalty

        def normal(A: np.ndarray) -> np.ndarray:
            return seen * self._image(A, columns) + penalty * A

        return conjugate_gradients(
            normal, right, lambda r: r / diagonal, start, _ITERATIONS, tolerance, by_column
        )


def _clearly_better(errors: np.ndarray, before: np.ndarray, n_errors: float) -> bool:
    gains = before - errors
    clear = n_errors * gains.std() / np.sqrt(len(gains))
    return bool(gains.mean() > max(clear, _GAIN * before.mean()))
