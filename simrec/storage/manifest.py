"""``manifest.json`` of a model directory: what the model is, and a checksum of every byte of it."""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from simrec import __version__
from simrec.errors import InputError
from simrec.storage import files
from simrec.storage.arrays import ERRORS, REMEDY, parse_json

FORMAT = "simrec"
# 6: ids are arrays (they were Arrow files), and each array of weights has its own file.
FORMAT_VERSION = 6
MANIFEST = "manifest.json"
# What every manifest of ours has had, by type.
_FIELDS = dict(kind=str, model_id=str, simrec=str, config=dict, facts=dict, files=dict)
_USED = ("numpy", "pandas", "pyarrow", "scipy", "tensorflow", "tensorflow-recommenders", "tf-keras")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# A file of the directory is one of these, and nothing else is ever opened.
FILE = re.compile(rf"({NAME.pattern}(?:\.weights\.[0-9]{{4}})?)(\.npy|\.json)")


def write(root: Path, kind: str, config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
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


def read(root: Path) -> dict[str, Any]:
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
        manifest = parse_json(content)
        version = manifest["format_version"]
    except ERRORS as error:
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
        if FILE.fullmatch(name) is None:
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


def listing(root: Path) -> set[str] | None:
    """Return the files of a directory that `save` wrote, even a damaged or older one."""
    try:
        content = (root / MANIFEST).read_bytes()
    except OSError:
        return None
    try:
        manifest = parse_json(content)
        if all(isinstance(manifest[name], kind) for name, kind in _FIELDS.items()):
            return {MANIFEST, *manifest["files"]}
        return None
    except ERRORS:
        # Damaged: the names of the files tell.
        ours = f'"format": "{FORMAT}"'.encode() in content
        return {f.name for f in root.iterdir() if FILE.fullmatch(f.name)} if ours else None


def _model_id(manifest: Mapping[str, Any]) -> str:
    sums = {name: listed["sha256"] for name, listed in manifest["files"].items()}
    return _digest({"kind": manifest["kind"], "config": manifest["config"], "files": sums})[:16]


def _digest(content: Mapping[str, Any]) -> str:
    signed = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
