"""The engine-free core: a unit of input and a task in, the files of a part out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from simrec.errors import InputError
from simrec.jobs.io.parts import Part, PartWriter
from simrec.jobs.io.sources import BadFragment, ChangedFragment, Unit

OnBad = Literal["stop", "skip"]


class Table(Protocol):
    """What a job reads: a `Source`, or ids the model knows."""

    @property
    def bad(self) -> tuple[str, ...]:
        """Messages about files left out."""
        ...

    def units(self, part_rows: int) -> list[Unit]:
        """Divide the rows into units of work."""
        ...

    def batches(
        self, unit: Unit, columns: Sequence[str] | None = None, batch_rows: int = ...
    ) -> Iterator[pa.Table]:
        """Read a unit, some rows at a time."""
        ...

    def directory(self, unit: Unit) -> str:
        """Return the Hive partition of a unit, empty for none."""
        ...

    def label(self, unit: Unit) -> str:
        """Name a unit in messages."""
        ...

    def identity(self) -> Any:
        """Return what distinguishes this input from another."""
        ...


class Task(Protocol):
    """What a job does with a batch of rows. Travels to workers, so it holds data, not files."""

    @property
    def columns(self) -> Sequence[str]:
        """The input columns to read."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The output columns."""
        ...

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the output rows for input rows, and what was counted."""
        ...


@dataclass(frozen=True)
class Work:
    """Everything a worker needs to turn a unit into a part."""

    source: Table
    task: Task
    writer: PartWriter
    batch_rows: int
    on_bad: OnBad
    partition_by: tuple[str, ...] | None
    keep_partitions: bool

    def run(self, unit: Unit) -> Part:
        """Read a unit, process it, write its files. The same on every engine."""
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
