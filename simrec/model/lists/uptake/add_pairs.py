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


class Scaled(NamedTuple):
    """Vectors, and the factor that each carries; 0 for entities that had no pairs in `fit`."""

    vectors: np.ndarray
    factors: np.ndarray


class Pairs(NamedTuple):
    """All pairs of some entities; arrays are in the order of `matrix.data`."""

    # Entities x partners: confidences
    matrix: sparse.csr_matrix
    # What of each confidence is new
    new: np.ndarray
    # What pairs of new entities are taken for, beyond 1
    beyond: np.ndarray | None = None

    def of(self, some: np.ndarray) -> Pairs:
        """Return the pairs of some of the entities."""
        if some.all():
            return self
        here = np.repeat(some, np.diff(self.matrix.indptr))
        beyond = None if self.beyond is None else self.beyond[here]
        return Pairs(self.matrix[some], self.new[here], beyond)


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
    exponent, exponent_norm : float
        Vectors of known items are multiplied by (count + 1) ** exponent / exponent_norm.
    unit : float
        Factor of users' vectors that makes a scalar product a logit.
    n_users : int
        Users in `fit`, to which popularity relates.
    confidence : float
        Mean confidence of a pair in `fit`, in units of which all confidences are; 0 where all pairs
        count alike.
    slope, mean_rating : float
        What a new user's first pairs are taken for: 1 + slope * (rating - mean_rating). With a
        large slope, a low rating pushes the neighbours of its item down.
    """

    ridge: float
    zero: float
    new_zero: float
    new_ridge: float
    mean_items: float
    mean_users: float
    exponent: float
    exponent_norm: float
    unit: float
    n_users: int
    confidence: float = 1.0
    slope: float = 0.0
    mean_rating: float = 0.0

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

    def item_factor(self, counts: np.ndarray) -> np.ndarray:
        """Return the factor of the vectors of known items with these sums of confidences."""
        return item_factor(counts, self.exponent, self.exponent_norm)

    def item_vectors(self, V: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the vectors of known items: v times a factor for popularity, and popularity."""
        popularity = (counts / self.n_users).astype(np.float32)
        return np.hstack([V * self.item_factor(counts)[:, None], popularity[:, None]])

    def user_vectors(self, U: np.ndarray) -> np.ndarray:
        """Return the vectors of known users: u, and no share of popularity, as logits."""
        none = np.zeros((len(U), 1), np.float32)
        return np.hstack([U * np.float32(self.unit), none])

    def solve(
        self,
        side: Side,
        pairs: Pairs,
        before: Scaled,
        encoded: np.ndarray,
        partners: Scaled,
        axes: np.ndarray,
    ) -> np.ndarray:
        """Return the vectors of entities given all of their pairs.

        Parameters
        ----------
        side : {"items", "users"}
            Their side.
        pairs : Pairs
            Their pairs with all partners.
        before : Scaled
            Vectors so far.
        encoded : numpy.ndarray
            Their vectors without any pairs: what features say, or those of an average one.
        partners : Scaled
            Vectors of all partners.
        axes : numpy.ndarray
            How vectors of the side are spread around what features say; see `spread_axes`.
        """
        n, spectrum, spectrum_of_new = pairs.matrix.shape[1], None, None
        fitted = before.factors > 0
        if side == "users" and pairs.matrix.nnz < n // 8:
            # Partners without pairs enter by the Gram matrix of all, which is kept: a user with a
            # few ratings costs by those.
            if fitted.any():
                spectrum = self._kept_spectrum(side, partners)
            if not fitted.all():
                spectrum_of_new = self._kept_spectrum(side, partners, axes)
            used = np.unique(pairs.matrix.indices)
            pairs = pairs._replace(matrix=_within(pairs.matrix, used))
            partners = Scaled(*(one[used] for one in partners))
        plain = self._plain_partners(side, partners)
        counts = row_sums(pairs.matrix)
        out = np.array(encoded, np.float32)
        if fitted.any():
            # Those that were fitted go on from there: what is left of the new pairs is solved for.
            R, new, _ = pairs.of(fitted)
            scale = before.factors[fitted] * np.float32(self.unit if side == "users" else 1.0)
            start: np.ndarray = np.ascontiguousarray(before.vectors[fitted, :-1] / scale[:, None])
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
            unit = np.float32(self.unit if side == "users" else 1.0)
            # Who did not take up an item tells as much of a new one as of any other.
            ridge = NewRidge(self.mean_items, self.ridge, self.zero, 1.0, 1.0)
            if side == "users":
                numbers = self.mean_users, self.ridge, self.zero, self.new_zero, self.new_ridge
                ridge = NewRidge(*numbers)
            R, _, beyond = pairs.of(~fitted)
            prior = out[~fitted] / unit
            moved = moved_by_pairs(R, prior, plain, axes, ridge, beyond, n, spectrum_of_new)
            if side == "items":  # what features say of it fades as pairs come in
                moved[:, -1] += counts[~fitted] / self.n_users
            out[~fitted] = moved * unit
        return out

    def _kept_spectrum(
        self, side: Side, partners: Scaled, axes: np.ndarray | None = None
    ) -> Spectrum:
        """Return that of all partners, kept as long as they are asked for again."""
        # By address, which nothing else can have while the arrays are held here.
        arrays = (*partners, *([] if axes is None else [axes]))
        key = (side, self.unit, *((a.__array_interface__["data"][0], a.shape) for a in arrays))
        for known, _, spectrum in list(_SPECTRA):
            if known == key:
                return spectrum
        plain = self._plain_partners(side, partners)[:, :-1]
        spectrum = spectrum_of(plain if axes is None else plain @ axes)
        _SPECTRA.append((key, arrays, spectrum))
        return spectrum

    def _plain_partners(self, side: Side, partners: Scaled) -> np.ndarray:
        """Return partners as they were when the other side was solved for."""
        vectors, factors = partners
        if side == "items":
            return np.ascontiguousarray(vectors / np.float32(self.unit))
        plain = np.array(vectors)
        plain[:, :-1] /= np.where(factors > 0, factors, 1)[:, None]
        return plain


def _within(matrix: sparse.csr_matrix, used: np.ndarray) -> sparse.csr_matrix:
    """Keep the columns `used`, which ascend and have all entries; SciPy would look at all."""
    parts = (matrix.data, np.searchsorted(used, matrix.indices), matrix.indptr)
    return sparse.csr_matrix(parts, shape=(matrix.shape[0], len(used)))


def item_factor(counts: np.ndarray, exponent: float, norm: float) -> np.ndarray:
    """Return (count + 1) ** exponent / norm."""
    return ((counts + 1.0) ** exponent / norm).astype(np.float32)


def moved_by_pairs(
    R: sparse.csr_matrix,
    prior: np.ndarray,
    partners: np.ndarray,
    axes: np.ndarray,
    penalty: NewRidge,
    beyond: np.ndarray | None = None,
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
    beyond : numpy.ndarray, optional
        What each pair is taken for, beyond 1.
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
    if beyond is not None:
        explained -= beyond
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
