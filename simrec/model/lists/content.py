"""Content profiles: for each user a ridge regression of the history on the features of items.

With rows T of the items and a history h, the profile is ``h T (T'T + ridge)^-1``, and scores a new
item by its features alone. In the leading eigenvectors of T'T that is a scalar product of two sums.
A plain sum of TF-IDF rows is the limit of a large ridge: it counts what all items have in common
over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.head import Encoder
from simrec.model.lists.blend import list_quality
from simrec.model.lists.components import ContentPart, PairWeight, head_of, histories
from simrec.model.lists.held_out import HeldOut
from simrec.model.lists.spectrum import Spectrum, spectrum
from simrec.model.lists.uptake.encoders import Weighing, feature_weights, full_columns
from simrec.model.lists.uptake.grids import climb
from simrec.model.prepare import Prepared
from simrec.scoring.output import IDENTITY

# Ridges in items, whose rows have length 1.
_RIDGES = tuple(0.1 * 10.0 ** (k / 2) for k in range(8))
# Coordinates, and how much better lists of new items must be for twice as many.
_DIMS, _WORTH = (128, 256, 512), 1.05
# Users and draws that choices are made with.
_USERS, _DRAWS = 600, 2


@dataclass(frozen=True)
class ContentSetting:
    """Ridge, number of coordinates, and how features are weighed."""

    ridge: float = _RIDGES[2]
    embedding_dim: int = _DIMS[0]
    weighing: Weighing = "rarity"


@dataclass(frozen=True, eq=False)
class Content:
    """Feature rows of the items with pairs, in the leading eigenvectors of their Gram matrix."""

    encoder: Encoder  # weighs features, and brings rows to length 1
    rows: sparse.csr_matrix
    axes: Spectrum

    @classmethod
    def of(
        cls, data: Prepared, weighing: Weighing, embedding_dim: int, rng: np.random.Generator
    ) -> Content:
        """Weigh the features of items, and find the axes."""
        side = data.sides.items
        X, groups = side.X[:, :-1], side.groups[:-1]
        weights = feature_weights(X, groups, weighing)
        encoder = Encoder(np.zeros((X.shape[1] + 1, 1), np.float32), idf=weights)
        rows = sparse.csr_matrix(encoder.inputs(X))
        return cls(encoder, rows, spectrum(rows, embedding_dim, rng, exponent=0.0))

    def projection(self, setting: ContentSetting) -> np.ndarray:
        """Return features x coordinates; products have the ridge in them."""
        V, e = (one[..., : setting.embedding_dim] for one in (self.axes.V, self.axes.e))
        return V * np.sqrt(setting.ridge / (e + setting.ridge)).astype(np.float32)

    def part(self, data: Prepared, setting: ContentSetting, weight: PairWeight) -> ContentPart:
        """Return the component."""
        V = data.workers.first(self.projection(setting))
        encoder = Encoder(np.vstack([V, np.zeros_like(V[:1])]), idf=self.encoder.idf)
        items = np.asarray(self.rows @ V, np.float32)
        users = np.asarray(histories(data, weight) @ items, np.float32)
        width = data.sides.users.tower.features.shape[1]
        nobody = Encoder(np.zeros((width + 1, V.shape[1]), np.float32))
        heads = Sides(
            head_of(data.sides.items, items, encoder), head_of(data.sides.users, users, nobody)
        )
        numbers = np.ones(len(data.sides.items.tower.ids), np.float32)
        return ContentPart(heads, IDENTITY, weight, numbers)


# Makes what is needed of some data: how features are weighed, and so many coordinates.
Maker = Callable[[Prepared, Weighing, int], Content]


def choose_content(held: Sequence[HeldOut], content: Maker) -> ContentSetting:
    """Choose on lists of new items for known users.

    Parameters
    ----------
    held : sequence of HeldOut
        Draws of held-out pairs.
    content : callable
        Makes what is needed of a draw's data.
    """
    draws = [one for one in held if len(one.tasks["new_items"].users)][:_DRAWS]
    if not draws:
        return ContentSetting()
    tasks = [one.tasks["new_items"].first(_USERS) for one in draws]
    given = [
        histories(draw.data, PairWeight())[
            np.searchsorted(draw.data.sides.users.rated_rows, task.users)
        ]
        for draw, task in zip(draws, tasks, strict=True)
    ]

    def quality(setting: ContentSetting) -> float:
        found = []
        for draw, task, H in zip(draws, tasks, given, strict=True):
            made = content(draw.data, setting.weighing, _DIMS[-1])
            V = made.projection(setting)
            new = made.encoder.inputs(draw.data.sides.items.tower.features[task.items])
            z = (H @ (made.rows @ V)) @ np.asarray(new @ V).T
            found.append(list_quality(z, task.hits, task.hits.sum(1)).mean())
        return float(np.mean(found))

    items = draws[0].data.sides.items
    weighings: list[Weighing] = ["rarity"]
    if len(full_columns(items.X[:, :-1], items.groups[:-1])):
        weighings.append("rarity and full columns")
    best = climb(quality, ContentSetting(), {"ridge": _RIDGES, "weighing": weighings})
    for dim in _DIMS[1:]:
        wider = climb(quality, replace(best, embedding_dim=dim), {"ridge": _RIDGES})
        if quality(wider) < _WORTH * quality(best):
            break
        best = wider
    return best
