"""The work on one unit of input, the same on every engine: read, process, write a part."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import pyarrow as pa

from simrec.data.source import Unit
from simrec.data.table_file import BadFragment, ChangedFragment
from simrec.errors import InputError
from simrec.jobs.io.parts import Part, PartWriter

if TYPE_CHECKING:
    from simrec.data.source import Source
    from simrec.jobs.io.entities import KnownIds

Table: TypeAlias = "Source | KnownIds"
OnBad = Literal["stop", "skip"]


class BatchTask(Protocol):
    """What a job does with a batch of rows. Travels to workers, so it holds data, not files."""

    @property
    def columns(self) -> Sequence[str]:
        """Return the input columns to read."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Return the output columns."""
        ...

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the output rows for input rows, and what was counted."""
        ...


@dataclass(frozen=True)
class Work:
    """Everything a worker needs to turn a unit into a part."""

    source: Table
    task: BatchTask
    writer: PartWriter
    batch_rows: int
    on_bad: OnBad
    partition_by: tuple[str, ...] | None
    keep_partitions: bool

    def run(self, unit: Unit) -> Part:
        """Read a unit, process it, write its files."""
        counts: Counter[str] = Counter()
        name = f"part-{unit.index:06d}.parquet"
        try:
            tables = self._process(unit, counts)
            if self.partition_by:
                files = self.writer.write_divided(name, tables, self.task.schema, self.partition_by)
            else:
                directory = self.source.directory(unit) if self.keep_partitions else ""
                name = f"{directory}/{name}" if directory else name
                files = {name: self.writer.write(name, tables, self.task.schema)}
        except BadFragment as error:
            if self.on_bad == "stop" or isinstance(error, ChangedFragment):
                raise
            return Part(unit.index, 0, skipped=str(error))
        return Part(unit.index, unit.rows, files, dict(counts))

    def empty_part(self) -> Part:
        """Write the one part of an input without rows: a file that has columns only."""
        name = "part-000000.parquet"
        kept = [f for f in self.task.schema if f.name not in (self.partition_by or ())]
        return Part(0, 0, {name: self.writer.write(name, [], pa.schema(kept))})

    def _process(self, unit: Unit, counts: Counter[str]) -> Iterator[pa.Table]:
        rows = 0
        for table in self.source.batches(unit, self.task.columns, self.batch_rows):
            rows += table.num_rows
            try:
                result, counted = self.task.process(table)
            except InputError as error:
                raise InputError(f"{self.source.label(unit)}: {error}") from error
            counts.update(counted)
            yield result
        if rows != unit.rows:
            raise BadFragment(f"{self.source.label(unit)}: {rows} rows, expected {unit.rows}")


def run_in_threads(work: Work, units: Sequence[Unit], workers: int) -> Iterator[Part]:
    """Map `work` over units on threads of this machine; yield parts as they are done."""
    if workers == 1 or len(units) == 1:
        yield from map(work.run, units)
        return
    queue = iter(units)
    running: set[Future[Part]] = set()
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(running) < workers and (unit := next(queue, None)) is not None:
                    running.add(pool.submit(work.run, unit))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                # Parts that are done are handed on before a failed one stops the job.
                for future in sorted(done, key=lambda f: f.exception() is not None):
                    yield future.result()
        finally:
            for future in running:
                future.cancel()
