"""Vectors of entities from their pairs: the step of `fit` that later pairs repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from simrec.data.sides import Side
from simrec.errors import InputError
from simrec.model.lists.uptake.least_squares import (
    Spectrum,
    products,
    ridges,
    row_sums,
    solve_rows,
    spectrum_of,
)

# Eigenvalues and eigenvectors of the last Gram matrices, with the arrays that they are of.
_SPECTRA: deque[tuple[Any, Any, Spectrum]] = deque(maxlen=4)


class Pairs(NamedTuple):
    """All pairs of some entities; arrays are in the order of `matrix.data`."""

    # Entities x partners: confidences
    matrix: sparse.csr_matrix
    # What of each confidence is new
    new: np.ndarray

    def of(self, some: np.ndarray) -> Pairs:
        """Return the pairs of some of the entities."""
        if some.all():
            return self
        return Pairs(self.matrix[some], self.new[np.repeat(some, np.diff(self.matrix.indptr))])


class NewRidge(NamedTuple):
    """How entities that had no pairs in `fit` are penalised; see `Solver`."""

    mean: float
    ridge: float
    zero: float
    new_zero: float
    new_ridge: float


@dataclass(frozen=True)
class Solver:
    """The numbers that solving for a vector takes, beside pairs and partners.

    Attributes
    ----------
    ridge, zero : float
        Penalty, and weight of an unobserved pair.
    new_zero, new_ridge : float
        For a new user: the share of `zero` that counts, since its unobserved pairs are weaker
        negatives; and a factor of its ridge.
    mean_items, mean_users : float
        Sum of confidences of an average item and user: from this count on an entity is warm.
    unit : float
        Factor of users' vectors that makes a scalar product a logit.
    n_users : int
        Users in `fit`, to which popularity relates.
    confidence : float
        Mean confidence of a pair in `fit`, in units of which all confidences are; 0 where all pairs
        count alike.
    """

    ridge: float
    zero: float
    new_zero: float
    new_ridge: float
    mean_items: float
    mean_users: float
    unit: float
    n_users: int
    confidence: float = 1.0

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> Solver:
        """Read the numbers from a model directory."""
        solver = cls(**document)
        for one in fields(solver):
            value = getattr(solver, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"uptake.json: {one.name} is {value!r}, expected a number")
            if not np.isfinite(value):
                raise InputError(f"uptake.json: {one.name} is {value!r}")
        return solver

    def item_vectors(self, V: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the vectors of known items: v and popularity."""
        return np.hstack([V, (counts / self.n_users).astype(np.float32)[:, None]])

    def user_vectors(self, U: np.ndarray) -> np.ndarray:
        """Return the vectors of known users: u, and no share of popularity, as logits."""
        none = np.zeros((len(U), 1), np.float32)
        return np.hstack([U * np.float32(self.unit), none])

    def solve(
        self,
        side: Side,
        pairs: Pairs,
        before: np.ndarray,
        fitted: np.ndarray,
        encoded: np.ndarray,
        partners: np.ndarray,
        axes: np.ndarray,
    ) -> np.ndarray:
        """Return the vectors of entities given all of their pairs.

        Parameters
        ----------
        side : {"items", "users"}
            Their side.
        pairs : Pairs
            Their pairs with all partners.
        before : numpy.ndarray
            Vectors so far.
        fitted : numpy.ndarray of bool
            Which of them had pairs in `fit`.
        encoded : numpy.ndarray
            Their vectors without any pairs: what features say, or those of an average one.
        partners : numpy.ndarray
            Vectors of all partners.
        axes : numpy.ndarray
            How vectors of the side are spread around what features say; see `spread_axes`.
        """
        n, spectrum, spectrum_of_new = pairs.matrix.shape[1], None, None
        if side == "users" and pairs.matrix.nnz < n // 8:
            # Partners without pairs enter by the Gram matrix of all, which is kept: a user with a
            # few ratings costs by those.
            if fitted.any():
                spectrum = self._kept_spectrum(side, partners)
            if not fitted.all():
                spectrum_of_new = self._kept_spectrum(side, partners, axes)
            used = np.unique(pairs.matrix.indices)
            pairs = pairs._replace(matrix=_within(pairs.matrix, used))
            partners = partners[used]
        plain = self._plain_partners(side, partners)
        counts = row_sums(pairs.matrix)
        out, unit = np.array(encoded, np.float32), np.float32(self.unit if side == "users" else 1.0)
        if fitted.any():
            # Those that were fitted go on from there: what is left of the new pairs is solved for.
            R, new = pairs.of(fitted)
            start: np.ndarray = np.ascontiguousarray(before[fitted, :-1] / unit)
            rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
            left = new / np.maximum(R.data, 1e-12)
            at = np.flatnonzero(left)  # few among all pairs of an item that many have rated
            left[at] *= 1 - products(start, plain[:, :-1], rows[at], R.indices[at])
            zero = np.full(R.shape[0], self.zero)
            penalties = ridges(R, self.ridge, self.zero, n)
            start += solve_rows(R, plain[:, :-1], penalties, zero, 1 - left, spectrum=spectrum)
            out[fitted] = (
                self.item_vectors(start, counts[fitted])
                if side == "items"
                else self.user_vectors(start)
            )
        if not fitted.all():
            # Who did not take up an item tells as much of a new one as of any other.
            ridge = NewRidge(self.mean_items, self.ridge, self.zero, 1.0, 1.0)
            if side == "users":
                numbers = self.mean_users, self.ridge, self.zero, self.new_zero, self.new_ridge
                ridge = NewRidge(*numbers)
            R, prior = pairs.of(~fitted).matrix, out[~fitted] / unit
            moved = moved_by_pairs(R, prior, plain, axes, ridge, n, spectrum_of_new)
            if side == "items":  # what features say of it fades as pairs come in
                moved[:, -1] += counts[~fitted] / self.n_users
            out[~fitted] = moved * unit
        return out

    def _kept_spectrum(
        self, side: Side, partners: np.ndarray, axes: np.ndarray | None = None
    ) -> Spectrum:
        """Return that of all partners, kept as long as they are asked for again."""
        # By address, which nothing else can have while the arrays are held here.
        arrays = (partners, *([] if axes is None else [axes]))
        key = (side, self.unit, *((a.__array_interface__["data"][0], a.shape) for a in arrays))
        for known, _, spectrum in list(_SPECTRA):
            if known == key:
                return spectrum
        plain = self._plain_partners(side, partners)[:, :-1]
        spectrum = spectrum_of(plain if axes is None else plain @ axes)
        _SPECTRA.append((key, arrays, spectrum))
        return spectrum

    def _plain_partners(self, side: Side, partners: np.ndarray) -> np.ndarray:
        """Return partners as they were when the other side was solved for."""
        return partners if side == "users" else np.ascontiguousarray(partners / self.unit, "f4")


