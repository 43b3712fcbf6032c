"""Run a batch job: units of work mapped by an engine, their parts published as a whole."""

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from simrec.data.messages import ROWS_BEFORE
from simrec.data.source import Source, Unit
from simrec.errors import InputError
from simrec.jobs.io.entities import KnownIds
from simrec.jobs.io.inputs import ModelReference
from simrec.jobs.io.outputs import OutputDirectory
from simrec.jobs.io.parts import Part, PartWriter, Scratch
from simrec.jobs.options import Path
from simrec.scoring.threads import processors
from simrec.storage.files import lock

logger = logging.getLogger(__name__)

Table = Source | KnownIds
# Bytes to work in: rows in flight are as many as fit, arrays of more than a quarter are in files.
MEMORY = 10**9


@dataclass(frozen=True)
class BatchOptions:
    """Options that all batch jobs share.

    Parameters
    ----------
    engine : str
        Where to run: local, or ray (a cluster).
    workers : int, optional
        How many parts are worked on at once.
    address : str, optional
        Address of the Ray cluster; by default one is started on this machine.
    part_rows : int, optional
        Input rows per part of the output, about.
    overwrite : bool
        Replace other output at the same place, once the new one is complete.
    """

    engine: Literal["local", "ray"] = "local"
    workers: int | None = None
    address: str | None = None
    part_rows: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "part_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}")

    def map(self, work: "Work", units: Sequence[Unit]) -> Iterator[Part]:
        """Run the units, in any order; yield parts as they are done."""
        if self.engine == "ray":
            from simrec.jobs.engine import ray

            return ray.run(work, units, workers=self.workers, address=self.address)
        return _run_in_threads(work, units, self.at_once)

    @property
    def at_once(self) -> int:
        """How many units run at once here: reading, writing and products release the GIL."""
        return self.workers or min(4, processors())


@dataclass(frozen=True, kw_only=True)
class BatchTask(ABC):
    """What a job does with a batch of rows. Travels to workers, so it holds data, not files."""

    columns: Sequence[str]  # input columns to read
    schema: pa.Schema  # output columns

    @abstractmethod
    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the output rows for input rows, and what was counted."""


@dataclass(frozen=True)
class Work:
    """Everything a worker needs to turn a unit into a part, the same on every engine."""

    source: Table
    task: BatchTask
    writer: PartWriter
    batch_rows: int

    def run(self, unit: Unit) -> Part:
        """Read a unit, process it, write its file."""
        counts: Counter[str] = Counter()
        name = f"part-{unit.index:06d}.parquet"
        record = self.writer.write(name, self._process(unit, counts), self.task.schema)
        return Part(unit.index, unit.rows, {name: record}, dict(counts))

    def _process(self, unit: Unit, counts: Counter[str]) -> Iterator[pa.Table]:
        rows = 0
        batches = self.source.batches(unit, self.task.columns, self.batch_rows)
        for table in batches if unit.rows else ():
            before = ROWS_BEFORE.set(unit.start + rows)
            try:
                result, counted = self.task.process(table)
            except InputError as error:
                raise InputError(f"{unit.label}: {error}") from error
            finally:
                ROWS_BEFORE.reset(before)
            rows += table.num_rows
            counts.update(counted)
            yield result
        if rows != unit.rows:
            raise InputError(f"{unit.label}: {rows} rows, expected {unit.rows}")


def _run_in_threads(work: Work, units: Sequence[Unit], workers: int) -> Iterator[Part]:
    """Map `work` over units on threads of this machine; yield parts as they are done."""
    if workers == 1 or len(units) == 1:
        yield from map(work.run, units)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(work.run, unit) for unit in units}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                # Parts that are done are handed on before a failed one stops the job.
                for future in sorted(done, key=lambda f: f.exception() is not None):
                    yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def run_batch(
    job: Mapping[str, Any],
    model: ModelReference,
    source: Table,
    out: Path,
    prepare: Callable[[Scratch], BatchTask],
    options: BatchOptions,
    part_rows: int,
    row_bytes: float,
) -> dict[str, Any]:
    """Run a batch job, or what is left of it; return its summary.

    `job` determines the output beside the model and the input. `prepare` makes the task, given room
    for its arrays, if there is something left to do. A row of input takes `row_bytes` of memory.
    """
    part_rows = options.part_rows or part_rows
    described = {
        **job,
        "model_id": model.model_id,
        "input": source.identity(),
        "part_rows": part_rows,
    }
    output = OutputDirectory(out, described, options.overwrite)
    with lock(output.lock_file):
        summary = output.finished()
        if summary is not None:
            logger.info("%s: complete already, nothing to do", output.path)
            return {**summary, "already_complete": True}
        started = time.perf_counter()
        # An input without rows has one part, a file that has columns only.
        units = source.units(part_rows) or [Unit(0, 0, (), 0, "no rows")]
        parts = output.begin(len(units))
        n_resumed = len(parts)
        try:
            missing = [unit for unit in units if unit.index not in parts]
            if missing:
                # Rows of a batch, and of a row group: many, unless memory would not do.
                share = MEMORY / options.at_once // max(row_bytes, 1)
                group_rows = min(1 << 17, max(1 << 10, (64 << 20) // max(row_bytes, 1)))
                work = Work(
                    source,
                    prepare(output.scratch(MEMORY // 4)),
                    output.writer(model.model_id, int(group_rows)),
                    int(min(1 << 17, max(256, share))),
                )
                output.check_schema(work.task.schema)
                for part in _with_progress(options.map(work, missing), missing):
                    model.check()
                    output.add(part)
                    parts[part.unit] = part
        except BaseException:
            output.abandon_if_empty()
            raise
        counts: Counter[str] = Counter()
        for part in parts.values():
            counts.update(part.counts)
        seconds = time.perf_counter() - started
        rows_in = sum(part.rows_in for part in parts.values())
        summary = {
            "job": job["job"],
            "model_id": model.model_id,
            "out": str(output.path),
            "rows_in": rows_in,
            "rows_out": sum(part.rows_out for part in parts.values()),
            **dict(sorted(counts.items())),
            "parts": len(parts),
            "parts_from_earlier_run": n_resumed,
            "seconds": round(seconds, 3),
            "rows_per_second": round(rows_in / max(seconds, 1e-9)),
        }
        output.publish(parts, summary)
    return summary


def _with_progress(parts: Iterator[Part], units: Sequence[Unit]) -> Iterator[Part]:
    """Show a bar on a terminal, log a line per part elsewhere."""
    if logger.isEnabledFor(logging.INFO) and sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(parts, total=len(units), unit=" parts")
        return
    labels = {unit.index: unit.label for unit in units}
    for n, part in enumerate(parts, start=1):
        done = f"{part.rows_in} rows in, {part.rows_out} rows out"
        logger.info("%d/%d %s: %s", n, len(units), labels[part.unit], done)
        yield part
