"""Checkpoints of a fit: where it stands, so that one that was killed goes on from there.

A checkpoint is a directory of arrays with checksums (`simrec.artifacts`), written aside and put in
place in one step. It holds what identifies data and settings; a fit of others refuses it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simrec import __version__, artifacts, manifest
from simrec.errors import InputError
from simrec.mapped import release
from simrec.model.prepare import Prepared
from simrec.model.run.fingerprint import fingerprint
from simrec.model.run.scratch import IN_MEMORY, Scratch
from simrec.model.run.shared import written_together
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
    _looked: bool = field(default=False, init=False)
    _found: artifacts.Artifact | None = field(default=None, init=False)

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

    def read(self, stage: str) -> artifacts.Artifact | None:
        """Give what was written last, if that was at this stage; None otherwise.

        The arrays of all workers' users are `Rows`, of which a worker takes its own.
        """
        # Read once, by all workers at once. (No cached_property: before Python 3.12 it holds a lock
        # that all checkpoints share, and workers that are threads would wait for each other.)
        if not self._looked:
            self._looked, self._found = True, self._read()
        found = self._found
        if found is None or found.documents["state"]["stage"] != stage:
            return None
        self._found = None  # its files are replaced soon, and may then go
        return found

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
            # Mapped: of what is divided, no worker reads more than its own.
            saved = artifacts.load(self.path, KIND)
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
        return saved

    def due(self) -> bool:
        """Tell whether it is time to write again; the first worker's clock counts."""
        waited = time.perf_counter() - self._last
        return bool(self.workers.agree(float(waited * _SHARE >= self._cost)))

    def write(
        self,
        stage: str,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        started: float,
        rows: Mapping[str, np.ndarray] | None = None,
        documents: Mapping[str, Any] | None = None,
        networks: Mapping[str, Sequence[np.ndarray]] | None = None,
    ) -> None:
        """Replace the last checkpoint.

        Parameters
        ----------
        stage : str
            Where the fit stands.
        arrays, state : mapping, JSON data
            What is the same on all workers.
        started : float
            When collecting the arrays began.
        rows : mapping of str to numpy.ndarray, optional
            Arrays with a row for each of this worker's users, written as its shard.
        documents, networks : mapping, optional
            Further plain data, and weights of networks, the same on all workers.
        """
        rank, size = self.workers.rank, self.workers.size
        with written_together(self.path, self.workers) as aside:
            mine: dict[str, Any] = {}
            for name, array in (rows or {}).items():
                mine |= artifacts.write_shard(aside, rank, size, {name: array}, {})
                release(array)
            known = {k: v for one in self.workers.documents(mine) for k, v in one.items()}
            if rank == 0:
                plain_data = {**(documents or {}), "state": {**state, "stage": stage}}
                artifacts.write(aside, arrays, {}, plain_data, networks)
                config = {key: plain(value) for key, value in self.identity.items()}
                manifest.write(aside, KIND, config, {}, known)
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
        if isinstance(strategy, Workers):
            workers = strategy
        elif strategy is not None:
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
        kept = {name: _told(v) for name, v in settings.items() if name not in _FREE}
        identity = {
            "version": __version__,
            **kept,
            "bounds": data.bounds,
            "data": fingerprint(data),
        }
        return Checkpoint(self.path, identity, self.resume, self.workers)


def _told(value: Any) -> Any:
    """Return a setting as plain data: of a user's own network, what tells it from others."""
    if not hasattr(value, "get_weights"):
        return value
    # Keras numbers the names of layers: a network that is made again has others.
    digest = hashlib.sha256(re.sub(r"_\d+\"", '"', value.to_json()).encode())
    for weights in value.get_weights():
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()


def clear(path: str | os.PathLike[str]) -> None:
    """Delete a checkpoint, and nothing but a checkpoint."""
    artifacts.remove(path, KIND)
