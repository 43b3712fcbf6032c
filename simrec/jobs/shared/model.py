"""The model a batch job works with: one and the same from the first part to the last."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from simrec import files
from simrec.artifacts import MANIFEST, read_manifest
from simrec.data.ids import IdMap
from simrec.errors import InputError
from simrec.jobs.io.discover import open_source
from simrec.jobs.shared.entities import check_columns

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
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

    @classmethod
    def of(cls, path: str | os.PathLike) -> "ModelReference":
        """Look at a model directory; raise InputError if it is none."""
        root = Path(os.path.abspath(path))
        manifest = read_manifest(root)
        names = (MANIFEST, *manifest["files"])
        stamps = tuple((name, _stamp(root / name)) for name in names)
        return cls(str(root), manifest["model_id"], stamps)

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
) -> Iterator[ModelReference]:
    """Give the model of a job, with the ratings of `feedback` folded in.

    The folded model lies beside the output while the job runs, where all workers see it. The same
    model and feedback give the same folded model, so that a job that was killed goes on.
    """
    reference = ModelReference.of(model)
    if feedback is None:
        yield reference
        return
    from simrec.model.two_tower import TwoTower

    ratings = open_source(feedback, "feedback").read()
    folded = TwoTower.load(os.fspath(model))
    folded.fold_in(
        _feedback(feedback, ratings, folded),
        items=_features_of(items, folded.towers_.items, ratings),
        users=_features_of(users, folded.towers_.users, ratings),
    )
    target = Path(os.path.realpath(out))
    target.parent.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(target)
    with files.own_directory(target, ".feedback") as directory:
        folded.save(directory / "model")
        yield ModelReference.of(directory / "model")


def _feedback(path: str | os.PathLike, ratings: pa.Table, model: "TwoTower") -> "Ratings":
    """Take the ratings of `feedback`; errors name a file that was given by its name."""
    from simrec.data.ratings import Ratings

    return Ratings.from_table(
        path if os.path.isfile(path) else ratings,
        rating="rating" if "rating" in model.parts_ else None,
        bounds=model.rating_bounds(),
        name="feedback",
    )


def _features_of(
    path: str | os.PathLike | None, tower: "Tower", ratings: pa.Table
) -> pa.Table | None:
    """Read the features of those who are in the ratings, if there are any features."""
    column = tower.id_column
    if path is None or tower.encoder is None or column not in ratings.column_names:
        return None
    source = open_source(path, tower.side)
    check_columns(source, column)
    if len(source.schema.names) == 1:
        return None  # a list of ids, which says whom to answer for
    wanted = IdMap.from_values(ratings[column], column)
    blocks = (block for unit in source.units(1 << 62) for block in source.batches(unit))
    found = [block.filter(pa.array(wanted.contains(block[column], column))) for block in blocks]
    table = pa.concat_tables(found) if found else None
    return table if table is not None and len(table) else None
