"""Lock the output of a job; reject an output that overlaps an input."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simrec.data.paths import local_path, matches
from simrec.errors import InputError
from simrec.jobs.options import Path as PathLike
from simrec.storage import files
from simrec.storage.lock import lock


def check_apart(out: PathLike, /, **inputs: PathLike | None) -> None:
    """Raise InputError if an output is, holds or lies in an input, named as its option."""
    target = os.path.realpath(out)
    for name, path in inputs.items():
        found = None if path is None else local_path(path)
        if found is None:
            continue
        source, pattern = found
        if target == source or source.startswith(target.rstrip("/") + "/"):
            what = "is" if target == source else "holds"
        elif target.startswith(source.rstrip("/") + "/") and (
            pattern is None or matches(target, pattern) or matches(f"{target}/x.parquet", pattern)
        ):
            what = "lies in"
        else:
            continue
        raise InputError(
            f"{out}: {what} {name} ({path}), which it would destroy. Give another path."
        )


@contextmanager
def claim(out: PathLike, /, **inputs: PathLike | None) -> Iterator[None]:
    """Take an output that is written in one step: apart from inputs, locked, without leftovers."""
    check_apart(out, **inputs)
    target = Path(os.path.realpath(out))
    with lock(target.with_name(f"{target.name}.lock")):
        files.remove_leftovers(target)
        yield
