"""What has happened since the model was trained, durably: a log, and Parquet segments of it.

::

    state/
      log.jsonl                          records that are not in a segment yet, one JSON line each
      ratings/00000001-00000250.parquet  segments by number of record; ``simrec update`` reads them
      events/  items/  users/  lists/    likewise

A record is acknowledged after ``fsync``; one that a kill cut short was not, and is dropped. Several
processes share a log: each appends under a lock, and reads what the others have appended.
"""

import contextlib
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from simrec.storage import files

Kind = Literal["ratings", "events", "items", "users", "lists"]
KINDS: tuple[Kind, ...] = ("ratings", "events", "items", "users", "lists")
_SEGMENT = re.compile(r"(\d{8,})-(\d{8,})\.parquet")
_NUMBER = "record"  # the column of a segment with the numbers of its records
# Records after which the log becomes segments.
SEAL = 10_000


class Log:
    """The log of a service."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        with files.naming_full_disk(self.directory):
            for kind in KINDS:
                (self.directory / kind).mkdir(parents=True, exist_ok=True)
        self.path = self.directory / "log.jsonl"
        self._mutex = threading.Lock()
        self._inode = self._offset = 0
        self.last = 0  # number of the last record that `new` has given
        with self._locked():
            self._repair()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from writing."""
        with self._mutex:
            descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def _repair(self) -> None:
        """Cut off a line that was not finished."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with open(self.path, "r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())

    def append(self, kind: Kind, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write records and wait until they are on disk; return the number of the last, or 0."""
        if not rows:
            return 0
        with self._locked(), files.naming_full_disk(self.path):
            self._repair()
            last = self._last_number() + len(rows)
            numbered = enumerate(rows, start=last - len(rows) + 1)
            lines = [json.dumps([n, kind, row], separators=(",", ":")) for n, row in numbered]
            content = ("\n".join(lines) + "\n").encode()
            before = self.path.stat().st_size if self.path.exists() else 0
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(28, "No space left on device", str(self.path))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
            finally:
                os.close(descriptor)
        if last % SEAL < len(rows):
            with contextlib.suppress(OSError):  # what was written stays in the log
                self.seal()
        return last

    def _last_number(self) -> int:
        """Return the number of the last record, in the log or in a segment."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 22)))
            lines = file.read().splitlines()
            if lines:
                return int(json.loads(lines[-1])[0])
        return max(map(self._sealed, KINDS))

    def _sealed(self, kind: Kind) -> int:
        """Return the number of the last record of a kind that is in a segment."""
        names = (one.name for one in (self.directory / kind).iterdir())
        return max((int(m[2]) for m in map(_SEGMENT.fullmatch, names) if m), default=0)

    def new(self) -> list[tuple[Kind, dict[str, Any]]]:
        """Return the records since the last call, at first all; also those of other processes."""
        with self._mutex:
            try:
                stat = self.path.stat()
            except FileNotFoundError:
                return []
            if (stat.st_ino, stat.st_size) == (self._inode, self._offset):
                return []
            found = []
            if stat.st_ino != self._inode:
                # Another process has made segments of the log, maybe before this one had read it.
                found = self._segments(self.last)
                self._inode, self._offset = stat.st_ino, 0
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                content = file.read()
            whole = content.rfind(b"\n") + 1
            self._offset += whole
            read = {record[0] for record in found}
            for line in content[:whole].splitlines():
                number, kind, row = json.loads(line)
                if number > self.last and number not in read:
                    found.append((number, kind, row))
            self.last = max([self.last, *(record[0] for record in found)])
            return [(kind, row) for _, kind, row in found]

    def _segments(self, after: int) -> list[tuple[int, Kind, dict[str, Any]]]:
        """Return the records in segments that change answers, from a number on."""
        found: list[tuple[int, Kind, dict[str, Any]]] = []
        for kind in ("items", "users", "ratings"):
            for path in (self.directory / kind).iterdir():
                match = _SEGMENT.fullmatch(path.name)
                if match and int(match[2]) > after:
                    for row in pq.read_table(path).to_pylist():
                        kept = {name: v for name, v in row.items() if v is not None}
                        number = kept.pop(_NUMBER)
                        if number > after:
                            found.append((number, kind, kept))  # type: ignore[arg-type]
        return sorted(found, key=lambda record: record[0])

    def seal(self) -> None:
        """Turn the log into segments, one for each kind; nothing is lost if it is interrupted."""
        with self._locked(), files.naming_full_disk(self.directory):
            self._repair()
            if not self.path.exists():
                return
            records = [json.loads(line) for line in self.path.read_bytes().splitlines()]
            for kind in KINDS:
                done = self._sealed(kind)
                rows = [{**row, _NUMBER: n} for n, of, row in records if of == kind and n > done]
                if rows:
                    name = f"{rows[0][_NUMBER]:08d}-{rows[-1][_NUMBER]:08d}.parquet"
                    path = self.directory / kind / name
                    names = list(dict.fromkeys(name for row in rows for name in row))
                    table = {name: _column([row.get(name) for row in rows]) for name in names}
                    aside = path.with_suffix(".aside")
                    pq.write_table(pa.table(table), aside)
                    files.flush(aside)
                    os.replace(aside, path)
                    files.flush(path.parent)
            empty = self.path.with_suffix(".new")
            empty.write_bytes(b"")
            os.replace(empty, self.path)
            files.flush(self.directory)


def _column(values: list[Any]) -> pa.Array:
    """Return a column of values; as JSON where they are of several types."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return pa.array([None if value is None else json.dumps(value) for value in values])
