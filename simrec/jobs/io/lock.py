"""One job at a time on one output."""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simrec.errors import InputError

logger = logging.getLogger(__name__)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file that names host and process; raise InputError if another job holds it.

    The lock of a process of this host that no longer runs is taken over. Whether a process of
    another host still runs cannot be seen from here: its lock is left for the user to remove.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}
    while not _create(path, json.dumps(mine)):
        _take_over(path, mine["host"])
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _create(path: Path, text: str) -> bool:
    """Make a file with its content in one step; False if it is there already."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    aside.write_text(text)
    try:
        os.link(aside, path)
        return True
    except FileExistsError:
        return False
    finally:
        aside.unlink()


def _take_over(path: Path, host: Any) -> None:
    """Remove a stale lock, or raise."""
    try:
        holder = json.loads(path.read_text())
        pid = int(holder["pid"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: an unreadable lock. If no other job writes there, delete this file."
        ) from None
    if holder.get("host") != host:
        raise InputError(
            f"{path}: process {pid} on host {holder.get('host')} writes to this output. If that "
            "job no longer runs, delete this file and start again."
        )
    if _started(pid) is not None and _started(pid) == holder.get("started"):
        raise InputError(
            f"{path}: process {pid} on this host writes to this output. Wait for it, or give "
            "another output."
        )
    logger.warning("%s: the job that held this lock (process %d) is gone: taken over", path, pid)
    # Renamed first: of two jobs that find the same stale lock, one succeeds and removes only that.
    aside = path.with_name(f"{path.name}.stale-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        aside.unlink()


def _started(pid: int) -> str | None:
    """Return when a process started, as the system counts it: ids are used again, this is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"
