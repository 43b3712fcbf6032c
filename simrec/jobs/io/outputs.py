"""The output of a batch job: parts written aside, a record of each, and one step to publish them.

While a job runs its parts are in ``OUT.partial/``; each finished unit of work has a record in
``OUT.partial/_parts/``. When all are there the manifest, the summary and ``_SUCCESS`` are written
and the directory becomes ``OUT``. A job that was killed finds its records and does what is missing.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from simrec import __version__
from simrec.data.files import CSV_ENDINGS, local_path
from simrec.errors import InputError
from simrec.jobs.io.parts import Part, PartWriter, Scratch, open_writer
from simrec.storage import files
from simrec.storage.files import lock

MANIFEST = "_manifest.json"
SUMMARY = "_summary.json"
SUCCESS = "_SUCCESS"
_RECORDS = "_parts"
_JOB = "_job.json"
_SCRATCH = "_scratch"
_STAGED = re.compile(r"part-\d{6,}\.parquet$")
# What differs between runs of one job.
_OF_A_RUN = ("out", "seconds", "rows_per_second", "parts_from_earlier_run")
# Endings of files that people ask for; a directory of such a name would mislead.
_NOT_WRITTEN = (".xlsx", ".xls", ".json", ".jsonl", ".txt", ".pdf", ".html", ".feather", ".zip")


def check_apart(out: str | os.PathLike, /, **inputs: str | os.PathLike | None) -> None:
    """Raise InputError if an output is, holds or lies in an input, named as its option."""
    target = os.path.realpath(out)
    for name, path in inputs.items():
        source = None if path is None else local_path(path)
        if source is None:
            continue
        if target == source or source.startswith(target.rstrip("/") + "/"):
            what = "is" if target == source else "holds"
        elif target.startswith(source.rstrip("/") + "/"):
            what = "lies in"
        else:
            continue
        raise InputError(
            f"{out}: {what} {name} ({path}), which it would destroy. Give another path."
        )


@contextmanager
def claim(out: str | os.PathLike, /, **inputs: str | os.PathLike | None) -> Iterator[None]:
    """Take an output that is written in one step: apart from inputs, locked, without leftovers."""
    check_apart(out, **inputs)
    target = Path(os.path.realpath(out))
    with lock(target.with_name(f"{target.name}.lock")):
        files.remove_leftovers(target)
        yield


class OutputDirectory:
    """The output directory of a job, or its single file where the name ends like one.

    `job` describes the job: equal descriptions give equal output. The directory of another job is
    refused; with `overwrite`, its output is replaced once this one is complete.
    """

    def __init__(self, path: str | os.PathLike, job: Mapping[str, Any], overwrite: bool) -> None:
        if "://" in str(path):
            raise InputError(
                f"out: {path} is a URI; parts are renamed into place, which takes a local or "
                "mounted directory. Write there, then copy."
            )
        self.path = Path(os.path.realpath(path))
        if self.path.name.lower().endswith(_NOT_WRITTEN):
            raise InputError(
                f"out: {self.path.name}: outputs are Parquet or CSV. Give a name that ends in "
                ".parquet, .csv or .tsv (also with .gz), or that of a directory."
            )
        self.staging = self.path.with_name(self.path.name + ".partial")
        self.lock_file = self.path.with_name(self.path.name + ".lock")
        self.job = json.loads(files.plain_json("job", job))
        self.overwrite = overwrite
        self.csv = self.path.name.endswith(CSV_ENDINGS)
        self.single = self.csv or str(path).endswith(".parquet")  # one file, not a directory

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise InputError if the output cannot hold these columns."""
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        if self.csv and nested:
            raise InputError(
                f"out: {self.path.name} cannot hold column {nested[0]!r}, whose values are lists. "
                "Give a name that ends in .parquet, or a directory."
            )

    def finished(self) -> dict[str, Any] | None:
        """Return the summary if this very job is complete; raise if another's output is there."""
        files.remove_leftovers(self.path)
        if not self.path.exists():
            return None
        job, summary, damaged = None, None, []
        if self.single and self.path.is_file():
            note = _read_json(_note(self.path))
            if isinstance(note, Mapping) and _intact(self.path, note, checksum=True):
                job, summary = note.get("job"), note.get("summary")
        elif self.path.is_dir() and not any(self.path.iterdir()):
            return None
        else:
            manifest = _read_json(self.path / MANIFEST) or {}
            job = manifest.get("job") if (self.path / SUCCESS).exists() else None
            summary = _read_json(self.path / SUMMARY)
            damaged = _damaged(self.path, manifest.get("parts"), checksums=False)
        if job == self.job and summary is not None and not damaged:
            # What a job killed while publishing may have left.
            self.discard()
            if self.path.is_dir():
                _tidy(self.path)
            return {**summary, "out": str(self.path)}
        if not self.overwrite and job == self.job:
            raise InputError(
                f"{self.path}: the output of this job, but {(*damaged, SUMMARY)[0]} is missing or "
                "changed. Give --overwrite to write it again."
            )
        if not self.overwrite:
            raise InputError(
                f"{self.path}: there is output here already{_difference(job, self.job)}. Give "
                "another --out, or --overwrite to replace it once the new one is complete."
            )
        self._check_ours()
        return None

    def begin(self, n_units: int) -> dict[int, Part]:
        """Make or enter the directory aside; return the parts that are done, by unit."""
        found = _read_json(self.staging / _JOB)
        if found not in (None, self.job) and not self.overwrite:
            raise InputError(
                f"{self.staging}: parts of another job{_difference(found, self.job)}. Finish "
                "that one, delete the directory, or give --overwrite to drop them."
            )
        if found != self.job:
            # Of another job, or killed before its description was written.
            self.discard()
        (self.staging / _RECORDS).mkdir(parents=True, exist_ok=True)
        if found != self.job:
            files.write_text(self.staging / _JOB, files.to_json(self.job))
        done = {}
        for unit in range(n_units):
            record = _read_json(self._record(unit)) or {}
            if not _damaged(self.staging, record.get("files")):
                done[unit] = Part(**record)
        return done

    def scratch(self, limit: int) -> Scratch:
        """Return room for arrays that only this run needs."""
        directory = self.staging / _SCRATCH
        directory.mkdir(exist_ok=True)
        return Scratch(directory, limit)

    def writer(self, model_id: str, row_group_rows: int) -> PartWriter:
        """Return what writes the parts; each file names the model and version it comes from."""
        about = {"simrec.model_id": model_id, "simrec.version": __version__}
        return PartWriter(str(self.staging), about, row_group_rows)

    def add(self, part: Part) -> None:
        """Record a finished part."""
        files.write_text(self._record(part.unit), files.to_json(asdict(part)))

    def abandon_if_empty(self) -> None:
        """Remove the directory aside if no part is done: failing at once leaves nothing."""
        records = self.staging / _RECORDS
        if records.is_dir() and not any(records.iterdir()):
            self.discard()

    def discard(self) -> None:
        """Remove the directory aside; InputError if anything in it is not from a job."""
        for file in self.staging.rglob("*"):
            name = file.relative_to(self.staging).parts[0]
            if not (file.is_dir() or _STAGED.match(file.name) or name.startswith(("_", "."))):
                raise InputError(
                    f"{self.staging}: holds {file.name}, which no job wrote; not removed. Move it "
                    "away, or give another output."
                )
        shutil.rmtree(self.staging, ignore_errors=True)

    def publish(self, parts: Mapping[int, Part], summary: Mapping[str, Any]) -> None:
        """Make the finished parts the output, in one step."""
        ordered = [part for _, part in sorted(parts.items())]
        listing = {name: record for part in ordered for name, record in part.files.items()}
        if self.single:
            self._publish_single(list(listing), summary)
            return
        for file in list(self.staging.rglob("*")):  # what killed writers left behind
            inside = file.relative_to(self.staging)
            ours = inside.parts[0] in (_RECORDS, _JOB) or inside.as_posix() in listing
            if file.is_file() and not ours:
                file.unlink()
        manifest = {"job": self.job, "parts": listing}
        files.write_text(self.staging / MANIFEST, files.to_json(manifest))
        files.write_text(self.staging / SUMMARY, json.dumps(summary, indent=2) + "\n")
        files.write_text(self.staging / SUCCESS, "")
        if self.path.exists():
            self._check_ours()
        # Records last: a job that is killed before it is in place finds them.
        files.replace_directory(self.staging, self.path)
        _tidy(self.path)

    def _publish_single(self, names: list[str], summary: Mapping[str, Any]) -> None:
        aside = self.staging / f".{self.path.name}"
        about = {k: v for k, v in summary.items() if k not in _OF_A_RUN}
        schema = pq.read_schema(self.staging / names[0])
        with files.naming_full_disk(self.path):
            opened: Any = (_csv_writer if self.csv else open_writer)(aside, schema)
            with opened as writer:
                for name in names:
                    with pq.ParquetFile(self.staging / name) as part:
                        for group in range(part.num_row_groups):
                            table = part.read_row_group(group)
                            writer.write_table(table, max(table.num_rows, 1))
            files.flush(aside)
        if self.path.is_dir():
            self._check_ours()
            shutil.rmtree(self.path)
        note = {**files.checksum(aside), "job": self.job, "summary": about}
        files.write_text(_note(self.path), files.to_json(note))
        os.replace(aside, self.path)
        files.flush(self.path.parent)
        shutil.rmtree(self.staging)

    def _check_ours(self) -> None:
        """Refuse to replace anything but the output of a job."""
        if self.path.is_file():
            if not (self.single and isinstance(_read_json(_note(self.path)), Mapping)):
                raise InputError(
                    f"{self.path}: a file that no job of SimRec wrote: not replaced. Delete it, or "
                    "give another --out."
                )
        else:
            if _listing(self.path) is not None:
                _tidy(self.path)
            files.check_replaceable(self.path, "the output of a job", _listing)

    def _record(self, unit: int) -> Path:
        return self.staging / _RECORDS / f"{unit:06d}.json"


