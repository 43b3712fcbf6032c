"""The model directory: manifest, arrays, tables, documents, Keras weights; no pickle.

::

    model/
      manifest.json        format, kind, model id, config, facts, checksums of files and itself
      <name>.npy           arrays, memory-mapped when loaded
      <name>.arrow         tables (Arrow IPC), memory-mapped when loaded
      <name>.json          documents, such as fitted encoders
      <name>.weights.npz   weights of a Keras model, in the order of ``get_weights()``

Checksums find damage, not malice: `simrec.untrusted` reads the files as if anybody had made them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from simrec import files, untrusted
from simrec import manifest as manifests
from simrec.errors import InputError
from simrec.manifest import FORMAT_VERSION, MANIFEST

if TYPE_CHECKING:
    from scipy import sparse

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "Artifact",
    "check_replaceable",
    "load",
    "read_manifest",
    "remove",
    "save",
]

T = TypeVar("T")

# Seconds to wait for a directory that another process keeps replacing.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Artifact:
    """A loaded model directory.

    Attributes
    ----------
    path : Path
        Where it was loaded from.
    manifest : dict
        The content of ``manifest.json``.
    arrays, tables, documents, keras_weights : dict
        What was saved, by name. Arrays and tables are read-only views of the files.
    """

    path: Path
    manifest: dict[str, Any]
    arrays: dict[str, np.ndarray]
    tables: dict[str, pa.Table]
    documents: dict[str, Any]
    keras_weights: dict[str, list[np.ndarray]]

    @property
    def model_id(self) -> str:
        """The hash of the model's content: equal models have equal ids."""
        return self.manifest["model_id"]

    @property
    def config(self) -> dict[str, Any]:
        """The arguments the model was made with."""
        return self.manifest["config"]

    @property
    def facts(self) -> dict[str, Any]:
        """What was learned or counted while fitting."""
        return self.manifest["facts"]

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str = "f") -> np.ndarray:
        """Return an array after checking it.

        Parameters
        ----------
        name : str
            Its name.
        shape : tuple
            The shape it must have, None for any length.
        kinds : str
            Kinds of numbers it may hold: ``f``, ``i``, ``u``, ``b``. Floats must be finite.

        Raises
        ------
        InputError
            If it is missing or is anything else.
        """
        if name not in self.arrays:
            raise InputError(f"{self.path}: has no array {name!r}. {manifests.REMEDY}")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(
            n is None or n == m for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in kinds:
            expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise InputError(
                f"{self.path / name}.npy: {array.dtype} of shape {array.shape}, expected kind "
                f"{kinds!r} of shape {expected}. {manifests.REMEDY}"
            )
        if not untrusted.is_finite(array):
            raise InputError(
                f"{self.path / name}.npy: holds NaN or infinite values. {manifests.REMEDY}"
            )
        return array

    def csr_matrix(self, name: str, shape: tuple[int, int]) -> "sparse.csr_matrix":
        """Return the sparse matrix of three arrays after checking every index in it."""
        from scipy import sparse

        data = self.array(f"{name}_data", (None,))
        indices = self.array(f"{name}_indices", data.shape, "i")
        starts = self.array(f"{name}_indptr", (shape[0] + 1,), "i")
        if (
            starts[0] != 0
            or starts[-1] != len(data)
            or (np.diff(starts) < 0).any()
            or (len(data) and (indices.min() < 0 or indices.max() >= shape[1]))
        ):
            raise InputError(
                f"{self.path}: {name!r} is no sparse matrix of shape {shape}: an index is out of "
                f"range. {manifests.REMEDY}"
            )
        return sparse.csr_matrix((data, indices, starts), shape=shape, copy=False)

    @contextmanager
    def fitting_together(self) -> Iterator[None]:
        """Turn what goes wrong when a model is made of its parts into an InputError."""
        try:
            yield
        except InputError as error:
            if str(self.path) in str(error):
                raise
            raise InputError(f"{self.path}: {error}") from error
        except (*untrusted.ERRORS, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError(
                f"{self.path}: its parts do not fit together ({type(error).__name__}: {error}). "
                f"{manifests.REMEDY}"
            ) from error


def save(
    path: str | os.PathLike,
    kind: str,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    tables: Mapping[str, pa.Table],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write a model directory, replacing an earlier one only when the new one is complete.

    Parameters
    ----------
    path : path
        The directory to make. An existing model directory is replaced in one step; any other
        directory that is not empty is refused.
    kind : str
        What the model is, such as ``"two_tower"``.
    config : mapping
        Constructor arguments, as plain JSON data.
    arrays : mapping of str to ndarray
        Arrays of numbers, each its own ``.npy`` file.
    tables : mapping of str to pyarrow.Table
        Tables, such as the ids.
    documents : mapping of str to JSON data
        Plain data, such as fitted encoders.
    keras_weights : mapping of str to list of ndarray, optional
        Keras weights, as ``get_weights()`` gives them.
    facts : mapping, optional
        Counts, seed, schema, chosen settings; not part of the model id.

    Returns
    -------
    str
        The model id.
    """
    weights = keras_weights or {}
    _check_names([*arrays, *tables, *documents, *weights])
    with files.directory_aside(path, check_replaceable) as aside:
        for name, array in arrays.items():
            _check_numeric(name, array)
            files.save_npy(aside / f"{name}.npy", array)
        for name, table in tables.items():
            with pa.ipc.new_file(str(aside / f"{name}.arrow"), table.schema) as writer:
                writer.write_table(table)
        for name, document in documents.items():
            (aside / f"{name}.json").write_text(files.plain_json(name, document), encoding="utf-8")
        for name, values in weights.items():
            for value in values:
                _check_numeric(name, value)
            # Named by position: the order of get_weights() is what counts.
            named = {f"w{i:04d}": np.asarray(value) for i, value in enumerate(values)}
            files.save_npz(aside / f"{name}.weights.npz", named)
        return manifests.write(aside, kind, config, facts or {})


def load(
    path: str | os.PathLike, kind: str | None = None, mmap: bool = True, skip: str | None = None
) -> Artifact:
    """Load a model directory after checking it.

    A directory that another process replaces meanwhile is loaded as it was before or after.

    Parameters
    ----------
    path : path
        The directory.
    kind : str, optional
        Refuse a model of another kind.
    mmap : bool
        Map arrays and tables into memory instead of reading them.
    skip : str, optional
        Leave files with this in their names alone: neither checked nor loaded.

    Returns
    -------
    Artifact
    """
    return _stable(Path(path), lambda root: _load(root, kind, mmap, skip))


def _load(root: Path, kind: str | None, mmap: bool, skip: str | None) -> Artifact:
    manifest = manifests.read(root)
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
    loaded = Artifact(root, manifest, {}, {}, {}, {})
    for file_name, expected in manifest["files"].items():
        if skip is not None and skip in file_name:
            continue
        match = manifests.FILE.fullmatch(file_name)
        if match is None:
            raise InputError(f"{root / MANIFEST}: lists {file_name!r}, no file of a model")
        file = root / file_name
        _check_file(file, expected)
        name, suffix = match.groups()
        if suffix == ".npy":
            loaded.arrays[name] = untrusted.read_npy(file, mmap)
        elif suffix == ".arrow":
            loaded.tables[name] = untrusted.read_arrow(file, mmap)
        elif suffix == ".json":
            loaded.documents[name] = untrusted.read_json(file)
        else:
            loaded.keras_weights[name] = untrusted.read_npz(file)
    return loaded


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a model directory."""
    return _stable(Path(path), manifests.read)


def _stable(root: Path, read: Callable[[Path], T]) -> T:
    """Read a directory that may be replaced meanwhile: again, until it stayed the same."""
    started = time.monotonic()
    while True:
        before = _stamp(root)
        try:
            result, failure = read(root), None
        except (InputError, OSError) as error:
            result, failure = None, error
        # Where directories cannot be exchanged there is none for an instant.
        replaced = _stamp(root) != before or (before is None and files.is_being_replaced(root))
        if failure is None and not replaced:
            return result  # type: ignore[return-value]
        if not replaced or time.monotonic() - started > _PATIENCE:
            raise failure or InputError(f"{root}: is replaced all the time. Try again.")
        time.sleep(0.001)


def _stamp(root: Path) -> tuple[int, ...] | None:
    try:
        stat = (root / MANIFEST).stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise InputError if a model cannot be saved at `path` without destroying something else."""
    files.check_replaceable(path, "a model", manifests.listing)


def remove(path: str | os.PathLike, kind: str) -> None:
    """Delete a directory of a kind that `save` wrote, if it holds nothing else."""
    root = Path(path)
    try:
        found = manifests.listing(root) is not None and manifests.read(root)["kind"] == kind
        check_replaceable(root)
    except InputError:
        return
    if found:
        shutil.rmtree(root)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not manifests.NAME.fullmatch(name) or name == "manifest":
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )


def _check_numeric(name: str, array: np.ndarray) -> None:
    dtype = np.asarray(array).dtype
    if dtype.str not in untrusted.DTYPES:
        raise TypeError(f"array {name!r} has dtype {dtype}: only numbers are saved")


def _check_file(file: Path, expected: Mapping[str, Any]) -> None:
    if not file.is_file():
        raise InputError(f"{file}: listed in {MANIFEST} but missing. {manifests.REMEDY}")
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise InputError(
            f"{file}: {size} bytes, {MANIFEST} says {expected['bytes']}. {manifests.REMEDY}"
        )
    if files.sha256(file) != expected["sha256"]:
        raise InputError(
            f"{file}: its content does not match the checksum in {MANIFEST}. {manifests.REMEDY}"
        )
