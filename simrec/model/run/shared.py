"""A directory that several workers write together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from simrec import artifacts, files
from simrec.model.run.workers import Workers


@contextmanager
def written_together(path: str | os.PathLike[str], workers: Workers) -> Iterator[Path]:
    """Give all workers one directory, which takes the place of `path` when the block ends well.

    All wait for each other at the beginning and at the end. The first worker writes the manifest.
    """
    with ExitStack() as stack:
        stack.enter_context(files.naming_full_disk(path))
        aside = ""
        if workers.rank == 0:
            aside = str(stack.enter_context(artifacts.aside(path)))
        yield Path(workers.agreed(aside))
    workers.total(0.0)
