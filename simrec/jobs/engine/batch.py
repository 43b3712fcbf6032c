"""Run a batch job: units of work mapped by an engine, their parts published as a whole."""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

from simrec.data.sizes import parse_size
from simrec.data.source import Unit
from simrec.errors import InputError
from simrec.jobs.engine.work import BatchTask, OnBad, Table, Work, run_in_threads
from simrec.jobs.io.model import ModelReference
from simrec.jobs.io.outputs import OutputDirectory
from simrec.jobs.io.parts import Part
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.options import Path
from simrec.storage.lock import lock

logger = logging.getLogger(__name__)


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
    memory : str
        Memory to work in, such as 2GB; larger arrays are mapped from files.
    part_rows : int, optional
        Input rows per part of the output, about.
    partition_by : sequence of str, optional
        Columns to partition the output by; by default the partitions of the input are kept.
    overwrite : bool
        Replace other output at the same place, once the new one is complete.
    on_bad_fragment : str
        What to do with a corrupt input file: stop, or skip it and list it in the summary.
    """

    engine: Literal["local", "ray"] = "local"
    workers: int | None = None
    address: str | None = None
    memory: str = "1GB"
    part_rows: int | None = None
    partition_by: tuple[str, ...] | None = None
    overwrite: bool = False
    on_bad_fragment: OnBad = "stop"

    def __post_init__(self) -> None:
        for name in ("workers", "part_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: expected at least 1, got {value}")
        parse_size(self.memory)

    def batch_rows(self, row_bytes: float, most: int = 1 << 17) -> int:
        """Return how many rows to hold at once, given the bytes each needs while worked on."""
        share = parse_size(self.memory) / (self.workers or default_workers())
        return int(min(most, max(256, share // max(row_bytes, 1))))

    def map(self, work: Work, units: Sequence[Unit]) -> Iterator[Part]:
        """Run the units, in any order; yield parts as they are done."""
        if self.engine == "ray":
            from simrec.jobs.engine import ray

            return ray.run(work, units, workers=self.workers, address=self.address)
        return run_in_threads(work, units, self.workers or default_workers())


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

    `job` determines the output beside the model and the input: the kind of job and its options. The
    job stops if the directory of the model changes. `prepare` makes the task, given room for its
    arrays; it is called only if there is something left to do. A row of input needs `row_bytes` of
    memory while it is worked on.
    """
    part_rows = options.part_rows or part_rows
    described = {
        **job,
        "model_id": model.model_id,
        "input": source.identity(),
        "part_rows": part_rows,
        "partition_by": options.partition_by,
    }
    output = OutputDirectory(out, described, options.overwrite)
    if output.single and options.partition_by:
        raise InputError(f"partition_by: {out} is a single file; give a directory as out")
    with lock(output.lock_file):
        summary = output.finished() or output.recover()
        if summary is not None:
            logger.info("%s: complete already, nothing to do", output.path)
            return {**summary, "already_complete": True}
        started = time.perf_counter()
        units = source.units(part_rows)
        parts = output.begin(len(units))
        n_resumed = len(parts)
        try:
            missing = [unit for unit in units if unit.index not in parts]
            if missing or not units:
                work = Work(
                    source,
                    prepare(Scratch(output.scratch(), parse_size(options.memory) // 4)),
                    output.writer(model.model_id, _row_group_rows(row_bytes)),
                    options.batch_rows(row_bytes),
                    options.on_bad_fragment,
                    options.partition_by,
                    keep_partitions=not output.single,
                )
                output.check_schema(work.task.schema)
                if not units:
                    parts[0] = work.empty_part()
                    output.add(parts[0])
                for part in _with_progress(options.map(work, missing), missing, source):
                    model.check()
                    output.add(part)
                    parts[part.unit] = part
        except BaseException:
            output.abandon_if_empty()
            raise
        # Every unit may have been skipped; empty files have nothing to partition.
        if all(part.skipped for part in parts.values()):
            skipped = "\n  ".join(part.skipped for part in parts.values())
            output.discard()
            raise InputError(f"none of the input could be read:\n  {skipped}")
        seconds = time.perf_counter() - started
        summary = _summarise(described, source, parts, n_resumed, seconds, output.path)
        output.publish(parts, summary)
    return summary


def _with_progress(parts: Iterator[Part], units: Sequence[Unit], source: Table) -> Iterator[Part]:
    """Show a bar on a terminal, log a line per part elsewhere."""
    by_index = {unit.index: unit for unit in units}
    bar: Any = None
    if logger.isEnabledFor(logging.INFO) and sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=sum(unit.rows for unit in units), unit=" rows", unit_scale=True)
    with contextlib.closing(bar) if bar is not None else contextlib.nullcontext():
        for n, part in enumerate(parts, start=1):
            unit = by_index[part.unit]
            if bar is None:
                rows = sum(file["rows"] for file in part.files.values())
                done = part.skipped or f"{part.rows_in} rows in, {rows} rows out"
                logger.info("%d/%d %s: %s", n, len(units), source.label(unit), done)
            else:
                bar.update(unit.rows)
                if part.skipped:
                    logger.warning("skipped: %s", part.skipped)
            yield part


def _summarise(
    job: Mapping[str, Any],
    source: Table,
    parts: Mapping[int, Part],
    n_resumed: int,
    seconds: float,
    out: FilePath,
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for part in parts.values():
        counts.update(part.counts)
    rows_in = sum(part.rows_in for part in parts.values())
    done = [part for part in parts.values() if not part.skipped]
    return {
        "job": job["job"],
        "model_id": job["model_id"],
        "out": str(out),
        "rows_in": rows_in,
        "rows_out": sum(file["rows"] for part in done for file in part.files.values()),
        **dict(sorted(counts.items())),
        "parts": len(done),
        "parts_from_earlier_run": n_resumed,
        "skipped": [*source.bad, *(part.skipped for part in parts.values() if part.skipped)],
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows_in / max(seconds, 1e-9)),
    }


def _row_group_rows(row_bytes: float) -> int:
    """Return the rows of a row group: many, unless rows are so wide that memory would not do."""
    return int(min(1 << 17, max(1 << 10, (64 << 20) // max(row_bytes, 1))))


def default_workers() -> int:
    """Return how many units run at once: reading, writing and products release the GIL."""
    from simrec.scoring.threads import processors

    return min(4, processors())
