"""One job at a time on one output."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from simrec.errors import InputError
from simrec.storage.files import naming_full_disk, stamp

logger = logging.getLogger(__name__)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file that names host and process; raise InputError if another job holds it.

    The system unlocks the file when its process ends: the lock of a dead process is taken over. A
    file of another host, which may not share locks, is left for the user to remove.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held, before = FileLock(path), stamp(path)
    with naming_full_disk(path):
        try:
            held.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"{path}: process {_holder(path) or 'unknown'} on this host writes to this output. "
                "Wait for it, or give another output."
            ) from None
        except OSError as error:
            raise InputError(
                f"{path}: cannot be a lock file ({error.strerror}). Delete it, or give another "
                "output."
            ) from None
    try:
        if before == stamp(path) or path.stat().st_size:
            gone = "%s: the job that held this lock (process %d) is gone: taken over"
            logger.warning(gone, path, _holder(path))
        with naming_full_disk(path):
            path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        mine = os.lstat(path)
        try:
            yield
        finally:
            # Removed while locked: whoever has opened this file sees that it is gone.
            if path.exists() and os.path.samestat(os.lstat(path), mine):
                path.unlink(missing_ok=True)
    finally:
        held.release()


def _holder(path: Path) -> int | None:
    """Return the process that wrote a lock file; InputError for one of another host."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        host, pid = holder["host"], int(holder["pid"])
    except FileNotFoundError:
        return None
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
