"""Checkpoints of a fit: where it stands, so that one that was killed goes on from there.

A checkpoint is a directory of arrays with checksums (`simrec.storage`), written aside and put in
place in one step. It holds what identifies data and settings; a fit of others refuses it. It is
written after half sweeps over the items, and once ratings are learned and lists are not.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from simrec import __version__
from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.model.head import Saved
from simrec.model.part import Part
from simrec.model.posterior.encoder import EncoderInputs
from simrec.model.posterior.posterior import KnownEntities, Posterior, Precisions
from simrec.model.posterior.problem import Problem
from simrec.model.prepare import Prepared, PreparedSide
from simrec.model.run.workers import ONE_WORKER, Workers, write_rows, written_together
from simrec.scoring.output import Output
from simrec.storage import artifacts
from simrec.storage.files import plain_json

logger = logging.getLogger(__name__)

_KIND = "checkpoint"
_SWEEPS, _RATINGS = "sweeps", "ratings learned"
# At most this share of the time goes into checkpoints.
SHARE = 0.05
# Ratings that are hashed at once: bounds memory.
_PIECE = 1 << 21


@dataclass(eq=False)
class Checkpoint:
    """Where a fit keeps its state: a directory that all workers see."""

    path: str | os.PathLike[str]
    identity: Mapping[str, Any]  # what identifies data and settings
    resume: bool = False  # go on from what is there
    workers: Workers = ONE_WORKER
    _cost: float = field(default=0.0, init=False)
    _last: float = field(default=-np.inf, init=False)
    _found: list[artifacts.Artifact | None] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        artifacts.check_replaceable(self.path)
        if not self._there():
            return
        try:
            kind = artifacts.read_manifest(self.path)["kind"]
        except InputError:
            return  # damaged: of use to nobody
        if kind != _KIND:
            raise InputError(
                f"{self.path}: holds a {kind!r}, no checkpoint, which is not replaced. Give "
                "another directory for checkpoints."
            )
        if not self.resume and self.workers.rank == 0:
            logger.warning(
                "%s: the checkpoint of an earlier training is not used (resume goes on from it) "
                "and is deleted",
                self.path,
            )
            # At once: a restart after the loss of a worker must not go on from it.
            clear(self.path)

    def _there(self) -> bool:
        return os.path.isdir(self.path) and any(os.scandir(self.path))

    def read(self, stage: str, mine: slice = slice(None)) -> artifacts.Artifact | None:
        """Return what was written last, if that was at this stage: of users, those at `mine`.

        Arrays are copies: the files are mapped, and are gone with the next checkpoint.
        """
        if not self._found:  # by all workers at once
            self._found = [self._read()]
        found = self._found[0]
        if found is None or found.documents["state"]["stage"] != stage:
            return None
        self._found = [None]
        users = found.documents["state"]["users"]
        arrays = {k: np.array(a[mine] if k in users else a) for k, a in found.arrays.items()}
        return replace(found, arrays=arrays)

    def _read(self) -> artifacts.Artifact | None:
        """Read what is there to go on from."""
        there = self.resume and self._there()
        if self.workers.total(float(there)) not in (0, self.workers.size):
            raise InputError(
                f"{self.path}: some workers find a checkpoint there and others do not. Checkpoints "
                "must be on storage that all workers see."
            )
        if not there:
            if self.resume:
                logger.warning("%s: no checkpoint there; starting from the beginning", self.path)
            return None
        try:
            saved = artifacts.load(self.path, _KIND)
        except InputError as error:
            raise InputError(
                f"{self.path}: a damaged checkpoint ({error}). Train without resume."
            ) from None
        differ = [k for k in self.identity if saved.manifest["config"].get(k) != self.identity[k]]
        if differ:
            raise InputError(
                f"{self.path}: a checkpoint of another training, with other {', '.join(differ)}. "
                "Train with the same data and settings to go on from it, or without resume."
            )
        logger.info("%s: going on from this checkpoint", self.path)
        return saved

    def due(self) -> bool:
        """Tell whether it is time to write again; the first worker's clock counts."""
        waited = time.perf_counter() - self._last
        return bool(self.workers.agree(float(waited * SHARE >= self._cost)))

    def write(self, stage: str, saved: Saved, state: Mapping[str, Any], started: float) -> None:
        """Replace the last checkpoint; each worker writes its own users.

        All but the rows of users is the same on all workers. Collecting it began at `started`.
        """
        with written_together(self.path, self.workers) as aside:
            write_rows(aside, saved.rows.users, self.workers)
            if self.workers.rank == 0:
                about = {**state, "stage": stage, "users": list(saved.rows.users)}
                arrays = {**saved.arrays, **saved.whole("items")}
                documents = {**saved.documents, "state": about}
                artifacts.write(aside, arrays, documents, saved.networks)
                artifacts.write_manifest(aside, _KIND, self.identity, {})
        self._last = time.perf_counter()
        self._cost = self._last - started