def _within(matrix: sparse.csr_matrix, used: np.ndarray) -> sparse.csr_matrix:
    """Keep the columns `used`, which ascend and have all entries; SciPy would look at all."""
    parts = (matrix.data, np.searchsorted(used, matrix.indices), matrix.indptr)
    return sparse.csr_matrix(parts, shape=(matrix.shape[0], len(used)))


def moved_by_pairs(
    R: sparse.csr_matrix,
    prior: np.ndarray,
    partners: np.ndarray,
    axes: np.ndarray,
    penalty: NewRidge,
    n: int | None = None,
    spectrum: Spectrum | None = None,
) -> np.ndarray:
    """Move what features say by the pairs of entities that have only begun.

    With `mean` pairs or more an entity's zeros count fully and its prior no longer; with none zeros
    count `new_zero` times as much, and the ridge `new_ridge` times. The last coordinate,
    popularity, is not solved for.

    Parameters
    ----------
    R : csr_matrix
        Entities x partners: confidences.
    prior : numpy.ndarray
        What features, or popularity, say.
    partners : numpy.ndarray
        Vectors of the partners.
    axes : numpy.ndarray
        How vectors are spread around what features say; see `spread_axes`.
    penalty : NewRidge
        What draws them back.
    n, spectrum : optional
        Number of all partners and spectrum of their Gram matrix in these axes, where those without
        pairs are left out.
    """
    mean, ridge, zero, new_zero, new_ridge = penalty
    count = row_sums(R)
    done = np.minimum(count / max(mean, 1e-12), 1).astype(np.float32)
    start = prior * (1 - done)[:, None]
    rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    explained = products(start, partners, rows, R.indices)
    zeros = zero * (new_zero + (1 - new_zero) * done)
    penalties = ridge * new_ridge ** (1 - done) * (count + zeros * (n or R.shape[1]))
    moved = solve_rows(R, partners[:, :-1] @ axes, penalties, zeros, explained, spectrum=spectrum)
    start[:, :-1] += moved @ axes
    return start


def spread_axes(offsets: np.ndarray) -> np.ndarray:
    """Return the root of the covariance of offsets, of unit variance on average.

    A ridge in these axes draws back least where vectors differ most.
    """
    return axes_of((offsets.T @ offsets).astype(np.float64))


def axes_of(gram: np.ndarray) -> np.ndarray:
    """Return the same for offsets whose sum of squares and products is given."""
    values, Q = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(values, 0))
    root = root / np.sqrt((root**2).mean()) if root.any() else np.ones_like(root)
    return ((Q * root) @ Q.T).astype(np.float32)
