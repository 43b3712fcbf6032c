"""The model a batch job works with: one and the same from the first part to the last."""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from simrec.data.columns import USUAL, Columns
from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.data.source import open_source
from simrec.errors import InputError
from simrec.jobs.io.entities import check_columns
from simrec.jobs.io.tables import NameOptions
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
    def of(cls, path: str | os.PathLike) -> "ModelReference":
        """Look at a model directory; raise InputError if it is none."""
        root = Path(os.path.abspath(path))
        manifest = read_manifest(root)
        names = (MANIFEST, *manifest["files"])
        stamps = tuple((name, _stamp(root / name)) for name in names)
        columns = Columns.from_dict(manifest["facts"].get("columns", {}))
        return cls(str(root), manifest["model_id"], stamps, columns)

    def check(self) -> None:
        """Raise InputError if a file of the directory was changed or replaced since."""
        for name, stamp in self.stamps:
            if _stamp(Path(self.path) / name) != stamp:
                raise InputError(
                    f"{Path(self.path) / name}: the model directory changed while the job ran (it "
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


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:
        return ()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


@contextmanager
def model_with_feedback(
    model: str | os.PathLike,
    out: str | os.PathLike,
    *,
    feedback: str | os.PathLike | None,
    items: str | os.PathLike | None,
    users: str | os.PathLike | None,
    names: NameOptions,
) -> Iterator[ModelReference]:
    """Give the model of a job, with the ratings of `feedback` folded in.

    The folded model lies beside the output while the job runs, where all workers see it. The same
    model and feedback give the same folded model, so that a job that was killed goes on.
    """
    reference = ModelReference.of(model)
    reference = replace(reference, columns=names.over(reference.columns))
    if feedback is None:
        yield reference
        return
    from simrec.model.two_tower import TwoTower

    folded = TwoTower.load(os.fspath(model))
    own = reference.columns.renaming()
    ratings = open_source(feedback, "feedback").renamed(own).read()
    fold_in(folded, ratings, describe(feedback, "feedback"), items, users, own)
    target = Path(os.path.realpath(out))
    target.parent.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(target)
    with files.own_directory(target, ".feedback") as directory:
        folded.save(directory / "model")
        yield replace(ModelReference.of(directory / "model"), columns=reference.columns)


def fold_in(
    model: "TwoTower",
    ratings: pa.Table,
    label: str,
    items: str | os.PathLike | None,
    users: str | os.PathLike | None,
    own: Mapping[str, str],
) -> None:
    """Fold ratings in, with the features of those who are in them; `label` is for messages."""
    from simrec.data.ratings import Ratings

    taken = Ratings.from_table(
        ratings,
        rating="rating" if "rating" in model.parts_ else None,
        bounds=model.rating_bounds(),
        name=label,
    )
    model.fold_in(
        taken,
        items=_features_of(items, model.towers_.items, ratings, own),
        users=_features_of(users, model.towers_.users, ratings, own),
    )


def _features_of(
    path: str | os.PathLike | None, tower: "Tower", ratings: pa.Table, own: Mapping[str, str]
) -> pa.Table | None:
    """Read the features of those who are in the ratings, if there are any features."""
    column = tower.id_column
    if path is None or tower.encoder is None or column not in ratings.column_names:
        return None
    source = open_source(path, tower.side).renamed(own)
    check_columns(source, column)
    if len(source.schema.names) == 1:
        return None  # a list of ids, which says whom to answer for
    wanted = IdMap.from_values(ratings[column], column)
    blocks = (block for unit in source.units(1 << 62) for block in source.batches(unit))
    found = [block.filter(pa.array(wanted.contains(block[column], column))) for block in blocks]
    table = pa.concat_tables(found) if found else None
    return table if table is not None and len(table) else None
