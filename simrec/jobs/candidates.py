"""Who is to be recommended what: the users and the candidate items of a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.errors import InputError
from simrec.jobs.entities import collect
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source, Unit

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


@dataclass(frozen=True)
class KnownIds:
    """The ids a model knows, as the input of a job."""

    name: str
    ids: pa.Array
    bad: tuple[str, ...] = ()
    row_bytes: float = 16.0

    @property
    def rows(self) -> int:
        """The number of ids."""
        return len(self.ids)

    @property
    def schema(self) -> pa.Schema:
        """One column of ids."""
        return pa.schema([(self.name, self.ids.type)])

    def identity(self) -> str:
        """All ids of the model: nothing more to say, since the model is part of the job."""
        return "all the model knows"

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the ids into units."""
        starts = range(0, len(self.ids), part_rows)
        return [Unit(i, 0, (s,), min(part_rows, len(self.ids) - s)) for i, s in enumerate(starts)]

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = 1 << 17
    ) -> Iterator[pa.Table]:
        """Give the ids of a unit, `batch_rows` at a time."""
        (start,) = unit.row_groups
        for first in range(start, start + unit.rows, batch_rows):
            n = min(batch_rows, start + unit.rows - first)
            yield pa.table([self.ids.slice(first, n)], names=[self.name])

    def directory(self, unit: Unit) -> str:
        """No partitions."""
        return ""

    def label(self, unit: Unit) -> str:
        """Name a unit in messages."""
        return f"known users {unit.row_groups[0]} to {unit.row_groups[0] + unit.rows - 1}"


def candidate_items(
    model: "TwoTower",
    catalogue: Source | None,
    allowed: Source | None,
    new_only: bool,
    scratch: Scratch,
) -> tuple[IdMap, np.ndarray]:
    """Return ids and vectors of the items to choose from, in the order ties are broken by.

    Parameters
    ----------
    model : TwoTower
        The model.
    catalogue : Source or None
        Items with features for new ones; None for all the model knows.
    allowed : Source or None
        A table of item_id to restrict the choice to.
    new_only : bool
        Leave out items that were rated in training.
    scratch : Scratch
        Room for large arrays.
    """
    entities = collect(model, "item", catalogue, "error", scratch)
    rows = np.arange(len(entities))
    if catalogue is not None:
        rows = np.unique(entities.find(catalogue.read(["item_id"])["item_id"]))
    if new_only:
        rated = np.zeros(len(entities), bool)
        rated[: len(entities.known)] = np.asarray(model.item_counts_) > 0
        rows = rows[~rated[rows]]
    ids = entities.ids.take(pa.array(rows))
    if allowed is not None:
        allowed.require("item_id")
        keep = IdMap.from_values(allowed.read(["item_id"])["item_id"]).contains(ids)
        rows, ids = rows[keep], ids.filter(pa.array(keep))
    if len(ids) == 0:
        raise InputError("no candidate items are left: look at items, eligible, new_items_only")
    candidates = IdMap.from_values(ids)
    in_order = np.empty_like(rows)
    in_order[candidates.rows(ids)] = rows
    if len(rows) == len(entities.vectors) and np.array_equal(in_order, np.arange(len(rows))):
        return candidates, entities.vectors
    return candidates, scratch.take("candidates", entities.vectors, in_order)
