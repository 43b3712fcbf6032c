"""Workers of a `tf.distribute` strategy.

The strategy tells the workers of each other, once; from then on they are connected in a ring, which
sums many times as fast as the strategy's own all-reduce over gRPC.
"""

import secrets
import socket
from typing import Any

import numpy as np

from simrec.model.run.sockets import connect
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.simec.keras import tf

# Bytes of a worker's address.
_LONGEST = 300


def workers_of(strategy: Any) -> Workers:
    """Return the workers of a strategy: one alone where it does not span several."""
    if not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(f"strategy: expected a tf.distribute.Strategy, got {type(strategy)}")
    told = StrategyWorkers(strategy)
    if told.size == 1:
        return ONE_WORKER

    def exchange(text: str) -> list[str]:
        codes = np.zeros((told.size, _LONGEST), np.int64)
        codes[told.rank, : len(text.encode())] = list(text.encode())
        return [bytes(row[row > 0].tolist()).decode() for row in told.sum(codes)]

    key = exchange(secrets.token_hex(32))[0].encode()
    return connect(told.rank, told.size, _host(strategy, told.rank), key, exchange)


def _host(strategy: Any, rank: int) -> str:
    """Return the name under which the other workers find this one."""
    resolver = strategy.cluster_resolver
    tasks = None if resolver is None else resolver.cluster_spec().as_dict().get("worker")
    return str(tasks[rank]).rpartition(":")[0] if tasks else socket.gethostname()


class StrategyWorkers(Workers):
    """The workers of a strategy, whatever the number of devices that each of them has."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._adders: dict[np.dtype, Any] = {}

        @tf.function
        def number() -> Any:
            return strategy.run(
                lambda: tf.distribute.get_replica_context().replica_id_in_sync_group
            )

        self._numbers = [int(n) for n in strategy.experimental_local_results(number())]
        self.size = strategy.num_replicas_in_sync // len(self._numbers)
        self.rank = min(self._numbers) // len(self._numbers)

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Add up the arrays of all workers."""
        flat = np.ascontiguousarray(array).reshape(-1)
        if array.dtype not in self._adders:
            self._adders[array.dtype] = self._adder(array.dtype)
        try:
            added = self._adders[array.dtype](flat)
            results = self._strategy.experimental_local_results(added)
        except tf.errors.OpError as error:
            raise RuntimeError(
                "another worker of the training is gone or no longer answers. Start the training "
                f"again; with a checkpoint, resume goes on from there. ({error.message[:200]})"
            ) from error
        return np.asarray(results[0].numpy()).reshape(array.shape)

    def _adder(self, dtype: np.dtype) -> Any:
        """Make the function that sums arrays of a type; of any length, to be traced only once."""
        first = min(self._numbers)

        def add(x: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # Devices of a worker have the same array: one of them brings it in.
            mine = tf.cast(context.replica_id_in_sync_group == first, x.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, x * mine)

        return tf.function(
            lambda x: self._strategy.run(add, args=(x,)),
            input_signature=[tf.TensorSpec([None], tf.as_dtype(dtype))],
        )
