"""What EASE needs: ridges for whole histories and for few pairs, the weight of ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import sparse

from simrec.model.lists.blend import clear_gain, list_quality
from simrec.model.lists.components import EasePart, PairWeight
from simrec.model.lists.held_out import HeldOut, Task
from simrec.model.lists.spectrum import Spectrum

_SLOPES = (0.25, 0.5, 1.0)
# Coordinates; twice as many where lists of known users are so much better by them than by half.
EASE_DIM, _WORTH = 512, 1.05
# Users that choices are made with.
_USERS = 400


@dataclass(frozen=True)
class EaseSetting:
    """Ridges for whole histories and for few pairs, in units of the mean eigenvalue; coordinates.

    The defaults are kept where held-out pairs do not clearly gain by others.
    """

    known: float = 9.0
    few: float = 27.0
    embedding_dim: int = EASE_DIM

    def filter(self, part: EasePart, few: bool) -> np.ndarray:
        """Return what the ridge leaves of each coordinate of a user."""
        e, own = part.eigenvalues, self.few if few else self.known
        return (e / (e + part.ridge * own / self.of_items)).astype(np.float32)

    @property
    def of_items(self) -> float:
        """Ridge of the items' leverages: one vector of an item serves both kinds of users."""
        return float(np.sqrt(self.known * self.few))


class _Draw:
    """One draw of held-out pairs: the eigenvectors, and histories of its users."""

    def __init__(self, held: HeldOut, weight: PairWeight, found: Spectrum) -> None:
        ratings, n_items = held.data.ratings, len(held.data.sides.items.tower.ids)
        known = held.data.sides.items.rated_rows
        places = known[ratings.item_rows]
        rows = held.data.sides.users.rated_rows[ratings.user_rows]
        shape = (len(held.data.sides.users.tower.ids), n_items)
        spread = float(ratings.values.std()) or 1.0
        self.unit = 1 / spread

        def histories(u: np.ndarray, i: np.ndarray, values: np.ndarray, task: Task) -> list:
            signed = ((values - weight.mean) * self.unit).astype(np.float32)
            found = (sparse.csr_matrix((v, (u, i)), shape=shape) for v in (1 + 0 * signed, signed))
            return [one[task.users[:_USERS]][:, known] for one in found]

        given, tasks = held.given, held.tasks
        self.tasks = {name: tasks[name] for name in ("known_users", "few_pairs")}
        self.histories = {
            "known_users": histories(rows, places, ratings.values, tasks["known_users"]),
            "few_pairs": histories(
                given.rows.users, given.rows.items, given.values, tasks["few_pairs"]
            ),
        }
        self.spectrum = found

    def quality(self, name: str, setting: EaseSetting, slope: float) -> np.ndarray:
        """Return the NDCG@20 of each user of a task."""
        task, found = self.tasks[name], self.spectrum.first(setting.embedding_dim)
        plain, signed = self.histories[name]
        ridge = setting.few if name == "few_pairs" else setting.known
        users = (plain + slope * signed) @ found.inputs() * found.filter(ridge)
        # Candidates are items with pairs, in the order of the eigenvectors' rows.
        z = users @ found.items(setting.of_items).T
        z = np.where(task.exclude[:_USERS], -np.inf, z)
        hits = task.hits[:_USERS]
        return list_quality(z, hits, hits.sum(1))


def choose_ease(
    held: Sequence[HeldOut], spectra: Sequence[Spectrum], weight: PairWeight, share: float
) -> tuple[EaseSetting, PairWeight]:
    """Choose on held-out pairs.

    Parameters
    ----------
    held : sequence of HeldOut
        Draws of held-out pairs.
    spectra : sequence of Spectrum
        Of the pairs of each draw that are not held out.
    weight : PairWeight
        Mean rating, and what is liked.
    share : float
        Share of all pairs that the draws are of.

    Returns
    -------
    (EaseSetting, PairWeight)
        The choice, and what a pair counts in a history.
    """
    draws = [_Draw(one, weight, found) for one, found in zip(held, spectra, strict=True)]
    tasks = [t for t in ("known_users", "few_pairs") if any(len(d.tasks[t].users) for d in draws)]
    if not tasks:
        return EaseSetting(), weight

    setting, slope = EaseSetting(), 0.0

    @cache
    def quality(setting: EaseSetting, slope: float) -> list[np.ndarray]:
        return [draw.quality(task, setting, slope) for task in tasks for draw in draws]

    def better(setting: EaseSetting, field: str) -> EaseSetting:
        for factor in (3.0, 1 / 3.0):
            while 0.3 < (value := getattr(setting, field) * factor) < 3000:
                tried = replace(setting, **{field: value})
                if not clear_gain(quality(tried, slope), quality(setting, slope)):
                    break
                setting = tried
        return setting

    setting = better(better(setting, "few"), "known")
    if any(np.ptp(one.data.ratings.values) > 0 for one in held):
        for more in _SLOPES:
            if clear_gain(quality(setting, more), quality(setting, slope)):
                slope = more
        setting = better(better(setting, "few"), "known")
    # A ridge is a number of pairs; in units of the mean eigenvalue, which grows with the pairs, its
    # best value falls by about the root of their number.
    shrink = min(share, 1.0) ** 0.5
    dim = setting.embedding_dim
    if min(len(found.e) for found in spectra) == dim:
        whole, half = (
            np.concatenate([draw.quality("known_users", one, slope) for draw in draws]).mean()
            for one in (setting, replace(setting, embedding_dim=dim // 2))
        )
        dim = 2 * dim if whole > _WORTH * half else dim
    setting = EaseSetting(setting.known * shrink, setting.few * shrink, dim)
    return setting, replace(weight, slope=slope * draws[0].unit)
