"""What a job is given: tables by their paths, and the model, the same from first part to last."""

import functools
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from simrec.data.sides import ID_COLUMNS, USUAL, Columns, Side
from simrec.data.source import Source, open_source
from simrec.errors import InputError
from simrec.jobs.options import Path
from simrec.storage import files
from simrec.storage.artifacts import MANIFEST, read_manifest

if TYPE_CHECKING:
    from simrec.data.ratings import Ratings
    from simrec.data.tables import TableLike
    from simrec.model.two_tower import TwoTower

# As in `TwoTower`; here so that the options of a command are known without importing the model.
RankBy = Literal["both", "rating", "uptake"]


@dataclass(frozen=True)
class DataOptions:
    """The tables a model learns from.

    Parameters
    ----------
    ratings : path
        Table of user_id, item_id, rating: a Parquet or CSV file, a directory or a URI.
    items : path, optional
        Features of the items, by item_id.
    users : path, optional
        Features of the users, by user_id.
    user_id : str
        Name of the users' column in the ratings and in the features of users.
    item_id : str
        Name of the items' column in the ratings and in the features of items.
    rating : str, optional
        Name of the ratings' column; none for interactions without ratings.
    timestamp : str, optional
        Name of the column that says which of two ratings of a pair is the later one.
    """

    ratings: Path
    items: Path | None = None
    users: Path | None = None
    user_id: str = "user_id"
    item_id: str = "item_id"
    rating: str | None = "rating"
    timestamp: str | None = "timestamp"

    @property
    def paths(self) -> dict[str, Path | None]:
        """The tables by their options."""
        return {"ratings": self.ratings, "items": self.items, "users": self.users}

    def absolute(self) -> "DataOptions":
        """Return the same with paths that do not depend on the working directory."""
        return replace(self, **{name: absolute(path) for name, path in self.paths.items()})

    def load_ratings(
        self, bounds: tuple[float, float] | None, columns: Columns = USUAL
    ) -> "Ratings":
        """Read the ratings; columns that are not given are called as in the training of a model."""
        if columns == USUAL:
            return self.as_ratings(os.fspath(self.ratings), bounds)
        from simrec.data.tables import read_table

        own, ids = self._names(columns), ["user_id", "item_id"]
        table = read_table(
            self.ratings,
            ids if own.rating is None else [*ids, "rating"],
            optional=("timestamp",),
            rename=own.renaming(),
            name="ratings",
        )
        usual: Any = {name: given and name for name, given in asdict(own).items()}
        found = replace(self, **usual).as_ratings(table, bounds)
        return replace(found, columns=own)

    def as_ratings(self, table: "TableLike", bounds: tuple[float, float] | None) -> "Ratings":
        """Take ratings from the table, or from a part of it."""
        from simrec.data.ratings import Ratings

        name = None if isinstance(table, str) else f"ratings {os.fspath(self.ratings)}"
        columns = {name: getattr(self, name) for name in asdict(USUAL)}
        return Ratings.from_table(table, **columns, bounds=bounds, name=name)

    def features(self, columns: Columns = USUAL) -> dict[str, Any]:
        """Return the features of both sides as something `fit` takes."""
        from simrec.data.tables import read_table

        def table(path: Path | None, side: Side) -> "TableLike | None":
            given = self._names(columns).of(side)
            if path is None or columns == USUAL or given == columns.of(side):
                return path  # the ratings or the model know what its ids are called
            return read_table(path, name=side, rename={given: ID_COLUMNS[side]})

        return {"items": table(self.items, "items"), "users": table(self.users, "users")}

    def _names(self, columns: Columns) -> Columns:
        given = {name: getattr(self, name) for name in asdict(columns)}
        return replace(columns, **{n: own for n, own in given.items() if own != getattr(USUAL, n)})


def open_table(path: Path, name: str, own: Columns) -> Source:
    """Open a table; its columns are called as SimRec calls them."""
    return open_source(path, name).renamed(own.renaming())


def absolute(path: Path | None) -> Any:
    """Make a local path absolute, if there is one."""
    local = path is not None and "://" not in os.fspath(path)
    return os.path.abspath(path) if local else path  # type: ignore[arg-type]


def unless_empty(path: Path | None) -> Path | None:
    """Return a path, but None for a directory in which there is nothing yet."""
    if path is None or not os.path.isdir(path) or os.listdir(path):
        return path
    return None


@dataclass(frozen=True)
class ModelReference:
    """A model directory as it was when the job began; small, so that it travels to workers."""

    path: str
    model_id: str
    stamps: tuple[tuple[str, tuple[int, ...] | None], ...]
    columns: Columns = USUAL

    @classmethod
    def of(cls, path: Path) -> "ModelReference":
        """Look at a model directory; raise InputError if it is none."""
        root = FilePath(os.path.abspath(path))
        manifest = read_manifest(root)
        names = (MANIFEST, *manifest["files"])
        stamps = tuple((name, files.stamp(root / name)) for name in names)
        columns = Columns.from_dict(manifest["facts"].get("columns", {}))
        return cls(str(root), manifest["model_id"], stamps, columns)

    def check(self) -> None:
        """Raise InputError if a file of the directory was changed or replaced since."""
        for name, stamp in self.stamps:
            file = FilePath(self.path) / name
            if files.stamp(file) != stamp:
                raise InputError(
                    f"{file}: the model directory changed while the job ran (it "
                    f"was model {self.model_id}). Parts already done stay valid: put that model "
                    "back to finish them, or start again with --overwrite."
                )

    @functools.lru_cache(maxsize=1)  # noqa: B019 (one model is kept, as it should be)
    def load(self) -> "TwoTower":
        """Load the model without its posteriors, once per process."""
        from simrec.model.files import load
        from simrec.model.two_tower import TwoTower

        found = read_manifest(self.path)["model_id"]
        if found != self.model_id:
            raise InputError(
                f"{self.path}: the model directory changed while the job ran (was {self.model_id}, "
                f"is {found}). Start the job again."
            )
        return load(TwoTower, self.path, evidence=False)
