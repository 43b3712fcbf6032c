"""The model a batch job works with: one and the same from the first part to the last."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from simrec.data.columns import USUAL, Columns
from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.errors import InputError
from simrec.jobs.io.tables import NameOptions, open_table
from simrec.jobs.options import Path
from simrec.storage import files
from simrec.storage.artifacts import MANIFEST, read_manifest

if TYPE_CHECKING:
    from simrec.model.tower import Tower
    from simrec.model.two_tower import TwoTower

# As in `TwoTower`; here so that the options of a command are known without importing the model.
RankBy = Literal["both", "rating", "uptake"]


@dataclass(frozen=True)
class ModelReference:
    """A model directory as it was when the job began; small, so that it travels to workers."""

    path: str
    model_id: str
    stamps: tuple[tuple[str, tuple[int, ...]], ...]
    columns: Columns = USUAL

    @classmethod
    def of(cls, path: Path) -> "ModelReference":
        """Look at a model directory; raise InputError if it is none."""
        root = FilePath(os.path.abspath(path))
        manifest = read_manifest(root)
        names = (MANIFEST, *manifest["files"])
        stamps = tuple((name, _stamp(root / name)) for name in names)
        columns = Columns.from_dict(manifest["facts"].get("columns", {}))
        return cls(str(root), manifest["model_id"], stamps, columns)

    def check(self) -> None:
        """Raise InputError if a file of the directory was changed or replaced since."""
        for name, stamp in self.stamps:
            file = FilePath(self.path) / name
            if _stamp(file) != stamp:
                raise InputError(
                    f"{file}: the model directory changed while the job ran (it "
                    f"was model {self.model_id}). Parts already done stay valid: put that model "
                    "back to finish them, or start again with --overwrite."
                )

    def load(self) -> "TwoTower":
        """Load the model without its posteriors, once per process."""
        return _load(self.path, self.model_id)


@functools.lru_cache(maxsize=1)
def _load(path: str, model_id: str) -> "TwoTower":
    from simrec.model.files import load
    from simrec.model.two_tower import TwoTower

    found = read_manifest(path)["model_id"]
    if found != model_id:
        raise InputError(
            f"{path}: the model directory changed while the job ran (was {model_id}, is {found}). "
            "Start the job again."
        )
    return load(TwoTower, path, evidence=False)


def _stamp(file: FilePath) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:
        return ()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def open_model(
    model: Path,
    names: NameOptions = NameOptions(),  # noqa: B008 (frozen)
    feedback: Path | None = None,
    items: Path | None = None,
    users: Path | None = None,
) -> "tuple[TwoTower, Columns]":
    """Load a model with a few ratings folded in; return it, and what columns are called."""
    from simrec.model.two_tower import TwoTower

    loaded = TwoTower.load(os.fspath(model))
    own = names.over(loaded.columns_)
    if feedback is not None:
        ratings = open_table(feedback, "feedback", own).read()
        fold_in(loaded, ratings, describe(feedback, "feedback"), items, users, own)
    return loaded, own


@contextmanager
def model_with_feedback(
    model: Path,
    out: Path,
    feedback: Path | None,
    items: Path | None,
    users: Path | None,
    names: NameOptions,
) -> Iterator[ModelReference]:
    """Give the model of a job, with the ratings of `feedback` folded in.

    The folded model lies beside the output while the job runs, where all workers see it. The same
    model and feedback give the same folded model, so that a job that was killed goes on.
    """
    reference = ModelReference.of(model)
    if feedback is None:
        yield reference
        return
    folded, _ = open_model(model, names, feedback, items, users)
    target = FilePath(os.path.realpath(out))
    target.parent.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(target)
    with files.own_directory(target, ".feedback") as directory:
        folded.save(directory / "model")
        yield ModelReference.of(directory / "model")


def fold_in(
    model: "TwoTower",
    ratings: pa.Table,
    label: str,
    items: Path | None,
    users: Path | None,
    own: Columns,
) -> None:
    """Fold ratings in, with the features of those who are in them; `label` is for messages."""
    from simrec.data.ratings import Ratings

    def features(path: Path | None, tower: "Tower") -> pa.Table | None:
        column = tower.id_column
        if path is None or tower.encoder is None or column not in ratings.column_names:
            return None
        source = open_table(path, tower.side, own)
        source.require_columns(column)
        if len(source.schema.names) == 1:
            return None  # a list of ids, which says whom to answer for
        wanted = IdMap.from_values(ratings[column], column)
        found = [
            block.filter(pa.array(wanted.contains(block[column], column)))
            for block in source.all_batches()
        ]
        return pa.concat_tables(found) if sum(map(len, found)) else None

    rating = "rating" if "rating" in model.parts_ else None
    taken = Ratings.from_table(ratings, rating=rating, bounds=model.rating_bounds(), name=label)
    given = model.towers_.items, model.towers_.users
    model.fold_in(taken, items=features(items, given[0]), users=features(users, given[1]))
