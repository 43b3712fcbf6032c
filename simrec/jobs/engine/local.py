"""The local engine: units of work on the threads of this machine."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from simrec.jobs.engine.batch import default_workers
from simrec.jobs.engine.work import Work
from simrec.jobs.io.parts import Part
from simrec.jobs.io.sources import Unit


def run(work: Work, units: Sequence[Unit], workers: int | None = None) -> Iterator[Part]:
    """Map `work` over units, a few at a time; yield parts as they are done."""
    workers = workers or default_workers()
    if workers == 1 or len(units) == 1:
        yield from map(work.run, units)
        return
    queue = iter(units)
    running: set[Future[Part]] = set()
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(running) < workers and (unit := next(queue, None)) is not None:
                    running.add(pool.submit(work.run, unit))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                # Parts that are done are handed on before a failed one stops the job.
                for future in sorted(done, key=lambda f: f.exception() is not None):
                    yield future.result()
        finally:
            for future in running:
                future.cancel()
