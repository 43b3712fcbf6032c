"""The blend of the components of a list: weights for each kind of user and of item.

A list is ranked by a weighted sum of components, and the weights depend on what is known of the
user (nothing, a few pairs, a whole history) and of the item (features alone, or pairs). Each kind
has a factor for each coordinate of a component, so the sum stays one scalar product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from simrec.data.sides import Side, Sides
from simrec.model.lists.user_encoder import GIVEN
from simrec.scoring.metrics import ndcg_at_k
from simrec.scoring.threads import row_blocks

# Weights that are tried, relative to those at which two components spread alike.
_WEIGHTS = tuple(2.0**j for j in range(-5, 4))
_WEIGHTS_OF_TWO = (0.25, 0.5, 1.0)
_ROUNDS = 8
# Users of a draw that all steps are tried on, and steps that are tried on all users.
_SCREENED, _LIKELY = 200, 8
# Share of the best component's quality from which on another is good.
_GOOD = 0.8
# How many kinds of entities there are; see `Blend`.
KINDS = Sides(items=2, users=3)
# Prefix of a component's factors that hold for new items only.
NEW = "new_"
# Hits a user up to which ranks are counted, and scores that are compared at once.
_FEW_HITS, _CELLS = 6, 1 << 20
# Spread, relative to the largest score, up to which scores are equal but for rounding.
_ROUNDING = 1e-5
# Length of the lists that weights are chosen on.
K = 20


def user_kinds(counts: np.ndarray) -> np.ndarray:
    """Return the share of each kind in users with so many pairs; rows sum to 1.

    Kinds are nothing known, few pairs, whole histories. Between the number of pairs that are few
    and twice as many, shares change with the logarithm.
    """
    known = np.asarray(counts) > 0
    whole = np.where(known, np.clip(np.log2(np.maximum(counts, 1) / GIVEN), 0, 1), 0)
    return np.column_stack([~known, known - whole, whole]).astype(np.float32)


def item_kinds(known: np.ndarray) -> np.ndarray:
    """Return the share of each kind, new and known, in items that are known so far."""
    return np.column_stack([1 - known, known]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Blend:
    """Factors of the components' coordinates.

    Attributes
    ----------
    factors : dict of str to Sides of numpy.ndarray
        Of each component, by its name: kinds x coordinates; see `item_kinds` and `user_kinds`. A
        component that ranks new items has coordinates of its own for them, under its name after
        `NEW`.
    """

    factors: dict[str, Sides[np.ndarray]]

    @classmethod
    def single(cls, name: str) -> Blend:
        """Return the blend of one component with nothing else."""
        return cls({name: KINDS.map(lambda n: np.ones((n, 1), np.float32))})

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {n: [one.tolist() for one in sides] for n, sides in self.factors.items()}

    @classmethod
    def from_plain(cls, document: Mapping[str, Any]) -> Blend:
        """Read what `plain` returned."""
        arrays = {n: [np.array(one, np.float32) for one in two] for n, two in document.items()}
        return cls({name: Sides(*both) for name, both in arrays.items()})

    def of(self, name: str, side: Side, known: np.ndarray) -> np.ndarray:
        """Return the factors of a component: for users with so many pairs, items known so far."""
        kinds = item_kinds if side == "items" else user_kinds
        return kinds(known) @ self.factors[name][side]


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the components on one draw of held-out pairs, of the likely candidates only.

    Attributes
    ----------
    names : tuple of str
        The components.
    scores : numpy.ndarray
        Components x users x candidates.
    hit : numpy.ndarray of bool
        Which candidates are hits.
    n_hits : numpy.ndarray
        Hits of each user, also among what is no candidate.
    excluded : numpy.ndarray of bool
        What is no candidate: padding, and what the user has.
    """

    names: tuple[str, ...]
    scores: np.ndarray
    hit: np.ndarray
    n_hits: np.ndarray
    excluded: np.ndarray

    @classmethod
    def of(
        cls, scores: Mapping[str, np.ndarray], hit: np.ndarray, excluded: np.ndarray, most: int = 60
    ) -> Scored:
        """Keep the `most` best candidates of each component: a blend's best are among them."""
        (n, width), k = excluded.shape, min(most, excluded.shape[1])
        top = np.empty((n, len(scores), k), np.int64)
        for place, one in enumerate(scores.values()):
            for rows in row_blocks(n, width):
                ranked = np.where(excluded[rows], np.inf, -one[rows])
                top[rows, place] = np.argpartition(ranked, k - 1, axis=1)[:, :k]
        top = np.sort(top.reshape(n, -1), axis=1)
        repeated = np.zeros(top.shape, bool)
        repeated[:, 1:] = top[:, 1:] == top[:, :-1]

        def take(array: np.ndarray) -> np.ndarray:
            return np.take_along_axis(array, top, 1)

        out = repeated | take(excluded)
        kept = [np.where(out, 0, take(one)).astype(np.float32) for one in scores.values()]
        return cls(tuple(scores), np.stack(kept), take(hit) & ~out, hit.sum(1), out)

    def __len__(self) -> int:
        return len(self.hit)

    def only(self, names: Sequence[str]) -> Scored:
        """Keep some components."""
        return replace(
            self, names=tuple(names), scores=self.scores[[self.names.index(n) for n in names]]
        )

    def thinned(self, most: int) -> Scored:
        """Keep every n-th user, such that no more than `most` are left."""
        n = -(-len(self) // most)
        rest = (one[::n] for one in (self.hit, self.n_hits, self.excluded))
        return Scored(self.names, self.scores[:, ::n], *rest)

    def quality(self, weights: np.ndarray) -> np.ndarray:
        """Return the NDCG@20 of each user's list by weighted sums; weights are blends x components.

        All blends at once: of few users a list takes less time than a call.
        """
        n_blends, m = len(weights), self.hit.shape[1]
        found, step = np.empty((n_blends, len(self))), max(_CELLS // max(n_blends * m, 1), 1)
        for first in range(0, len(self), step):
            some = slice(first, first + step)
            z = np.tensordot(weights.astype(np.float32), self.scores[:, some], 1)
            z[:, self.excluded[some]] = -np.inf
            hit, n_hits = (
                np.concatenate([one[some]] * n_blends) for one in (self.hit, self.n_hits)
            )
            found[:, some] = list_quality(z.reshape(-1, m), hit, n_hits).reshape(n_blends, -1)
        return found

    def spread(self, weights: np.ndarray) -> float:
        """Return the standard deviation of a weighted sum of components."""
        z = np.tensordot(weights.astype(np.float32), self.scores, 1)
        return spread(z[~self.excluded])


def spread(z: np.ndarray, axis: int | None = None) -> float:
    """Return the (largest) standard deviation; 0 where scores are equal but for rounding."""
    found = float(z.std(axis=axis).max()) if z.size else 0.0
    return found if found > _ROUNDING * float(np.abs(z).max(initial=0)) else 0.0


def list_quality(scores: np.ndarray, hit: np.ndarray, n_hits: np.ndarray, k: int = K) -> np.ndarray:
    """Return the NDCG@k of each row of scores; -inf for what is no candidate."""
    k = min(k, scores.shape[1])
    rows, columns = np.nonzero(hit)
    if len(rows) > _FEW_HITS * len(scores):
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
        return ndcg_at_k(np.take_along_axis(hit, np.take_along_axis(top, order, 1), 1), n_hits)
    # Few hits: the rank of each is counted, which is much faster than sorting all candidates. Of
    # equal scores half are taken to be before it.
    rank = np.empty(len(rows), np.int64)
    step = max(_CELLS // max(scores.shape[1], 1), 1)
    for at in range(0, len(rows), step):
        some = slice(at, at + step)
        z, own = scores[rows[some]], scores[rows[some], columns[some]][:, None]
        rank[some] = ((z > own).sum(1) + (z >= own).sum(1) - 1) // 2
    first = rank < k
    gain = np.bincount(rows[first], 1 / np.log2(rank[first] + 2.0), minlength=len(scores))
    ideal = np.r_[0.0, np.cumsum(1 / np.log2(np.arange(k) + 2.0))]
    return np.minimum(gain / np.maximum(ideal[np.minimum(n_hits, k)], 1e-30), 1.0)


def choose_weights(draws: Sequence[Scored]) -> tuple[dict[str, float], float]:
    """Choose non-negative weights of the components on held-out pairs.

    From each good component on, others are added or a weight is changed where lists clearly gain by
    it (`clear_gain`), the clearest gain first. Ends that are not clearly worse than the best are
    averaged: which of them is best is chance.

    Returns
    -------
    (dict, float)
        Weights of the components' scores, and the NDCG@20 reached.
    """
    names = [name for name in draws[0].names if all(name in draw.names for draw in draws)]
    draws = [draw.only(names) for draw in draws]
    few = [draw.thinned(_SCREENED) for draw in draws]
    units = np.eye(len(names))
    spreads = np.array([np.mean([draw.spread(one) for draw in draws]) or 1.0 for one in units])
    seen: dict[tuple[float, ...], list[np.ndarray]] = {}

    def quality(blends: np.ndarray) -> list[list[np.ndarray]]:
        """Return the quality for the users of each draw, of each blend."""
        new = [one for one in dict.fromkeys(map(tuple, blends)) if one not in seen]
        if new:
            found = [draw.quality(np.array(new) / spreads) for draw in draws]
            seen.update({one: [draw[k] for draw in found] for k, one in enumerate(new)})
        return [seen[one] for one in map(tuple, blends)]

    def likely(steps: np.ndarray) -> np.ndarray:
        """Return the steps that are best for some of the users."""
        if not len(steps) or sum(map(len, few)) == sum(map(len, draws)):
            return steps
        found = np.concatenate([draw.quality(steps / spreads) for draw in few], axis=1).mean(1)
        return steps[np.argsort(found)[-_LIKELY:]]

    def climbed(weights: np.ndarray) -> np.ndarray:
        for _ in range(_ROUNDS):
            steps = likely(_steps(weights))
            [now], tried = quality(weights[None]), quality(steps)
            gains = [clear_gain(one, now) for one in tried]
            if max(gains, default=0.0) == 0:
                break
            weights = steps[int(np.argmax(gains))]
        return weights

    def unit(weights: np.ndarray) -> np.ndarray:
        """Return weights of the scores with which their sum spreads by 1."""
        raw = weights / spreads
        return raw / (float(np.mean([draw.spread(raw) for draw in draws])) or 1.0)

    each = np.array([np.concatenate(one).mean() for one in quality(units)])
    ends = [climbed(one) for one in units[each >= _GOOD * each.max()]]
    reached = quality(np.array(ends))
    best = max(reached, key=lambda one: float(np.concatenate(one).mean()))
    equal = [unit(end) for end, own in zip(ends, reached, strict=True) if not clear_gain(best, own)]
    weights = unit(np.mean(equal, axis=0) * spreads)
    found = {name: float(w) for name, w in zip(names, weights, strict=True) if w}
    return found, float(np.concatenate([draw.quality(weights[None])[0] for draw in draws]).mean())


def clear_gain(new: Sequence[np.ndarray], old: Sequence[np.ndarray]) -> float:
    """Return by how much the mean gain over users exceeds its standard error; 0 where it does not.

    The standard error is the larger of that over users and that over draws.
    """
    gains = [one - other for one, other in zip(new, old, strict=True) if len(one)]
    every, means = np.concatenate(gains), np.array([one.mean() for one in gains])
    error = every.std() / np.sqrt(len(every))
    if len(means) > 2:
        error = max(error, means.std() / np.sqrt(len(means) - 1))
    return max(float(every.mean() - error), 0.0)


def _steps(weights: np.ndarray) -> np.ndarray:
    """Return blends one step away: other components or one or two more, or one weight changed."""
    units, out = np.eye(len(weights)), np.flatnonzero(weights == 0)
    steps = [units[i] for i in out]
    steps += [weights + w * units[i] for i in out for w in _WEIGHTS]
    pairs = combinations(out, 2)
    steps += [weights + w * (units[i] + units[j]) for i, j in pairs for w in _WEIGHTS_OF_TWO]
    used = np.flatnonzero(weights)
    if len(used) > 1:
        factors = (0.5, 0.7, 1.4, 2.0)
        steps += [weights * (1 + (f - 1) * units[i]) for i in used for f in factors]
    return np.array(steps).reshape(-1, len(weights))
