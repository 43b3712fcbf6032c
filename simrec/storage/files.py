"""Files that appear whole or not at all (written aside, flushed, renamed), and locks on outputs."""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from simrec.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def sha256(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(path: str | os.PathLike) -> dict[str, Any]:
    """Return what a manifest says of a file."""
    return {"sha256": sha256(path), "bytes": os.stat(path).st_size}


def stamp(path: str | os.PathLike) -> tuple[int, ...] | None:
    """Return device, inode, size and time of change of a file; None where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def to_json(document: Any) -> str:
    """Serialise plain data as readable JSON with a fixed key order."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def plain_json(name: str, document: Any) -> str:
    """Serialise a document as strict JSON: numbers of NumPy become plain ones, NaN is refused."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        if isinstance(value, Mapping | Sequence):
            return dict(value) if isinstance(value, Mapping) else list(value)
        raise TypeError(f"{name!r} holds a {type(value).__name__}, which is no plain JSON data")

    try:
        return json.dumps(document, sort_keys=True, allow_nan=False, default=plain)
    except ValueError as error:
        raise ValueError(f"{name!r} is no plain JSON: {error}") from error


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
        aside, descriptor = _make_aside(path)
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
def directory_aside(path: str | os.PathLike, check: Callable[[Path], None]) -> Iterator[Path]:
    """Give an empty directory beside `path` that replaces it in one step if the block ends well.

    `check` raises if what is there must not be replaced: at the start and before the swap.
    """
    target = Path(os.path.realpath(path))
    check(target)
    with naming_full_disk(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        with own_directory(target, ".new") as aside:
            yield aside
            for file in (*aside.rglob("*"), aside):
                flush(file)
            check(target)
            replace_directory(aside, target)


@contextmanager
def own_directory(target: Path, suffix: str) -> Iterator[Path]:
    """Make a directory beside `target` for a block; `remove_leftovers` removes it after a kill."""
    path, descriptor = _make_aside(target, suffix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(target: str | os.PathLike) -> None:
    """Remove what killed processes left beside `target` when they were about to write it."""
    target = Path(target)
    for path in _asides(target):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if it is in use
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
    """Return what `_make_aside` made beside `target`, now or before its process was killed."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}(\.[a-z]+)?")
    found = target.parent.iterdir() if target.parent.is_dir() else ()
    return [path for path in found if name.fullmatch(path.name) and not path.is_symlink()]


def _make_aside(target: Path, suffix: str = "") -> tuple[Path, int]:
    """Make a locked file, or with a suffix a directory, beside `target`; modes follow the umask.

    The system unlocks it when its process ends, and so tells leftovers from what is in use.
    """
    while True:
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}{suffix}")
        try:
            if suffix:
                os.mkdir(aside)
                descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY)
            else:
                descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            if target.parent.is_dir():
                continue  # taken for a leftover before it was locked
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(descriptor).st_nlink > 0
        except BlockingIOError:
            ours = False
        except OSError:
            ours = True  # a file system without locks, where nothing is taken for a leftover
        if ours:
            return aside, descriptor
        os.close(descriptor)


def check_replaceable(
    path: str | os.PathLike, what: str, listing: Callable[[Path], Collection[str] | None]
) -> None:
    """Raise InputError unless `path` is nothing, an empty directory, or one of the kind `what`.

    `listing` names the files that SimRec wrote to a directory; None if it wrote none.
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
    elif exchange(source, target):
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


def exchange(a: Path, b: Path) -> bool:
    """Swap two directories atomically; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, swap = -100, 2
    if renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file with the number of this process; raise InputError if another job holds it.

    The system unlocks the file when its process ends: the lock of a dead process is taken over.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"{path.parent}: is not a directory, so nothing can be written in it. Give another "
            "output."
        ) from None
    held = FileLock(path)
    with naming_full_disk(path):
        try:
            held.acquire(blocking=False)
        except Timeout:
            holder = ""
            with suppress(OSError):  # it may end meanwhile
                holder = f" (process {path.read_text()})"
            raise InputError(
                f"{path}: another job{holder} writes to this output. Wait for it, or give another "
                "output."
            ) from None
        except OSError as error:
            raise InputError(
                f"{path}: cannot be a lock file ({error.strerror}). Delete it, or give another "
                "output."
            ) from None
    try:
        with naming_full_disk(path):
            path.write_text(str(os.getpid()))
        mine = os.lstat(path)
        try:
            yield
        finally:
            # Removed while locked: whoever has opened this file sees that it is gone.
            if path.exists() and os.path.samestat(os.lstat(path), mine):
                path.unlink(missing_ok=True)
    finally:
        held.release()