def clear(path: str | os.PathLike[str]) -> None:
    """Delete a checkpoint, and nothing but a checkpoint."""
    artifacts.remove(path, _KIND)


@dataclass(frozen=True, eq=False)
class Run:
    """How a fit runs: with which workers, and where it keeps its state."""

    workers: Workers = ONE_WORKER
    path: str | os.PathLike[str] | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if self.resume and self.path is None:
            raise InputError("resume: say which checkpoint to go on from.")

    def checkpoint(self, settings: Mapping[str, Any], data: Prepared) -> Checkpoint | None:
        """Return the checkpoint of a fit, if it is to have one; others do not go on from it."""
        if self.path is None:
            return None
        kept = {name: _setting(v) for name, v in settings.items() if name != "verbose"}
        identity = {"version": __version__, **kept, "data": fingerprint(data)}
        as_read = json.loads(plain_json("settings", identity))
        return Checkpoint(self.path, as_read, self.resume, self.workers)


def _setting(value: Any) -> Any:
    """Return a setting as plain data: of a user's own network, a hash of layers and weights."""
    if not hasattr(value, "get_weights"):
        return value
    # Keras numbers the names of layers: a network that is made again has others.
    digest = hashlib.sha256(re.sub(r"_\d+\"", '"', value.to_json()).encode())
    for weights in value.get_weights():
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()


def fingerprint(data: Prepared) -> str:
    """Hash all ratings, ids and features.

    Every one is hashed with its place among those of all workers, and the hashes are added up: the
    number of workers does not matter.
    """
    ratings = data.ratings
    first = data.workers.places(ratings.n_users).start
    columns = [ratings.item_rows, ratings.values]
    total = np.zeros(2, np.uint64)
    for start in range(0, len(ratings), _PIECE):
        at = slice(start, start + _PIECE)
        total += _sum(ratings.user_rows[at] + np.int64(first), *(one[at] for one in columns))
    sums = [data.workers.sum(total), *(side.workers.sum(_of_side(side)) for side in data.sides)]
    return hashlib.sha256(np.concatenate(sums).tobytes()).hexdigest()


def _of_side(side: PreparedSide) -> np.ndarray:
    tower, X = side.tower, side.tower.features.tocsr()
    first = side.workers.places(len(tower.ids)).start
    places = np.arange(first, first + len(tower.ids))
    rated = np.isin(np.arange(len(tower.ids)), side.rated_rows)
    ids = tower.ids.ids.to_numpy(zero_copy_only=False)
    features = _sum(np.repeat(places, np.diff(X.indptr)), X.indices, X.data)
    return np.concatenate([_sum(places, rated, ids), features])


def _sum(*columns: np.ndarray) -> np.ndarray:
    """Hash the rows of some columns, and add the hashes up; with their number."""
    # Widths of numbers may differ between workers.
    wide = {"f": np.float64, "O": object}
    import pandas as pd  # not at the top: a job that scores does without

    frame = pd.DataFrame(
        {i: one.astype(wide.get(one.dtype.kind, np.int64)) for i, one in enumerate(columns)}
    )
    hashes = pd.util.hash_pandas_object(frame, index=False, categorize=False).to_numpy(np.uint64)
    return np.array([hashes.sum(dtype=np.uint64), len(hashes)], np.uint64)


