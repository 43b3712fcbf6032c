"""The Ray engine: the same units of work on a cluster. Only this and `ray_train` know Ray.

Outputs, model directory and scratch files must be on storage that all nodes see. The work (task,
vectors, input description) is put into Ray's object store once: the workers of a node share one
copy of its arrays. A unit whose worker or node dies is run again elsewhere; parts are renamed into
place whole, so that a second attempt does no harm.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from simrec.errors import InputError
from simrec.jobs.engine.work import Work
from simrec.jobs.io.parts import Part
from simrec.jobs.io.sources import Unit


def run(
    work: Work, units: Sequence[Unit], workers: int | None = None, address: str | None = None
) -> Iterator[Part]:
    """Map `work` over units on a Ray cluster; yield parts as they are done.

    Parameters
    ----------
    work : Work
        What to do.
    units : sequence of Unit
        To what.
    workers : int, optional
        Units worked on at once; by default one per processor of the cluster.
    address : str, optional
        The cluster; by default the one this process is connected to, or a new one on this machine.
    """
    with connected(workers, address) as ray:
        yield from _map(ray, work, units, workers)


@contextmanager
def connected(
    workers: int | None = None,
    address: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Give Ray, connected to a cluster; `environment` are variables that its workers get."""
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        _check_address(address)
        try:
            ray.init(
                address=address,
                num_cpus=workers if address is None else None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": dict(environment)} if environment else None,
            )
        except (ConnectionError, ValueError) as error:
            raise InputError(f"ray: cannot reach a cluster at {address!r}: {error}") from error
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def _map(ray: Any, work: Work, units: Sequence[Unit], workers: int | None) -> Iterator[Part]:
    shared = ray.put(work)
    # Retried without end where a worker dies; an error of the work itself is raised here.
    remote = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_run_unit)
    at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    queue = iter(units)
    running: list[Any] = []
    try:
        while True:
            while len(running) < at_once and (unit := next(queue, None)) is not None:
                running.append(remote.remote(shared, unit))
            if not running:
                return
            done, running = ray.wait(running, num_returns=1)
            for reference in done:
                try:
                    part = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    # The error as the local engine raises it, so that the message is the same.
                    raise error.cause if isinstance(error.cause, Exception) else error from None
                yield part
    finally:
        for reference in running:
            ray.cancel(reference)


def _run_unit(work: Work, unit: Unit) -> Part:
    return work.run(unit)


def _check_address(address: str | None) -> None:
    """Refuse at once what Ray would wait for during minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not (colon and port.isdigit()) or "://" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise InputError(f"ray: cannot reach a cluster at {address!r}: {error}") from None


def _import_ray() -> Any:
    # Ray reports usage and uploads nothing else; a batch job should do neither by itself.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine: Ray is not installed; pip install 'simrec[ray]', or use --engine local"
        ) from None
    return ray
