"""Progress of a fit: a bar or lines, the history, Keras callbacks and logs for TensorBoard."""

import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Progress:
    """Takes what is logged of each epoch to whoever wants it.

    Parameters
    ----------
    epochs : int
        Most epochs there will be.
    verbose : int
        0 silent, 1 a bar, 2 a line for each epoch (logged).
    callbacks : sequence of keras.callbacks.Callback, optional
        Told of the start, of every epoch and of the end. TensorFlow is imported only for them.
    log_dir : path, optional
        Where to write logs for TensorBoard.
    """

    def __init__(
        self,
        epochs: int,
        verbose: int = 0,
        callbacks: Sequence[Any] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.history: list[dict[str, float]] = []
        self._epochs = epochs
        self._verbose = verbose
        self._bar: Any = None
        self._callbacks: Any = None
        if callbacks or log_dir is not None:
            from simrec.simec.keras import keras
            from simrec.simec.tensorboard import ScalarLog

            extra = [] if log_dir is None else [ScalarLog(os.fspath(log_dir))]
            self._callbacks = keras.callbacks.CallbackList([*(callbacks or ()), *extra])
            self._callbacks.set_params({"epochs": epochs, "verbose": verbose})

    def __enter__(self) -> "Progress":
        if self._verbose == 1:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._epochs, desc="fit", unit="epoch", leave=True)
        if self._callbacks is not None:
            self._callbacks.on_train_begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._callbacks is not None and error is None:
            self._callbacks.on_train_end()

    def epoch(self, logs: dict[str, float]) -> None:
        """Take note of a finished epoch."""
        epoch = len(self.history)
        self.history.append({name: float(value) for name, value in logs.items()})
        text = ", ".join(f"{name} {value:.4f}" for name, value in logs.items())
        if self._verbose == 2:
            logger.info("epoch %d: %s", epoch + 1, text)
        if self._bar is not None:
            # Choosing penalties comes on top of the epochs, in as many steps as it takes.
            self._bar.total = max(self._bar.total, epoch + 1)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        if self._callbacks is not None:
            self._callbacks.on_epoch_begin(epoch)
            self._callbacks.on_epoch_end(epoch, dict(self.history[-1]))
