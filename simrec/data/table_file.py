"""One Parquet or CSV file of a table: its footer, and its rows in the columns of the table."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from simrec.data import partitions
from simrec.data.arrays import range_array, range_ids
from simrec.data.paths import CSV_ENDINGS, PARQUET_ENDINGS
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.data.csv_files import Dialect


class BadFragment(InputError):
    """A piece of the input that cannot be read."""


class ChangedFragment(BadFragment):
    """A file of the input that is no longer what it was when the job was planned."""


@dataclass(frozen=True)
class TableFile:
    """A Parquet or CSV file as it was when it was opened. Small, and travels to workers."""

    filesystem: fs.FileSystem
    path: str
    stamp: tuple[int, str, int | None]  # size, time of change, number: of no other file
    rows: tuple[int, ...]  # of each row group; a CSV file is one, which is read as a stream
    uncompressed: int  # bytes in memory, roughly
    schema: pa.Schema  # its columns, and those of `ranges`
    partition: partitions.Pairs  # columns and values in the names of its directories
    ranges: dict[str, range]  # ids that pandas wrote as a range
    dialect: "Dialect | None" = None  # how a CSV file is written; None for Parquet

    @classmethod
    def open(
        cls, filesystem: fs.FileSystem, base: str, path: str, options: Mapping[str, str]
    ) -> "TableFile":
        """Read the footer of a file; partitions are the directories below `base`."""
        dialect, stamp = None, _stamp(filesystem, path)
        rows: tuple[int, ...]
        ranges: dict[str, range] = {}
        is_csv = bool(options) or path.lower().endswith(CSV_ENDINGS)
        try:
            if not is_csv and not path.lower().endswith(PARQUET_ENDINGS):
                with filesystem.open_input_stream(path) as stream:
                    is_csv = stream.read(4) not in (b"PAR1", b"")
            if is_csv:
                from simrec.data.csv_files import find_dialect, look_through

                dialect = find_dialect(path, filesystem, options)
                schema, n_rows = look_through(path, filesystem, dialect)
                rows, uncompressed = (n_rows,) if n_rows else (), stamp[0]
            else:
                footer = pq.read_metadata(path, filesystem=filesystem)
                schema = footer.schema.to_arrow_schema()
                rows = _group_rows(footer)
                sizes = (footer.row_group(i).total_byte_size for i in range(len(rows)))
                uncompressed, ranges = sum(sizes), range_ids(schema, sum(rows))
        except InputError as error:
            raise BadFragment(str(error)) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, is_csv, stamp[0], error) from error
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise BadFragment(
                f"{path}: more than one column is called {twice[0]!r}. Rename or drop one."
            )
        for name in ranges:
            schema = schema.append(pa.field(name, pa.int64()))
        found = partitions.of_path(base, path)
        return cls(filesystem, path, stamp, rows, uncompressed, schema, found, ranges, dialect)

    @property
    def is_csv(self) -> bool:
        """Whether it is a CSV file."""
        return self.dialect is not None

    def read(self, target: pa.Schema) -> pa.Table:
        """Read all rows in the columns of a schema; dictionaries may stand for strings."""
        if self.is_csv:
            plain = pa.schema([f.with_type(_value_type(f.type)) for f in target])
            tables = self.batches(range(len(self.rows)), plain, 1 << 30)
            return pa.concat_tables([plain.empty_table(), *tables]).cast(target)
        texts = [field.name for field in target if pa.types.is_dictionary(field.type)]
        try:
            # In one piece per column, which spares NumPy a copy of every column.
            with pq.ParquetFile(
                self.path, filesystem=self.filesystem, pre_buffer=True, read_dictionary=texts
            ) as parquet:
                self._check_footer(parquet)
                return self._complete(parquet.read(columns=self._stored(target)), target, 0)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, self.is_csv, self.stamp[0], error) from error

    def batches(
        self, row_groups: Sequence[int], target: pa.Schema, batch_rows: int
    ) -> Iterator[pa.Table]:
        """Read some row groups in the columns of a schema, at most `batch_rows` rows at a time.

        Raises `BadFragment` if the file cannot be read, and `ChangedFragment`, at the latest after
        the last batch, if it is another one than when it was opened.
        """
        start = sum(self.rows[: min(row_groups, default=0)])
        try:
            for batch in self._stream(row_groups, target, batch_rows):
                yield self._complete(pa.Table.from_batches([batch]), target, start)
                start += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            if self.is_csv:
                self._check_stamp()
            raise _unreadable(self.path, self.is_csv, self.stamp[0], error) from error
        self._check_stamp()

    def _stream(
        self, row_groups: Sequence[int], target: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        stored = self._stored(target)
        if self.dialect is not None:
            from simrec.data.csv_files import stream

            own = pa.schema([target.field(name) for name in stored])
            yield from stream(self.path, self.filesystem, self.dialect, own, batch_rows)
            return
        with pq.ParquetFile(self.path, filesystem=self.filesystem) as parquet:
            self._check_footer(parquet)
            # Decoded as it goes: `pyarrow.dataset` holds whole row groups, and imports pandas.
            yield from parquet.iter_batches(
                batch_rows, row_groups=list(row_groups), columns=stored, use_threads=False
            )

    def _stored(self, target: pa.Schema) -> list[str]:
        return [n for n in target.names if n in self.schema.names and n not in self.ranges]

    def _complete(self, table: pa.Table, target: pa.Schema, start: int) -> pa.Table:
        """Give rows from `start` on the columns of a schema: widened, of the partition, or null."""
        stored, partition, n = self._stored(target), dict(self.partition), table.num_rows
        arrays = []
        for field in target:
            name, kind = field.name, field.type
            if name in stored:
                column = table.column(name)
                arrays.append(column if column.type == kind else column.cast(kind))
            elif name in self.ranges:
                arrays.append(range_array(self.ranges[name][start : start + n]).cast(kind))
            elif partition.get(name) is None:
                arrays.append(pa.nulls(n, kind))
            else:
                arrays.append(pa.repeat(pa.scalar(partition[name], pa.string()).cast(kind), n))
        return pa.table(arrays, schema=target) if arrays else table

    def _check_stamp(self) -> None:
        if _stamp(self.filesystem, self.path) != self.stamp:
            raise self._changed("the file changed or was replaced")

    def _check_footer(self, parquet: pq.ParquetFile) -> None:
        names = [name for name in self.schema.names if name not in self.ranges]
        if (parquet.schema_arrow.names, _group_rows(parquet.metadata)) != (names, self.rows):
            raise self._changed("other rows than before, or other columns: the file changed")

    def _changed(self, how: str) -> ChangedFragment:
        again = "Start the job again with --overwrite."
        return ChangedFragment(f"{self.path}: {how} while the job ran. {again}")


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _group_rows(footer: pq.FileMetaData) -> tuple[int, ...]:
    return tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))


def _stamp(filesystem: fs.FileSystem, path: str) -> tuple[int, str, int | None]:
    info, number = filesystem.get_file_info(path), None
    if isinstance(filesystem, fs.LocalFileSystem) and info.type != fs.FileType.NotFound:
        number = os.stat(path).st_ino  # one that takes its place has another
    return info.size or 0, str(info.mtime_ns or ""), number


def _unreadable(path: str, is_csv: bool, size: int, error: Exception) -> BadFragment:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    form = "CSV" if is_csv else "Parquet"
    return BadFragment(
        f"{path}: cannot be read as {form} ({lines[0].rstrip('. ')}; {size:,} bytes). "
        f"The file is cut short, damaged or of another format: write it again as {form}."
    )
