"""Workers for tests: threads of this process, or processes of this machine."""

import threading

from simrec.model.run.workers import Workers


class Threads(Workers):
    """Workers that are threads of this process."""

    def __init__(self, rank, size, parts, barrier):
        self.rank, self.size, self._parts, self._barrier = rank, size, parts, barrier

    def sum(self, array):
        self._parts[self.rank] = array
        self._barrier.wait()
        total = sum(self._parts[1:], self._parts[0])
        self._barrier.wait()
        return total


def in_threads(size, work):
    """Call ``work(workers)`` on each of some workers; give their results or errors in order."""
    parts, barrier, results = [None] * size, threading.Barrier(size, timeout=300), [None] * size

    def one(rank):
        try:
            results[rank] = work(Threads(rank, size, parts, barrier))
        except BaseException as error:
            barrier.abort()
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
