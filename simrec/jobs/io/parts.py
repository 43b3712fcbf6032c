"""One part of an output: Parquet files written aside and renamed, and the record of them."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simrec import files


@dataclass(frozen=True)
class Part:
    """What one unit of work wrote.

    Attributes
    ----------
    unit : int
        The unit's index.
    rows_in : int
        Rows read.
    files : dict of str to dict
        Files written, relative to the output, with ``rows``, ``bytes`` and ``sha256``.
    counts : dict of str to int
        Things counted on the way, such as unknown ids.
    skipped : str
        Why there is no output, empty if there is.
    """

    unit: int
    rows_in: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    skipped: str = ""


@dataclass(frozen=True)
class PartWriter:
    """Writes the files of a part; small and picklable, so that it travels to workers."""

    directory: str
    metadata: dict[str, str]
    row_group_rows: int = 1 << 17

    def write(self, name: str, tables: Iterable[pa.Table], schema: pa.Schema) -> dict[str, Any]:
        """Write tables as one Parquet file, aside, then rename it to `name`; return its record."""
        target = Path(self.directory) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.uname().nodename}-{os.getpid()}-{id(tables)}")
        schema = schema.with_metadata({**(schema.metadata or {}), **self.metadata})
        rows = 0
        try:
            with open_writer(aside, schema) as writer:
                # Row groups of one size, however many rows come at a time.
                for table in _regroup(tables, self.row_group_rows):
                    rows += table.num_rows
                    writer.write_table(table, row_group_size=table.num_rows)
            files.flush(aside)
            record = {
                "rows": rows,
                "bytes": aside.stat().st_size,
                "sha256": files.sha256(aside),
            }
            os.replace(aside, target)
        except OSError as error:
            if error.errno == errno.ENOSPC or "No space left" in str(error):
                raise OSError(
                    errno.ENOSPC,
                    "the disk is full; parts already done stay valid: make room and start again",
                    str(target),
                ) from error
            raise
        finally:
            aside.unlink(missing_ok=True)
        return record


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file for writing, compressed and encoded as suits ids and scores."""
    # Dictionaries of ids and scores, mostly distinct, cost more than they save.
    texts = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=texts or False)


def _regroup(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Give the same rows in tables of `rows` rows each, but for the last."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        while count >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows)
            waiting, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(waiting)