@dataclass(eq=False)
class SweepCheckpoint:
    """Writes the state of the sweeps after half sweeps over the items, and goes on from it.

    The half sweep over the users that comes next starts from the posterior of the items: of the
    users, whose covariances are most of the memory, nothing needs to be kept. Later stages draw
    from `rng`.
    """

    checkpoint: Checkpoint | None
    problem: Problem
    known: Sides[KnownEntities]
    rng: np.random.Generator
    losses: list[float] = field(default_factory=list)

    def write(self, done: int) -> None:
        """Write the state after so many half sweeps, if it is time to."""
        if self.checkpoint is None or not self.checkpoint.due():
            return
        started = time.perf_counter()
        items, weights = self.known.items.posterior, self.known.items.weights
        # The weights of the items' history are one for each of this worker's users.
        history = len(weights) > self.problem.features.items.shape[1]
        cut = len(weights) - (self.problem.observed.rows.users.n_rows if history else 0)
        assert items.covariance is not None
        saved = Saved()
        saved.arrays |= {
            "mean": items.mean,
            "covariance": items.covariance,
            "weights_items": weights[:cut],
            "weights_users": self.known.users.weights,
        }
        for side, one in self.known.named():
            saved.arrays |= {f"L_{side}": one.precisions.L, f"penalties_{side}": one.penalties}
        if history:
            saved.rows.users["weights_items_history"] = weights[cut:]
        state = {
            "done": done,
            "losses": self.losses,
            "t": [one.precisions.t for one in self.known],
            "rng": self.rng.bit_generator.state,
        }
        self.checkpoint.write(_SWEEPS, saved, state, started)

    def resume(self, inputs: Sides[EncoderInputs]) -> int:
        """Take over what was written, if anything; return the number of half sweeps done."""
        kept = self.checkpoint
        saved = None if kept is None else kept.read(_SWEEPS, self.problem.mine.users)
        if saved is None:
            return 0
        state, arrays = saved.documents["state"], saved.arrays
        items, users = self.known
        items.posterior = Posterior(arrays["mean"], arrays["covariance"])
        history = [arrays[name] for name in ("weights_items_history",) if name in arrays]
        items.weights = np.vstack([arrays["weights_items"], *history])
        users.weights = arrays["weights_users"]
        for (side, one), t in zip(self.known.named(), state["t"], strict=True):
            one.penalties = arrays[f"penalties_{side}"]
            one.precisions = Precisions(arrays[f"L_{side}"], t)
            one.prior_means = inputs[side].forward(one.weights)
        self.rng.bit_generator.state = state["rng"]
        self.losses += state["losses"]
        return int(state["done"])


def write_rating(
    checkpoint: Checkpoint,
    part: Part,
    chosen: Mapping[str, Any],
    logs: Sequence[Mapping[str, float]],
) -> None:
    """Write the rating part as a model directory has it, if it is time to."""
    if not checkpoint.due():
        return
    started = time.perf_counter()
    output = asdict(part.output)
    state = {"output": output, "chosen": chosen, "logs": logs}
    checkpoint.write(_RATINGS, part.saved(), state, started)


def read_rating(
    checkpoint: Checkpoint, data: Prepared
) -> tuple[Part, dict[str, Any], list[dict[str, float]]] | None:
    """Read what `write_rating` has written: the part, what was chosen, the logs of each epoch."""
    from simrec.model.rating.part import RatingPart

    towers = data.sides.map(lambda side: side.tower)
    found = checkpoint.read(_RATINGS, data.workers.places(len(towers.users.ids)))
    if found is None:
        return None
    state = found.documents["state"]
    with found.fitting_together():
        part = RatingPart.restored(Output(**state["output"]), found, towers)
    return part, state["chosen"], state["logs"]
