"""The model directory: a manifest, arrays and documents; no pickle.

::

    model/
      manifest.json             format, kind, model id, config, facts, checksums of files and itself
      <name>.npy                arrays, memory-mapped when loaded
      <name>.json               documents, such as fitted encoders
      <name>.weights.0000.npy   weights of a Keras model, in the order of ``get_weights()``
"""

import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from simrec import __version__
from simrec.errors import InputError
from simrec.storage import arrays as npy
from simrec.storage import files
from simrec.storage.arrays import REMEDY

if TYPE_CHECKING:
    from scipy import sparse

T = TypeVar("T")

FORMAT = "simrec"
# 7: uptake keeps who was fitted (it had factors), and users are in no shards.
FORMAT_VERSION = 10
MANIFEST = "manifest.json"
# What every manifest of ours has had, by type.
_FIELDS = dict(kind=str, model_id=str, simrec=str, config=dict, facts=dict, files=dict)
_USED = ("numpy", "pandas", "pyarrow", "scipy", "tensorflow", "tensorflow-recommenders", "tf-keras")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# A file of the directory is one of these, and nothing else is ever opened.
_FILE = re.compile(rf"({_NAME.pattern}(?:\.weights\.[0-9]{{4}})?)(\.npy|\.json)")
# Seconds to wait for a directory that another process keeps replacing.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Artifact:
    """A loaded model directory: what was saved, by name."""

    path: Path
    manifest: dict[str, Any]
    arrays: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    keras_weights: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))

    @property
    def model_id(self) -> str:
        """The hash of the model's content: equal models have equal ids."""
        return self.manifest["model_id"]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments the model was made with, with tuples for lists."""
        given = self.manifest["config"].items()
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given}

    @property
    def facts(self) -> dict[str, Any]:
        """What was learned or counted while fitting."""
        return self.manifest["facts"]

    def array(self, name: str, shape: tuple[int | None, ...], kinds: str = "f") -> Any:
        """Return an array of a shape, None for any length, and of kinds of numbers; finite."""
        if name not in self.arrays:
            raise InputError(f"{self.path}: has no array {name!r}. {REMEDY}")
        array = self.arrays[name]
        fits = array.ndim == len(shape) and all(
            n is None or n == m for n, m in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in kinds:
            raise InputError(
                f"{self.path / name}.npy: {array.dtype} of shape {array.shape}, expected kind "
                f"{kinds!r} of shape {shape} (None: any length). {REMEDY}"
            )
        if not npy.is_finite(array):
            raise InputError(f"{self.path / name}.npy: holds NaN or infinite values. {REMEDY}")
        return array

    def csr_matrix(
        self, name: str, shape: tuple[int, int], kinds: str = "f"
    ) -> "sparse.csr_matrix":
        """Return a sparse matrix after checking each index."""
        pieces = {"data": kinds, "indices": "i", "indptr": "i"}
        arrays = [self.array(f"{name}_{piece}", (None,), kind) for piece, kind in pieces.items()]
        return npy.checked_csr(f"{self.path}: {name!r}", arrays, shape)

    def ids(self, name: str) -> pa.Array:
        """Return the ids of which `id_arrays` made arrays."""
        if name in self.arrays:
            numbers = self.array(name, (None,), "iu")
            kind, buffer = pa.from_numpy_dtype(numbers.dtype), pa.py_buffer(numbers)
            # `pa.array` would import pandas, a third of a second in a small job.
            return pa.Array.from_buffers(kind, len(numbers), [None, buffer])
        offsets, text = self.array(f"{name}_offsets", (None,), "i"), f"{name}_text"
        file = self.path / f"{name}_offsets.npy"
        return npy.checked_strings(file, offsets, self.array(text, (None,), "u"))

    @contextmanager
    def fitting_together(self) -> Iterator[None]:
        """Turn what goes wrong when a model is made of its parts into an InputError."""
        try:
            yield
        except InputError as error:
            if str(self.path) in str(error):
                raise
            raise InputError(f"{self.path}: {error}") from error
        except (*npy.ERRORS, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError(
                f"{self.path}: its parts do not fit together ({type(error).__name__}: {error}). "
                f"{REMEDY}"
            ) from error


def save(
    path: str | os.PathLike,
    kind: str,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Write a model directory in one step, in place of an earlier one; return the model id.

    Facts are not part of the id. A directory of other files is refused.
    """
    with files.directory_aside(path, check_replaceable) as directory:
        write(directory, arrays, documents, keras_weights)
        return write_manifest(directory, kind, config, facts or {})


def write(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    documents: Mapping[str, Any],
    keras_weights: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> None:
    """Write the files of a model directory but for its manifest; see `save`."""
    weights = keras_weights or {}
    for name in (*arrays, *documents, *weights):
        if not _NAME.fullmatch(name) or name == "manifest":
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )
    for name, array in arrays.items():
        npy.write_npy(directory / f"{name}.npy", array)
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(files.plain_json(name, document), encoding="utf-8")
    for name, values in weights.items():
        for number, value in enumerate(values):
            npy.write_npy(directory / f"{name}.weights.{number:04d}.npy", value)


