"""A few ratings of new users or items, folded into a model for the length of a job."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import pyarrow as pa

from simrec import files
from simrec.data.ids import IdMap
from simrec.jobs.entities import read_blocks
from simrec.jobs.io.discover import open_source
from simrec.jobs.models import ModelReference
from simrec.jobs.options import Path

if TYPE_CHECKING:
    from simrec.model.tower import Tower


@contextmanager
def with_feedback(
    model: Path, feedback: Path | None, users: Path | None, items: Path | None, out: Path
) -> Iterator[ModelReference]:
    """Give the model of a job, with the ratings of `feedback` folded in.

    The folded model lies beside the output while the job runs, where all workers see it. The same
    model and feedback give the same folded model, so that a job that was killed goes on.
    """
    if feedback is None:
        yield ModelReference.of(model)
        return
    from simrec.model.two_tower import TwoTower

    ModelReference.of(model)
    ratings = open_source(feedback, "feedback").read()
    folded = TwoTower.load(os.fspath(model))
    tables = {
        "users": _rows_of(users, folded.user_tower_, ratings),
        "items": _rows_of(items, folded.item_tower_, ratings),
    }
    # Errors name a file that was given by its name.
    folded.fold_in(feedback if os.path.isfile(feedback) else ratings, **tables)
    target = FilePath(os.path.realpath(out))
    target.parent.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(target)
    with files.own_directory(target, ".feedback") as directory:
        folded.save(directory / "model")
        yield ModelReference.of(directory / "model")


def _rows_of(path: Path | None, tower: "Tower", ratings: pa.Table) -> pa.Table | None:
    """Read the features of those who are in the ratings, if there are any features."""
    column = tower.id_column
    if path is None or tower.encoder is None or column not in ratings.column_names:
        return None
    source = open_source(path, f"{tower.name}s")
    source.require(column)
    if len(source.schema.names) == 1:
        return None  # a list of ids, which says whom to answer for
    wanted = IdMap.from_values(ratings[column], column)
    found = [b.filter(pa.array(wanted.contains(b[column], column))) for b in read_blocks(source)]
    table = pa.concat_tables(found) if found else None
    return table if table is not None and len(table) else None
