"""One job at a time on one output."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simrec import files
from simrec.errors import InputError

logger = logging.getLogger(__name__)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file that names host and process; raise InputError if another job holds it.

    The system locks the open file (``flock``) and unlocks it when the process ends, so the lock of
    a dead process is taken over, by one job only. Where hosts share a disk but not its locks, the
    name in the file counts: a file of another host is left for the user to remove.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(path)
    with files.naming_full_disk(path):
        descriptor = _acquire(path)
    try:
        yield
    finally:
        # Removed while locked: whoever opened this file sees that it is gone, and makes another.
        if _is_at(path, descriptor):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """Return the descriptor of the locked file at `path`."""
    me = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
    while True:
        stale = _lock_stale(path)
        # The new file is complete and locked before it has its name.
        aside, descriptor = files.make_aside(path)
        try:
            os.write(descriptor, me.encode())
            if stale is not None:
                os.replace(aside, path)
            else:
                os.link(aside, path)
            return descriptor
        except FileExistsError:
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            aside.unlink(missing_ok=True)
            if stale is not None:
                os.close(stale)


def _lock_stale(path: Path) -> int | None:
    """Lock the file of a dead process; None if there is none, InputError if its process lives."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(
                f"{path}: cannot be a lock file ({error.strerror}). Delete it, or give another "
                "output."
            ) from None
        try:
            holder = _read(path, descriptor)
            if not files.try_flock(descriptor):
                raise InputError(
                    f"{path}: process {holder} on this host writes to this output. Wait for "
                    "it, or give another output."
                )
            if _is_at(path, descriptor):
                gone = "%s: the job that held this lock (process %d) is gone: taken over"
                logger.warning(gone, path, holder)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed or taken over by another job in the meantime


def _read(path: Path, descriptor: int) -> int:
    """Return the process that made a lock file; InputError for a process of another host."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        host, pid = holder["host"], int(holder["pid"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: an unreadable lock. If no other job writes there, delete this file."
        ) from None
    if host != socket.gethostname():
        raise InputError(
            f"{path}: process {pid} on host {host} writes to this output. If that job no longer "
            "runs, delete this file and start again."
        )
    return pid


def _is_at(path: Path, descriptor: int) -> bool:
    """Tell whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