def load(path: str | os.PathLike, kind: str | None = None, skip: str | None = None) -> Artifact:
    """Load a model directory after checking it.

    A directory that another process replaces meanwhile is loaded as it was before or after. A model
    of another kind is refused, and files with `skip` in their names are neither checked nor loaded.
    """

    def read(root: Path) -> Artifact:
        manifest = _read_manifest(root)
        if kind is not None and manifest["kind"] != kind:
            raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
        loaded = Artifact(root, manifest)
        for name, entry in sorted(manifest["files"].items()):
            if skip is not None and skip in name:
                continue
            file = root / name
            content = npy.map_bytes(file, entry)
            stem, _, suffix = name.rpartition(".")
            network, _, number = stem.partition(".weights.")
            if suffix == "json":
                with npy.reading(file):
                    loaded.documents[stem] = npy.parse_json(content)
            elif number:
                loaded.keras_weights[network].append(npy.npy_view(file, content))
            else:
                loaded.arrays[stem] = npy.npy_view(file, content)
        return loaded

    return _stable(Path(path), read)


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a model directory."""
    return _stable(Path(path), _read_manifest)


def _stable(root: Path, read: Callable[[Path], T]) -> T:
    """Read a directory that may be replaced meanwhile: again, until it stayed the same."""
    started, file = time.monotonic(), root / MANIFEST
    while True:
        before = files.stamp(file)
        try:
            result, failure = read(root), None
        except (InputError, OSError) as error:
            result, failure = None, error
        # Where directories cannot be exchanged there is none for an instant.
        replaced = files.stamp(file) != before or (before is None and files.is_being_replaced(root))
        if failure is None and not replaced:
            return result  # type: ignore[return-value]
        if not replaced or time.monotonic() - started > _PATIENCE:
            raise failure or InputError(f"{root}: is replaced all the time. Try again.")
        time.sleep(0.001)


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise InputError if a model cannot be saved at `path` without destroying something else."""
    files.check_replaceable(path, "a model", _listing)


def remove(path: str | os.PathLike, kind: str) -> None:
    """Delete a directory of a kind that `save` wrote, if it holds nothing else."""
    root = Path(path)
    with suppress(InputError):
        check_replaceable(root)
        if _listing(root) is not None and _read_manifest(root)["kind"] == kind:
            shutil.rmtree(root)


def write_manifest(
    root: Path, kind: str, config: Mapping[str, Any], facts: Mapping[str, Any]
) -> str:
    """Write ``manifest.json`` for the files of a directory; return the model id."""
    found = [file for file in sorted(root.iterdir()) if file.name != MANIFEST]
    listed = {file.name: files.checksum(file) for file in found}
    versions = {"python": platform.python_version()}
    for package in _USED:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "simrec": __version__,
        "packages": versions,
        "config": json.loads(files.plain_json("config", config)),
        "facts": json.loads(files.plain_json("facts", facts)),
        "files": listed,
    }
    manifest["model_id"] = _model_id(manifest)
    manifest["sha256"] = _digest(manifest)
    (root / MANIFEST).write_text(files.to_json(manifest), encoding="utf-8")
    return manifest["model_id"]


def _read_manifest(root: Path) -> dict[str, Any]:
    """Read and check the manifest of a directory."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(
            f"{root}: {what}; expected a model directory, as `simrec train` or "
            "`model.save()` makes it"
        )
    file = root / MANIFEST
    if not file.is_file():
        raise InputError(f"{root}: no {MANIFEST} in it, so this is no model directory")
    try:
        content = file.read_bytes()
        manifest = npy.parse_json(content)
        version = manifest["format_version"]
    except npy.ERRORS as error:
        raise InputError(
            f"{file}: not a readable manifest ({error}). Save the model again."
        ) from None
    if version != FORMAT_VERSION:
        raise InputError(
            f"{file}: format version {version!r}; SimRec {__version__} reads version "
            f"{FORMAT_VERSION}. Train the model again, or use the SimRec that wrote it "
            f"({manifest.get('simrec', 'unknown')})."
        )
    missing = {*_FIELDS, "format", "sha256"} - set(manifest)
    if missing:
        raise InputError(f"{file}: lacks {sorted(missing)}. Save the model again.")
    # The text itself is compared too: then no byte is without meaning.
    if manifest["sha256"] != _digest(manifest) or content.decode() != files.to_json(manifest):
        raise InputError(
            f"{file}: the manifest was changed: its content does not match its checksum. {REMEDY}"
        )
    # Anybody can make checksums: types and the model id are checked as well.
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(manifest[name], kind)]
    for name, listed in manifest["files"].items() if "files" not in wrong else ():
        if _FILE.fullmatch(name) is None:
            raise InputError(f"{file}: lists {name!r}, no file of a model. {REMEDY}")
        given = listed if isinstance(listed, dict) else {}
        if not (isinstance(given.get("sha256"), str) and type(given.get("bytes")) is int):
            wrong.append(f"files.{name}")
    if manifest["format"] != FORMAT:
        wrong.append("format")
    if not wrong and manifest["model_id"] != _model_id(manifest):
        wrong.append("model_id")
    if wrong:
        raise InputError(f"{file}: {', '.join(wrong)}: not as SimRec writes it. {REMEDY}")
    return manifest


def _listing(root: Path) -> set[str] | None:
    """Return the files of a directory that `save` wrote, even a damaged or older one."""
    try:
        content = (root / MANIFEST).read_bytes()
    except OSError:
        return None
    try:
        manifest = npy.parse_json(content)
        if all(isinstance(manifest[name], kind) for name, kind in _FIELDS.items()):
            return {MANIFEST, *manifest["files"]}
        return None
    except npy.ERRORS:
        # Damaged: the names of the files tell.
        ours = f'"format": "{FORMAT}"'.encode() in content
        return {f.name for f in root.iterdir() if _FILE.fullmatch(f.name)} if ours else None


def _model_id(manifest: Mapping[str, Any]) -> str:
    sums = {name: listed["sha256"] for name, listed in manifest["files"].items()}
    return _digest({"kind": manifest["kind"], "config": manifest["config"], "files": sums})[:16]


def _digest(content: Mapping[str, Any]) -> str:
    signed = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
