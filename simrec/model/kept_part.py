"""A checkpoint at the border between parts: ratings are learned, uptake is not."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simrec.artifacts import Artifact
from simrec.errors import InputError
from simrec.mapped import release
from simrec.model.ordered.part import OrderedPart
from simrec.model.part import Part
from simrec.model.prepare import Prepared
from simrec.model.rating.part import RatingPart
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.scratch import Scratch, slices
from simrec.model.shard_files import pieces
from simrec.rows import Rows
from simrec.scoring.output import Output

_STAGE = "ratings learned"
_KINDS: dict[str, type[Part]] = {part.kind: part for part in (RatingPart, OrderedPart)}


@dataclass(frozen=True, eq=False)
class KeptPart:
    """The rating part of a fit.

    Attributes
    ----------
    part : Part
        The part.
    chosen : dict
        What was chosen on the way.
    told : list of dict
        What was reported of each epoch.
    """

    part: Part
    chosen: dict[str, Any]
    told: list[dict[str, float]]


def keep_part(checkpoint: Checkpoint, kept: KeptPart, keep_evidence: bool) -> None:
    """Write the part as a model directory has it, each worker its own users."""
    started = time.perf_counter()
    saved = kept.part.saved(in_shards=True)
    rows: dict[str, Any] = dict(saved.rows.users)
    for name, matrix in saved.sparse.users.items():
        rows |= {f"{name}_{piece}": array for piece, array in pieces(matrix).items()}
    state = {
        "kind": kept.part.kind,
        "output": asdict(kept.part.output),
        "chosen": kept.chosen,
        "told": kept.told,
        "keep_evidence": keep_evidence,
        "sparse": {name: matrix.shape[1] for name, matrix in saved.sparse.users.items()},
    }
    arrays = {**saved.arrays, **saved.whole("items")}
    checkpoint.write(_STAGE, arrays, state, started, rows, saved.documents, saved.networks)


def kept_part(checkpoint: Checkpoint, data: Prepared, keep_evidence: bool) -> KeptPart | None:
    """Take over what `keep_part` has written, if anything; of users, this worker's."""
    found = checkpoint.read(_STAGE)
    if found is None:
        return None
    state = found.documents["state"]
    if state["keep_evidence"] != keep_evidence:
        raise InputError(
            f"{checkpoint.path}: a checkpoint of a training with "
            f"keep_evidence={state['keep_evidence']}, which has learned the ratings already. Train "
            "with the same to go on from it, or without resume."
        )
    towers = data.sides.map(lambda side: side.tower)
    mine = data.workers.places(len(towers.users.ids))
    own = replace(found, arrays=_own(found, state["sparse"], mine, data.scratch))
    with found.fitting_together():
        part = _KINDS[state["kind"]].restored(Output(**state["output"]), own, towers)
    return KeptPart(part, state["chosen"], state["told"])


def _own(
    found: Artifact, widths: dict[str, int], mine: slice, scratch: Scratch
) -> dict[str, np.ndarray]:
    """Copy the arrays, of users this worker's rows: the files are mapped, and will be gone."""
    arrays: dict[str, np.ndarray] = {}
    for name, width in widths.items():
        sizes = [n - 1 for n in found.arrays[f"{name}_indptr"].sizes]
        matrix = found.csr_matrix(name, (sum(sizes), width), sizes)
        own = pieces(matrix[np.arange(mine.start, mine.stop)])
        arrays |= {f"{name}_{piece}": array for piece, array in own.items()}
    for name, array in found.arrays.items():
        if name in arrays:
            continue
        if not isinstance(array, Rows):
            arrays[name] = np.array(array)
            continue
        n = mine.stop - mine.start
        arrays[name] = out = scratch.empty((n, *array.shape[1:]), array.dtype.type)
        for rows in slices(n):
            out[rows] = array[mine.start + rows.start : mine.start + rows.stop]
            release(out[rows])
    return arrays
