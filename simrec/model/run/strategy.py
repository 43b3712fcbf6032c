"""Workers of a `tf.distribute` strategy: sums are its all-reduce."""

from typing import Any

import numpy as np

from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.simec.keras import tf

# Numbers summed at once. TensorFlow copies what it sums a few times over.
_PIECE = 1 << 24


def workers_of(strategy: Any) -> Workers:
    """Return the workers of a strategy: one alone where it does not span several."""
    if not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(f"strategy: expected a tf.distribute.Strategy, got {type(strategy)}")
    workers = StrategyWorkers(strategy)
    return workers if workers.size > 1 else ONE_WORKER


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
        out = np.empty_like(flat)
        try:
            for a in range(0, max(len(flat), 1), _PIECE):
                added = self._adders[array.dtype](flat[a : a + _PIECE])
                results = self._strategy.experimental_local_results(added)
                out[a : a + _PIECE] = results[0].numpy()
        except tf.errors.OpError as error:
            raise RuntimeError(
                "another worker of the training is gone or no longer answers. Start the training "
                f"again; with a checkpoint, resume goes on from there. ({error.message[:200]})"
            ) from error
        return out.reshape(array.shape)

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
