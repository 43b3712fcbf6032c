"""Checkpoints of a fit: where it stands, so that one that was killed goes on from there.

A checkpoint is a directory of arrays with checksums (`simrec.artifacts`), written aside and put in
place in one step. It holds what identifies data and settings; a fit of others refuses it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from simrec import __version__, artifacts
from simrec.errors import InputError
from simrec.model.prepare import Prepared
from simrec.model.run.scratch import IN_MEMORY, Scratch
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.simec.params import plain

logger = logging.getLogger(__name__)

KIND = "checkpoint"
# At most this share of the time goes into checkpoints.
_SHARE = 0.05
# Settings that change what is shown or kept and not what is learned.
_FREE = ("verbose", "keep_evidence")


@dataclass(eq=False)
class Checkpoint:
    """Where a fit keeps its state.

    Parameters
    ----------
    path : path
        The directory. With several workers, on storage that all of them see.
    identity : mapping
        What identifies data and settings.
    resume : bool
        Whether to go on from what is there.
    workers : Workers
        The workers. The first one writes, all read.
    """

    path: str | os.PathLike[str]
    identity: Mapping[str, Any]
    resume: bool = False
    workers: Workers = ONE_WORKER
    _cost: float = field(default=0.0, init=False)
    _last: float = field(default=-np.inf, init=False)

    def __post_init__(self) -> None:
        artifacts.check_replaceable(self.path)
        if self._there():
            try:
                kind = artifacts.read_manifest(self.path)["kind"]
            except InputError:
                return  # damaged: of use to nobody
            if kind != KIND:
                raise InputError(
                    f"{self.path}: holds a {kind!r}, no checkpoint, which is not replaced. Give "
                    "another directory for checkpoints."
                )
            if not self.resume:
                logger.warning(
                    "%s: the checkpoint of an earlier training is not used (resume goes on from "
                    "it) and will be replaced",
                    self.path,
                )

    def _there(self) -> bool:
        return os.path.isdir(self.path) and any(os.scandir(self.path))

    def read(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Give the arrays and the state that were written last; None for a start from scratch."""
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
            saved = artifacts.load(self.path, KIND, mmap=False)
        except InputError as error:
            raise InputError(
                f"{self.path}: a damaged checkpoint ({error}). Train without resume."
            ) from None
        differ = [k for k in self.identity if saved.config.get(k) != plain(self.identity[k])]
        if differ:
            raise InputError(
                f"{self.path}: a checkpoint of another training, with other {', '.join(differ)}. "
                "Train with the same data and settings to go on from it, or without resume."
            )
        logger.info("%s: going on from this checkpoint", self.path)
        return saved.arrays, saved.documents["state"]

    def due(self) -> bool:
        """Tell whether it is time to write again; the first worker's clock counts."""
        waited = time.perf_counter() - self._last
        return bool(self.workers.agree(float(waited * _SHARE >= self._cost)))

    def write(self, arrays: Mapping[str, np.ndarray], state: Any, started: float) -> None:
        """Replace the last checkpoint; `started` is when collecting the arrays began."""
        if self.workers.rank == 0:
            config = {key: plain(value) for key, value in self.identity.items()}
            artifacts.save(self.path, KIND, config, arrays, {}, {"state": state})
        self._last = time.perf_counter()
        self._cost = self._last - started


@dataclass(frozen=True, eq=False)
class Run:
    """How a fit runs: with which workers, and where it keeps its state and its arrays."""

    workers: Workers = ONE_WORKER
    path: str | os.PathLike[str] | None = None
    resume: bool = False
    scratch: Scratch = IN_MEMORY

    @classmethod
    def of(
        cls,
        strategy: Any,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        scratch: str | os.PathLike[str] | None = None,
    ) -> Run:
        """Take the arguments of `TwoTower.fit`."""
        if resume and checkpoint is None:
            raise InputError("resume: say which checkpoint to go on from.")
        room = Scratch.of(memory, scratch)
        workers = ONE_WORKER
        if strategy is not None:
            from simrec.model.run.strategy import workers_of

            workers = workers_of(strategy)
        return cls(workers, checkpoint, resume, room)

    def checkpoint(self, settings: Mapping[str, Any], data: Prepared) -> Checkpoint | None:
        """Return the checkpoint of a fit, if it is to have one.

        Parameters
        ----------
        settings : mapping
            The arguments of the model; a fit with others does not go on from the checkpoint.
        data : Prepared
            What it is fitted to, likewise.
        """
        if self.path is None:
            return None
        kept = {name: value for name, value in settings.items() if name not in _FREE}
        identity = {"version": __version__, **kept, "bounds": data.bounds, "data": _digest(data)}
        return Checkpoint(self.path, identity, self.resume, self.workers)


def clear(path: str | os.PathLike[str]) -> None:
    """Delete a checkpoint, and nothing but a checkpoint."""
    artifacts.remove(path, KIND)


def _digest(data: Prepared) -> str:
    """Hash all ratings, ids and features."""
    digest = hashlib.sha256()
    ratings = data.ratings
    for array in (ratings.user_rows, ratings.item_rows, ratings.values):
        _add(digest, array)
    for side in data.sides:
        table = pa.table({"id": side.tower.ids.ids})
        with pa.ipc.new_stream(pa.PythonFile(_Sink(digest), "w"), table.schema) as stream:
            stream.write_table(table)
        X = side.tower.features
        for array in (side.rated_rows, X.data, X.indices, X.indptr, side.groups):
            _add(digest, array)
    return digest.hexdigest()


def _add(digest: Any, array: np.ndarray) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)


class _Sink:
    """A file that is only hashed."""

    closed = False

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
