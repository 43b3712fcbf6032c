"""The model a job works with: one and the same from the first part to the last."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simrec.artifacts import MANIFEST, read_manifest
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


@dataclass(frozen=True)
class ModelReference:
    """A model directory as it was when the job began; small, so that it travels to workers."""

    path: str
    model_id: str
    stamps: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, path: str | os.PathLike) -> "ModelReference":
        """Look at a model directory; raises InputError if it is none."""
        root = Path(os.path.abspath(path))
        manifest = read_manifest(root)
        names = (MANIFEST, *manifest["files"])
        return cls(
            str(root), manifest["model_id"], tuple((name, _stamp(root / name)) for name in names)
        )

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
        """Load the model, once per process."""
        return _load(self.path, self.model_id)


@functools.lru_cache(maxsize=1)
def _load(path: str, model_id: str) -> "TwoTower":
    from simrec.model import files as two_tower_files
    from simrec.model.two_tower import TwoTower

    found = read_manifest(path)["model_id"]
    if found != model_id:
        raise InputError(
            f"{path}: the model directory changed while the job ran (was {model_id}, is {found}). "
            "Start the job again."
        )
    return two_tower_files.load(TwoTower, path, evidence=False)


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:
        return ()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)
