"""Lists chosen from the best candidates: caps by the value of a column, variety, or a draw."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse
from scipy.special import ndtr, ndtri

from simrec.data.features.column import family
from simrec.data.sides import Sides
from simrec.errors import InputError, check_seed, is_number, is_whole, nearest
from simrec.model.answer.similar import unit_vectors
from simrec.model.head import Found
from simrec.model.part import Part
from simrec.model.tower import Tower
from simrec.scoring.topk import top_k

# Candidates that a list is chosen from, at least and in multiples of its length.
_FEWEST, _TIMES = 100, 10
# Points at which the distribution of an item's draw is looked at.
_POINTS = 100


class Chosen(NamedTuple):
    """The list of one user: candidates, and their propensities where it was drawn."""

    items: np.ndarray
    propensity: np.ndarray


@dataclass(frozen=True, eq=False)
class Rerank:
    """How a list is chosen from the best candidates: caps, variety, or a draw."""

    capped: Sequence[tuple[sparse.csr_matrix, int]]  # see `caps`
    diversity: float
    directions_of: Callable[[np.ndarray], np.ndarray]  # unit vectors of candidates
    seed: int | None

    @classmethod
    def of(
        cls,
        at_most: Mapping[str, int] | None,
        table: pa.Table | None,
        diversity: float,
        sample: int | None,
        explore: float,
        directions_of: Callable[[np.ndarray], np.ndarray],
    ) -> Self | None:
        """Check the options of lists; None where the best are the list."""
        if not is_number(diversity) or not 0 <= diversity <= 1:
            raise InputError(f"diversity must be a number from 0 to 1, got {diversity!r}.")
        if sample is not None and (at_most or diversity):
            raise InputError("sample: lists with at_most or diversity have no propensities.")
        if sample is not None and not explore:
            raise InputError("sample: without explore above 0 there is nothing to draw from.")
        if sample is None and not (at_most or diversity):
            return None
        seed = None if sample is None else check_seed(sample)
        return cls(caps(at_most, table), float(diversity), directions_of, seed)

    def lists(
        self,
        vectors: Sides[np.ndarray],
        bonus: np.ndarray | None,
        k: int,
        exclude: sparse.csr_matrix | None,
    ) -> list[Chosen]:
        """Return the list of each user."""
        n, size = len(vectors.items), self._pool(k, len(vectors.items))
        found, z = top_k(vectors.users, vectors.items, size, exclude)

        def of(user: int) -> Chosen:
            def best(wanted: int) -> tuple[np.ndarray, np.ndarray]:
                rows, scores = found[user], z[user]
                if wanted > size:
                    hidden = None if exclude is None else exclude[user]
                    more = top_k(vectors.users[user : user + 1], vectors.items, wanted, hidden)
                    rows, scores = more[0][0], more[1][0]
                return rows[rows >= 0], scores[rows >= 0]

            return self.chosen(best, bonus, k, n, user)

        return [of(user) for user in range(len(found))]

    def chosen(
        self,
        best: Callable[[int], tuple[np.ndarray, np.ndarray]],
        bonus: np.ndarray | None,
        k: int,
        n: int,
        user: int = 0,
    ) -> Chosen:
        """Choose the list of a user from the best of n candidates, with score + bonus.

        `best` finds as many of them as it is asked for, best first.
        """
        size = self._pool(k, n)
        one = self._choose(*best(size), bonus, k, user)
        while len(one.items) < min(k, n) and size < n and self.capped:
            # Caps have used up the pool: look further down, in the end at all candidates.
            size = min(n, 4 * size)
            one = self._choose(*best(size), bonus, k, user)
        return one

    def _pool(self, k: int, n: int) -> int:
        """Return how many of the best of n candidates a list of k is chosen from."""
        return min(n, max(_FEWEST, _TIMES * k))

    def _choose(
        self, pool: np.ndarray, scores: np.ndarray, bonus: np.ndarray | None, k: int, user: int
    ) -> Chosen:
        if self.seed is None:
            places = self._greedy(pool, scores, k)
            return Chosen(pool[places], np.ones(len(places)))
        assert bonus is not None
        rng = np.random.default_rng([self.seed, user])
        places, propensity = draw(scores - bonus[pool], bonus[pool], k, rng)
        return Chosen(pool[places], propensity)

    def _greedy(self, pool: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
        """Choose k of a pool greedily (maximal marginal relevance); return their places in it.

        The next is the one with the largest ``(1 - diversity) * relevance - diversity *
        similarity``: relevance is the score, from 0 for the last of the pool to 1 for the first,
        and similarity the cosine with the nearest that is chosen already. One that would exceed a
        cap is passed over.
        """
        spread, diversity = float(scores[0] - scores[-1]) if len(scores) else 0.0, self.diversity
        value = (scores - scores[-1]) / spread if spread > 0 else np.ones(len(scores))
        value = (1 - diversity) * value.astype(np.float64)
        unit = self.directions_of(pool) if diversity else None
        nearest_chosen = np.full(len(pool), -np.inf)
        free = np.ones(len(pool), bool)
        counted = [(matrix[pool], most, np.zeros(matrix.shape[1])) for matrix, most in self.capped]
        chosen: list[int] = []
        while len(chosen) < k and free.any():
            now = value if unit is None or not chosen else value - diversity * nearest_chosen
            best = int(np.argmax(np.where(free, now, -np.inf)))
            chosen.append(best)
            free[best] = False
            if unit is not None:
                nearest_chosen = np.maximum(nearest_chosen, unit @ unit[best])
            for values, most, counts in counted:
                own = values.indices[values.indptr[best] : values.indptr[best + 1]]
                counts[own] += 1
                full = (counts >= most).astype(np.float32)
                free &= values @ full == 0
        return np.array(chosen, np.int64)


def caps(
    at_most: Mapping[str, int] | None, table: pa.Table | None
) -> list[tuple[sparse.csr_matrix, int]]:
    """Return candidates x values of each capped column, and how many of a value a list may have.

    Of a list column an item has each of the values; missing values are not capped.
    """
    found = []
    for name, most in (at_most or {}).items():
        if table is None or name not in table.column_names:
            known = [] if table is None else table.column_names
            hint = nearest(name, known)
            raise InputError(
                f"at_most: the items have no column {name!r}.{hint} Columns: "
                f"{', '.join(known) or 'none'}."
            )
        if not is_whole(most, 1):
            raise InputError(f"at_most: {name!r} must be a whole number from 1 on, got {most!r}.")
        column = table[name].combine_chunks()
        rows, values = np.arange(len(column)), column
        if family(column.type).startswith("list"):
            rows, values = np.asarray(pc.list_parent_indices(column)), pc.list_flatten(column)
        if not isinstance(values.type, pa.DictionaryType):
            values = values.dictionary_encode()
        codes = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False)
        there = codes >= 0
        shape = (len(column), len(values.dictionary))
        entries = (np.ones(int(there.sum()), np.float32), (rows[there], codes[there]))
        matrix = sparse.csr_matrix(entries, shape=shape)
        matrix.data[:] = 1  # a value that a list has twice counts once
        found.append((matrix, int(most)))
    return found


def directions(part: Part, towers: Sides[Tower]) -> Callable[[Found], np.ndarray]:
    """Return what gives unit vectors of items, whose products are correlations of their scores."""
    unit, head = unit_vectors(part, "items", towers), part.heads.items
    return lambda found: unit(head.of(found))


def draw(
    scores: np.ndarray, deviations: np.ndarray, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a list: rank by score + deviation * noise; return places, and the propensity of each."""
    deviations = np.maximum(deviations.astype(np.float64), 1e-9)
    drawn = scores + deviations * rng.standard_normal(len(scores))
    places = np.argsort(-drawn, kind="stable")[:k]
    return places, propensities(scores, deviations, k, places)


def propensities(
    scores: np.ndarray, deviations: np.ndarray, k: int, places: np.ndarray
) -> np.ndarray:
    """Return the probability of each of `places` to be among the k largest draws.

    Given the draw x of an item, the number of others above x is a sum of independent coins; the
    probability that they are fewer than k is averaged over quantiles of x.
    """
    if len(scores) <= k:
        return np.ones(len(places))
    scores = np.asarray(scores, np.float64)
    deviations = np.maximum(np.asarray(deviations, np.float64), 1e-9)
    quantiles = ndtri((np.arange(_POINTS) + 0.5) / _POINTS)
    x = scores[places, None] + deviations[places, None] * quantiles
    fewer = np.zeros((k, *x.shape))  # probability that 0, 1, ... k - 1 others are above
    fewer[0] = 1
    for j in range(len(scores)):
        above = ndtr((scores[j] - x) / deviations[j])
        above[places == j] = 0
        if above.max() > 1e-12:
            fewer[1:] += above * (fewer[:-1] - fewer[1:])
            fewer[0] *= 1 - above
    return np.clip(fewer.sum(0).mean(1), 1e-12, 1)
