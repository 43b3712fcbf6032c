"""Vectors of entities from their pairs: the step of `fit` that later pairs repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy import sparse

from simrec.data.sides import Side
from simrec.errors import InputError
from simrec.model.uptake.least_squares import ridges, solve_rows

# Pairs whose scalar products are formed at once.
_PIECE = 1 << 18


@dataclass(frozen=True)
class Solver:
    """The numbers that solving for a vector takes, beside pairs and partners.

    Attributes
    ----------
    ridge, zero : float
        Penalty, and weight of a pair that is not there.
    begun_zero, begun_gain : float
        For an entity that has only begun: the share of `zero` that counts, since it has not turned
        down what it has not met; and a factor of what its pairs add to what features say.
    mean_items, mean_users : float
        Sum of confidences of an average item and user: with as many an entity is known.
    exponent, exponent_norm : float
        Vectors of known items are multiplied by (count + 1) ** exponent / exponent_norm.
    unit : float
        Factor of users' vectors that makes a scalar product a logit.
    n_users : int
        Users in `fit`, to which popularity relates.
    """

    ridge: float
    zero: float
    begun_zero: float
    begun_gain: float
    mean_items: float
    mean_users: float
    exponent: float
    exponent_norm: float
    unit: float
    n_users: int

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
        """Return the vectors of known items: v times a factor for popularity, and popularity."""
        factor = ((counts + 1.0) ** self.exponent / self.exponent_norm).astype(np.float32)
        popularity = (counts / self.n_users).astype(np.float32)
        return np.hstack([V * factor[:, None], popularity[:, None]])

    def user_vectors(self, U: np.ndarray) -> np.ndarray:
        """Return the vectors of known users: u, and no share of popularity, as logits."""
        none = np.zeros((len(U), 1), np.float32)
        return np.hstack([U * np.float32(self.unit), none])

    def solve(
        self,
        side: Side,
        pairs: sparse.csr_matrix,
        before: np.ndarray,
        partners: np.ndarray,
        partner_counts: np.ndarray,
        known: np.ndarray,
    ) -> np.ndarray:
        """Return the vectors of entities given all of their pairs.

        Parameters
        ----------
        side : {"items", "users"}
            Their side.
        pairs : csr_matrix
            Entities x all partners: confidences.
        before : numpy.ndarray
            Their vectors so far; of new ones, what features say.
        partners : numpy.ndarray
            Vectors of all partners.
        partner_counts : numpy.ndarray
            Sum of confidences of each partner.
        known : numpy.ndarray of bool
            Those who had pairs in `fit`, where their vectors were solved for without a prior.
        """
        plain = self._plain_partners(side, partners, partner_counts)
        counts = np.asarray(pairs.sum(1)).ravel()
        out = np.array(before, np.float32)
        if known.any():
            R = pairs[known]
            zero = np.full(R.shape[0], self.zero)
            solved = solve_rows(R, plain[:, :-1], ridges(R, self.ridge, self.zero), zero)
            out[known] = (
                self.item_vectors(solved, counts[known])
                if side == "items"
                else self.user_vectors(solved)
            )
        if not known.all():
            unit = np.float32(self.unit if side == "users" else 1.0)
            mean = self.mean_users if side == "users" else self.mean_items
            start = out[~known] / unit
            moved = moved_by_pairs(
                pairs[~known],
                start,
                plain,
                mean,
                self.ridge,
                self.zero,
                self.begun_zero,
                self.begun_gain,
            )
            out[~known] = moved * unit
        return out

    def _plain_partners(self, side: Side, partners: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return partners as they were when the other side was solved for."""
        if side == "items":
            return np.ascontiguousarray(partners / np.float32(self.unit))
        factor = ((counts + 1.0) ** self.exponent / self.exponent_norm).astype(np.float32)
        plain = np.array(partners)
        known = counts > 0
        plain[known, :-1] /= factor[known, None]
        return plain


def moved_by_pairs(
    R: sparse.csr_matrix,
    prior: np.ndarray,
    partners: np.ndarray,
    mean: float,
    ridge: float,
    zero: float,
    begun_zero: float,
    begun_gain: float,
) -> np.ndarray:
    """Move what features say by the pairs of entities that have only begun.

    With `mean` pairs or more an entity's zeros count fully and its prior no longer; with none they
    count `begun_zero` times as much. The last coordinate, popularity, is not solved for.

    Parameters
    ----------
    R : csr_matrix
        Entities x partners: confidences.
    prior : numpy.ndarray
        What features, or popularity, say.
    partners : numpy.ndarray
        Vectors of the partners.
    mean, ridge, zero, begun_zero, begun_gain : float
        See `Solver`.
    """
    R = sparse.csr_matrix(R, dtype=np.float32)
    count = np.asarray(R.sum(1)).ravel()
    done = np.minimum(count / mean, 1).astype(np.float32)
    start = prior * (1 - done)[:, None]
    rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
    explained = np.empty(R.nnz, np.float32)
    for a in range(0, R.nnz, _PIECE):
        at = slice(a, a + _PIECE)
        explained[at] = np.einsum("ij,ij->i", start[rows[at]], partners[R.indices[at]])
    zeros = zero * (begun_zero + (1 - begun_zero) * done)
    penalties = ridge * (count + zeros * R.shape[1])
    moved = solve_rows(R, np.ascontiguousarray(partners[:, :-1]), penalties, zeros, explained)
    start[:, :-1] += moved * (begun_gain + (1 - begun_gain) * done)[:, None]
    return start
