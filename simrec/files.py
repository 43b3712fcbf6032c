"""Files that appear whole or not at all: written aside, flushed, renamed."""

import ctypes
import errno
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def sha256(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while n := file.readinto(buffer):
            digest.update(view[:n])
    return digest.hexdigest()


def to_json(document: Any) -> str:
    """Serialise plain data as readable JSON with a fixed key order."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def plain_json(name: str, document: Any) -> str:
    """Serialise a document as strict JSON: numbers of NumPy become plain ones, NaN is refused."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return value.tolist()
        raise TypeError(f"{name!r} holds a {type(value).__name__}, which is no plain JSON data")

    try:
        return json.dumps(document, sort_keys=True, allow_nan=False, default=plain)
    except ValueError as error:
        raise ValueError(f"{name!r} is no plain JSON: {error}") from error


def save_npz(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Like np.savez, without the time of day: equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


def flush(path: str | os.PathLike) -> None:
    """Make the bytes of a file (or the entries of a directory) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file so that readers see the old content or the new, never a part of it."""
    path = Path(path)
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextmanager
def directory_aside(path: str | os.PathLike) -> Iterator[Path]:
    """Give an empty directory beside `path` that takes its place when the block ends well.

    An existing directory at `path` is replaced in one step; if the block raises, it stays as it was
    and the directory aside is removed.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
    try:
        os.chmod(aside, 0o755)
        yield aside
        for file in aside.rglob("*"):
            flush(file)
        flush(aside)
        replace_directory(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def replace_directory(source: Path, target: Path) -> None:
    """Move directory `source` to `target`; what was at `target` is removed afterwards."""
    if not target.exists():
        os.rename(source, target)
    elif _exchange(source, target):
        shutil.rmtree(source, ignore_errors=True)
    else:
        # No atomic exchange on this system: for an instant there is no target, never half of one.
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        os.rename(target, old / target.name)
        try:
            os.rename(source, target)
        except OSError:
            os.rename(old / target.name, target)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
    flush(target.parent)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories atomically (Linux); False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    if renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))
