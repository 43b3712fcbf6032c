"""Files that appear whole or not at all: written aside, flushed, renamed."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.mapped import release

# Bytes that are written at once.
_PIECE = 1 << 24
_FULL = (errno.ENOSPC, errno.EDQUOT)


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


def save_npy(path: str | os.PathLike, array: np.ndarray) -> None:
    """Write the bytes that np.save writes; unlike there, an error says what the system says."""
    array = np.asarray(array, order="C")
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _PIECE):
            file.write(flat[start : start + _PIECE].data)
            release(flat[start : start + _PIECE])


def save_npz(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays like np.savez, without the time of day: equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


def is_full_disk(error: BaseException) -> bool:
    """Tell whether an error is what the system says when there is no room left."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def naming_full_disk(path: str | os.PathLike) -> Iterator[None]:
    """Turn any error that means a full disk into an OSError that says so and names `path`."""
    try:
        yield
    except Exception as error:
        if is_full_disk(error) and "disk is full" in str(error):
            raise  # named already
        for code in _FULL:
            reason = os.strerror(code)
            # Libraries hide the number in a text, or raise errors of their own.
            if getattr(error, "errno", None) == code or reason in str(error):
                message = f"the disk is full ({reason}): make room and start again"
                raise OSError(code, message, os.fspath(path)) from error
        raise


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
    with naming_full_disk(path):
        aside, descriptor = make_aside(path)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextmanager
def directory_aside(
    path: str | os.PathLike, check: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Give an empty directory beside `path` that takes its place when the block ends well.

    An existing directory at `path` is replaced in one step; if the block raises, it stays as it was
    and the directory aside is removed.

    Parameters
    ----------
    path : path
        The directory to make or replace.
    check : callable, optional
        Raises if what is at `path` must not be replaced; called at the start and before the swap.
    """
    target = Path(os.path.realpath(path))
    if check is not None:
        check(target)
    with naming_full_disk(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        with own_directory(target, ".new") as aside:
            yield aside
            for file in aside.rglob("*"):
                flush(file)
            flush(aside)
            if check is not None:
                check(target)
            replace_directory(aside, target)


@contextmanager
def own_directory(target: Path, suffix: str) -> Iterator[Path]:
    """Make a directory beside `target` for the length of a block.

    If this process is killed, `remove_leftovers` of a later one removes it.
    """
    path, descriptor = make_aside(target, suffix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(target: str | os.PathLike) -> None:
    """Remove what killed processes left beside `target` when they were about to write it."""
    target = Path(target)
    for path in _asides(target):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not try_flock(descriptor):
                    continue
                kept = path / target.name
                if path.suffix == ".old" and kept.exists() and not target.exists():
                    os.rename(kept, target)  # killed between the two renames of a swap
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            finally:
                os.close(descriptor)


def is_being_replaced(target: str | os.PathLike) -> bool:
    """Tell whether a directory was moved aside and the one that takes its place is not there."""
    return any(path.suffix == ".old" for path in _asides(Path(os.path.realpath(target))))


def _asides(target: Path) -> list[Path]:
    """Return what `make_aside` made beside `target`, now or before its process was killed."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}(\.[a-z]+)?")
    found = target.parent.iterdir() if target.parent.is_dir() else ()
    return [path for path in found if name.fullmatch(path.name) and not path.is_symlink()]


def try_flock(descriptor: int) -> bool:
    """Lock an open file if nobody else has; the system unlocks it when its process ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_aside(target: Path, suffix: str = "") -> tuple[Path, int]:
    """Make a locked file, or with a suffix a directory, beside `target`; modes follow the umask."""
    while True:
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}{suffix}")
        if suffix:
            os.mkdir(aside)
            try:
                descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # taken for a leftover before it was locked
        else:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            ours = try_flock(descriptor) and os.fstat(descriptor).st_nlink > 0
        except OSError:
            ours = True  # a file system without locks, where nothing is taken for a leftover
        if ours:
            return aside, descriptor
        os.close(descriptor)


def check_replaceable(
    path: str | os.PathLike, what: str, listing: Callable[[Path], Collection[str] | None]
) -> None:
    """Raise InputError unless a directory can be written to `path` without any loss.

    Parameters
    ----------
    path : path
        Where nothing, an empty directory, or an earlier one of the same kind may be.
    what : str
        What is to be written, for messages.
    listing : callable
        Returns the names of the files that SimRec wrote to a directory; None if it wrote none.
    """
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path}: is a file; {what} is a directory. Give another path.")
    if not path.is_dir() or not any(path.iterdir()):
        return
    ours = listing(path)
    if ours is None:
        raise InputError(
            f"{path}: a directory that holds other files and no {what.split()[-1]}. "
            "Give a new path."
        )
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if name not in ours and (file.is_symlink() or not file.is_dir()):
            raise InputError(
                f"{path}: holds other files than {what}, such as {name!r}, and is not replaced. "
                "Give a new path, or move them away."
            )


def replace_directory(source: Path, target: Path) -> None:
    """Move directory `source` to `target`; what was at `target` is removed afterwards."""
    if not target.exists():
        os.rename(source, target)
    elif _exchange(source, target):
        shutil.rmtree(source, ignore_errors=True)
    else:
        # No atomic exchange on this system: for an instant there is no target, never half of one.
        with own_directory(target, ".old") as old:
            os.rename(target, old / target.name)
            try:
                os.rename(source, target)
            except OSError:
                os.rename(old / target.name, target)
                raise
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
