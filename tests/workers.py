"""Workers for tests: threads of this process, each with the users of its range."""

import threading
from copy import copy

import numpy as np
import pyarrow as pa

from simrec import TwoTower
from simrec.data.sides import Sides
from simrec.jobs.io.portions import ranges
from simrec.model.checkpoint import Run
from simrec.model.files import save
from simrec.model.fit import fit_model
from simrec.model.run.workers import Workers, equal_parts


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


def own_users(ratings, users, workers):
    """Take the ratings and features of a worker's users."""
    if workers.size == 1:
        return ratings, users
    edges = equal_parts(np.bincount(ratings.user_rows, minlength=ratings.n_users), workers.size)
    low, high = edges[workers.rank : workers.rank + 2]
    mine = ratings.select((ratings.user_rows >= low) & (ratings.user_rows < high))
    if users is None:
        return mine, None
    users = pa.table(users)
    starts = ratings.users.take(edges[1:-1]).to_pylist()
    return mine, users.filter(pa.array(ranges(users["user_id"], starts) == workers.rank))


def fit_together(model, size, ratings, items, users, path):
    """Fit a model by some workers; give it as loaded from what they have written together."""

    def work(workers):
        mine, features = own_users(ratings, users, workers)
        fitted = copy(model)
        fit_model(fitted, mine, Sides(items, features), Run(workers))
        save(fitted, path, workers=workers)

    errors = [error for error in in_threads(size, work) if error is not None]
    if errors:  # the others have waited for the one that failed
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return TwoTower.load(path)
