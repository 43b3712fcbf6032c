"""``manifest.json`` of a model directory: what the model is, and a checksum of every byte of it."""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from simrec import __version__, files, untrusted
from simrec.errors import InputError

FORMAT = "simrec"
FORMAT_VERSION = 5
MANIFEST = "manifest.json"
# What every manifest of ours has had, by type.
_FIELDS = {
    "kind": str,
    "model_id": str,
    "simrec": str,
    "config": dict,
    "facts": dict,
    "files": dict,
}
_PACKAGES = (
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "tensorflow",
    "tensorflow-recommenders",
    "tf-keras",
)
REMEDY = "Restore the file from a copy, or train the model again."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# A file of the directory is one of these, and nothing else is ever opened.
FILE = re.compile(rf"({NAME.pattern})(\.npy|\.arrow|\.json|\.weights\.npz)")
# The name of a part of which a file holds some rows: which of how many.
SHARD = re.compile(rf"({NAME.pattern})-([0-9]{{5}})-of-([0-9]{{5}})")


def shard_name(name: str, number: int, of: int) -> str:
    """Name a shard."""
    return f"{name}-{number:05d}-of-{of:05d}"


def entry(file: Path) -> dict[str, Any]:
    """Return what a manifest says of a file."""
    return {"sha256": files.sha256(file), "bytes": file.stat().st_size}


def write(
    root: Path,
    kind: str,
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Write ``manifest.json`` for the files of a directory; return the model id.

    `known` has the entries of files whose checksums need not be computed again.
    """
    known = known or {}
    missing = [name for name in known if not (root / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{root}: {missing[0]} and {len(missing) - 1} more are not there")
    listing = {
        file.name: dict(known[file.name]) if file.name in known else entry(file)
        for file in sorted(root.iterdir())
        if file.name != MANIFEST
    }
    plain = json.loads(files.plain_json("config", config))
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "model_id": _model_id(kind, plain, listing),
        "simrec": __version__,
        "packages": _package_versions(),
        "config": plain,
        "facts": json.loads(files.plain_json("facts", facts)),
        "files": listing,
    }
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
        text = untrusted.read_text(file)
        manifest = untrusted.parse_json(text)
        version = manifest["format_version"]
    except (*untrusted.ERRORS, InputError) as error:
        raise InputError(
            f"{file}: not a readable manifest ({error}). Save the model again."
        ) from None
    if version != FORMAT_VERSION:
        raise InputError(
            f"{file}: format version {version!r}; SimRec {__version__} reads version "
            f"{FORMAT_VERSION}. Use the SimRec that wrote the model "
            f"({manifest.get('simrec', 'unknown')}), or train it again."
        )
    missing = {*_FIELDS, "format", "sha256"} - set(manifest)
    if missing:
        raise InputError(f"{file}: lacks {sorted(missing)}. Save the model again.")
    # The text itself is compared too: then no byte is without meaning.
    if manifest["sha256"] != _digest(manifest) or text != files.to_json(manifest):
        raise InputError(
            f"{file}: the manifest was changed: its content does not match its checksum. Restore "
            "it or save the model again."
        )
    _check(file, manifest)
    return manifest


def _check(file: Path, manifest: Mapping[str, Any]) -> None:
    """Check types and the model id of a manifest whose checksum anybody may have made."""
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(manifest[name], kind)]
    if manifest["format"] != FORMAT:
        wrong.append("format")
    for name, listed in manifest["files"].items() if "files" not in wrong else ():
        if not (
            isinstance(listed, dict)
            and isinstance(listed.get("sha256"), str)
            and type(listed.get("bytes")) is int
        ):
            wrong.append(f"files.{name}")
    if wrong:
        raise InputError(f"{file}: {', '.join(wrong)}: not as SimRec writes it. {REMEDY}")
    expected = _model_id(manifest["kind"], manifest["config"], manifest["files"])
    if manifest["model_id"] != expected:
        raise InputError(
            f"{file}: the manifest was changed (model id {manifest['model_id']}, its content gives "
            f"{expected}). Restore it or save the model again."
        )


def _model_id(kind: str, config: Any, listing: Mapping[str, Mapping[str, Any]]) -> str:
    content = {
        "kind": kind,
        "config": config,
        "files": {n: e["sha256"] for n, e in listing.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _digest(manifest: Mapping[str, Any]) -> str:
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def listing(root: Path) -> set[str] | None:
    """Return the files of a directory that `save` wrote, even a damaged or older one."""
    try:
        text = untrusted.read_text(root / MANIFEST)
    except (InputError, OSError, ValueError):
        return None
    try:
        manifest = untrusted.parse_json(text)
        if all(isinstance(manifest[name], kind) for name, kind in _FIELDS.items()):
            return {MANIFEST, *manifest["files"]}
        return None
    except untrusted.ERRORS:
        # Damaged: the names of the files tell.
        ours = f'"format": "{FORMAT}"' in text
        return {f.name for f in root.iterdir() if FILE.fullmatch(f.name)} if ours else None


def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
