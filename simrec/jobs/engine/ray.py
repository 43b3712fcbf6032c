"""The Ray engine: the same units of work on a cluster. Only this and `ray_train` know Ray.

Outputs, model directory and scratch files must be on storage that all nodes see. The work (task,
vectors, input description) is put into Ray's object store once: the workers of a node share one
copy of its arrays. A unit whose worker or node dies is run again elsewhere; parts are renamed into
place whole, so that a second attempt does no harm.
"""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simrec.data.source import Unit
from simrec.errors import InputError
from simrec.jobs.engine.batch import Work
from simrec.jobs.io.parts import Part


def run(
    work: Work, units: Sequence[Unit], workers: int | None = None, address: str | None = None
) -> Iterator[Part]:
    """Map `work` over units on a Ray cluster; yield parts as they are done.

    By default one unit per processor of the cluster is worked on at once.
    """
    with connected(workers, address) as ray:
        shared = ray.put(work)
        # Retried without end where a worker dies; an error of the work itself is raised here.
        remote = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_run)
        at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        queue = iter(units)
        running: list[Any] = []
        try:
            while True:
                while len(running) < at_once and (unit := next(queue, None)) is not None:
                    running.append(remote.remote(shared, unit))
                if not running:
                    return
                (done,), running = ray.wait(running, num_returns=1)
                try:
                    part = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    # The error as the local engine raises it, so that the message is the same.
                    raise error.cause if isinstance(error.cause, Exception) else error from None
                yield part
        finally:
            for reference in running:
                ray.cancel(reference)


def _run(work: Work, unit: Unit) -> Part:
    return work.run(unit)


@contextmanager
def connected(
    workers: int | None = None, address: str | None = None, object_store: int | None = None
) -> Iterator[Any]:
    """Give Ray, connected to a cluster.

    The address "local" is a new one that nothing but this machine reaches, with an object store of
    so many bytes. None is the one this process is connected to, or a new one on this machine. A
    cluster that is started here has as many processors as `workers`.
    """
    # Ray reports usage and uploads nothing else; a batch job should do neither by itself.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine: Ray is not installed; pip install 'simrec[ray]', or use --engine local (and "
            "train with one worker)"
        ) from None
    started = not ray.is_initialized()
    if started:
        new: dict[str, Any] = {"num_cpus": workers} if address in (None, "local") else {}
        if address == "local":
            new |= {"object_store_memory": object_store, "_node_ip_address": "127.0.0.1"}
            # Its workers are this job, and no guests on the machine.
            new["_system_config"] = {"worker_niceness": 0}
        try:
            _check_address(address)
            ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **new,
            )
        except (ConnectionError, ValueError) as error:
            raise InputError(f"ray: cannot reach a cluster at {address!r}: {error}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise ConnectionError at once for an address that Ray would wait for during minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not (colon and port.isdigit()) or "://" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConnectionError(error) from None
