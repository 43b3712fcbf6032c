"""The model directory: manifest, arrays, tables, documents, Keras weights; no pickle.

::

    model/
      manifest.json        format version, kind, model id, config, facts, checksum of every file
      <name>.npy           arrays, memory-mapped when loaded
      <name>.arrow         tables (Arrow IPC), memory-mapped when loaded
      <name>.json          documents, such as fitted encoders
      <name>.weights.npz   weights of a Keras model, in the order of ``get_weights()``
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simrec import __version__, files
from simrec.errors import InputError

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
_PACKAGES = (
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "tensorflow",
    "tensorflow-recommenders",
    "tf-keras",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# A file of the directory is one of these, and nothing else is ever opened.
_FILE = re.compile(rf"({_NAME.pattern})(\.npy|\.arrow|\.json|\.weights\.npz)")


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
    target = Path(path)
    check_replaceable(target)
    weights = keras_weights or {}
    _check_names([*arrays, *tables, *documents, *weights])
    with files.directory_aside(target) as aside:
        for name, array in arrays.items():
            _check_numeric(name, array)
            np.save(aside / f"{name}.npy", np.asarray(array, order="C"), allow_pickle=False)
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
        listing = {
            file.name: {"sha256": files.sha256(file), "bytes": file.stat().st_size}
            for file in sorted(aside.iterdir())
        }
        plain = json.loads(files.plain_json("config", config))
        model_id = _model_id(kind, plain, listing)
        manifest = {
            "format_version": FORMAT_VERSION,
            "kind": kind,
            "model_id": model_id,
            "simrec": __version__,
            "packages": _package_versions(),
            "config": plain,
            "facts": json.loads(files.plain_json("facts", facts or {})),
            "files": listing,
        }
        (aside / MANIFEST).write_text(files.to_json(manifest), encoding="utf-8")
    return model_id


def load(
    path: str | os.PathLike,
    kind: str | None = None,
    mmap: bool = True,
    verify: bool = True,
    skip: str | None = None,
) -> Artifact:
    """Load a model directory after checking it.

    Parameters
    ----------
    path : path
        The directory.
    kind : str, optional
        Refuse a model of another kind.
    mmap : bool
        Map arrays and tables into memory instead of reading them.
    verify : bool
        Check the checksum of every file. Only for directories that were checked a moment ago, such
        as by the process that started this one, is there reason not to.
    skip : str, optional
        Leave files with this in their names alone: neither checked nor loaded.

    Returns
    -------
    Artifact
    """
    root = Path(path)
    manifest = read_manifest(root)
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{root}: a {manifest['kind']!r} model, expected {kind!r}")
    arrays: dict[str, np.ndarray] = {}
    tables: dict[str, pa.Table] = {}
    documents: dict[str, Any] = {}
    weights: dict[str, list[np.ndarray]] = {}
    for file_name, expected in manifest["files"].items():
        file = root / file_name
        if skip is not None and skip in file_name:
            continue
        _check_file(file, expected, verify)
        match = _FILE.fullmatch(file_name)
        if match is None:
            raise InputError(f"{root / MANIFEST}: lists {file_name!r}, no file of a model")
        name, suffix = match.groups()
        if suffix == ".npy":
            arrays[name] = np.load(file, mmap_mode="r" if mmap else None, allow_pickle=False)
        elif suffix == ".arrow":
            source = pa.memory_map(str(file)) if mmap else pa.BufferReader(file.read_bytes())
            tables[name] = pa.ipc.open_file(source).read_all()
        elif suffix == ".json":
            documents[name] = json.loads(file.read_text(encoding="utf-8"))
        else:
            with np.load(file, allow_pickle=False) as npz:
                weights[name] = [npz[key] for key in sorted(npz.files)]
    return Artifact(root, manifest, arrays, tables, documents, weights)


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a model directory."""
    root = Path(path)
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
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: not a readable manifest ({error}). Save the model again."
        ) from None
    if version != FORMAT_VERSION:
        raise InputError(
            f"{file}: format version {version!r}; SimRec {__version__} reads version "
            f"{FORMAT_VERSION}. Use the SimRec that wrote the model "
            f"({manifest.get('simrec', 'unknown')}), or train it again."
        )
    missing = {"kind", "model_id", "config", "facts", "files"} - set(manifest)
    if missing:
        raise InputError(f"{file}: lacks {sorted(missing)}. Save the model again.")
    expected = _model_id(manifest["kind"], manifest["config"], manifest["files"])
    if manifest["model_id"] != expected:
        raise InputError(
            f"{file}: the manifest was changed (model id {manifest['model_id']}, its content gives "
            f"{expected}). Restore it or save the model again."
        )
    return manifest


def _model_id(kind: str, config: Any, listing: Mapping[str, Mapping[str, Any]]) -> str:
    content = {
        "kind": kind,
        "config": config,
        "files": {n: e["sha256"] for n, e in listing.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise InputError if a model cannot be saved at `path` without destroying something else."""
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path}: is a file; a model is saved as a directory. Give another path.")
    if path.is_dir() and not (path / MANIFEST).is_file() and any(path.iterdir()):
        raise InputError(
            f"{path}: a directory that holds other files and no model. Give a new path."
        )


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name) or name == "manifest":
            raise ValueError(
                f"{name!r} cannot name a part of a model: use letters, digits, _ and -"
            )


def _check_numeric(name: str, array: np.ndarray) -> None:
    if np.asarray(array).dtype.kind not in "biufc":
        raise TypeError(
            f"array {name!r} has dtype {np.asarray(array).dtype}: only numbers are saved"
        )


def _check_file(file: Path, expected: Mapping[str, Any], verify: bool) -> None:
    remedy = "Restore the file from a copy, or train the model again."
    if not file.is_file():
        raise InputError(f"{file}: listed in {MANIFEST} but missing. {remedy}")
    size = file.stat().st_size
    if size != expected["bytes"]:
        raise InputError(f"{file}: {size} bytes, {MANIFEST} says {expected['bytes']}. {remedy}")
    if verify and files.sha256(file) != expected["sha256"]:
        raise InputError(f"{file}: its content does not match the checksum in {MANIFEST}. {remedy}")


def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
