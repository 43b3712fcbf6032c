"""Scalars by epoch for TensorBoard, written by TensorFlow itself.

`keras.callbacks.TensorBoard` needs the package tensorboard; this needs it only for reading.
"""

from typing import Any

from simrec.simec.keras import keras, tf


class ScalarLog(keras.callbacks.Callback):
    """Write every logged number of every epoch to event files in a directory."""

    def __init__(self, log_dir: str):
        super().__init__()
        self.writer = tf.summary.create_file_writer(log_dir)
        self.metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the epoch's numbers."""
        with self.writer.as_default():
            for name, value in (logs or {}).items():
                tf.summary.write(
                    f"epoch_{name}", tf.constant(value, tf.float32), epoch, self.metadata
                )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the file."""
        self.writer.close()
