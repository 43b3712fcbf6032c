"""The output of a job is its own: no input, nobody else's, and written by one job at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simrec import files
from simrec.errors import InputError
from simrec.jobs.io.discover import local_path, matches
from simrec.jobs.io.lock import lock
from simrec.jobs.options import Path as PathLike


def check_apart(out: PathLike, /, **inputs: PathLike | None) -> None:
    """Raise InputError if an output is an input, holds one or lies in one.

    Parameters
    ----------
    out : path
        The output.
    **inputs : path or None
        Tables and models that the job reads, by the names of their options.
    """
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
    """Take an output that is written in one step: apart from the inputs, locked, without leftovers.

    Parameters
    ----------
    out : path
        The directory or file to write.
    **inputs : path or None
        What the job reads, see `check_apart`.
    """
    check_apart(out, **inputs)
    target = Path(os.path.realpath(out))
    with lock(target.with_name(f"{target.name}.lock")):
        files.remove_leftovers(target)
        yield