def _tidy(root: Path) -> None:
    """Remove what a complete output does not need."""
    for name in (_SCRATCH, _RECORDS):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / _JOB).unlink(missing_ok=True)


def _damaged(root: Path, records: Any, checksums: bool = True) -> list[str]:
    """Return the files whose sizes, or checksums if asked, are not those of their records."""
    if not isinstance(records, Mapping):
        return ["its record"]
    return [name for name, record in records.items() if not _intact(root / name, record, checksums)]


def _intact(file: Path, record: Any, checksum: bool) -> bool:
    try:
        same = file.stat().st_size == record["bytes"]
        return same and (not checksum or files.checksum(file)["sha256"] == record["sha256"])
    except (OSError, KeyError, TypeError):
        return False


def _listing(root: Path) -> set[str] | None:
    """Return the files that a job wrote to a directory; None if none did."""
    manifest = _read_json(root / MANIFEST)
    try:
        ours = {"job", "model_id"} <= set(manifest["job"])
        return {MANIFEST, SUMMARY, SUCCESS, *dict(manifest["parts"])} if ours else None
    except (TypeError, KeyError, ValueError):
        return None


@contextmanager
def _csv_writer(aside: Path, schema: pa.Schema) -> Iterator[csv.CSVWriter]:
    """Open a CSV file for writing, compressed where the name ends so."""
    packed = "gzip" if aside.name.endswith(".gz") else None
    delimiter = "\t" if aside.name.removesuffix(".gz").endswith(".tsv") else ","
    options = csv.WriteOptions(delimiter=delimiter)
    with (
        pa.output_stream(str(aside), compression=packed) as sink,
        csv.CSVWriter(sink, schema.remove_metadata(), write_options=options) as writer,
    ):
        yield writer


def _note(path: Path) -> Path:
    """Return the file that names the job of a single file."""
    return path.with_name(f".{path.name}.json")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _difference(other: Any, mine: Mapping[str, Any]) -> str:
    """Say in which fields two jobs differ."""
    if not isinstance(other, Mapping):
        return ""
    fields = sorted(k for k in {*other, *mine} if other.get(k) != mine.get(k))
    return f" (of a job with another {', '.join(fields)})" if fields else ""
