"""Training speed of a similarity encoder on a dense S, against the plain Keras way of the original.

    python benchmarks/simec.py [--n 8000] [--mnist DIR] [--out FILE]

The original: one Keras model, batches of 32 rows, Adamax, 25 epochs, Y W_l against whole rows of S.
It runs first, without the symmetric regulariser (which there forms the n x n product at every step;
a few steps of it are timed and extrapolated). `SimEc` then trains to no larger an error on S.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np

from simrec import SimEc
from simrec.simec.keras import keras, tf

D = 10


def similarities(n: int, mnist: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return features and a centred RBF kernel, of digits or of random clusters."""
    if mnist is not None:
        with np.load(mnist / "mnist10k.npz", allow_pickle=False) as data:
            X = data["images"].reshape(-1, 784)[:n].astype(np.float32) / 255
    else:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(20, 784))
        X = centres[rng.integers(20, size=n)] * 0.2 + rng.normal(size=(n, 784)) * 0.15
        X = X.astype(np.float32)
    X -= X.mean(0)
    squares = (X**2).sum(1)
    S = np.maximum(squares[:, None] + squares[None] - 2 * (X @ X.T), 0)
    S = np.exp(-S / (2 * np.median(S[: n // 4, n // 4 : n // 2])))
    mean = S.mean(0, dtype=np.float64)
    return X, (S - mean[None] - mean[:, None] + mean.mean()).astype(np.float32)


def plain_keras(X: np.ndarray, S: np.ndarray, lam: float = 0.0, steps: int | None = None) -> tuple:
    """Train as the original does; return (error, seconds, seconds per step)."""
    target = tf.constant(S)

    class Symmetric(keras.regularizers.Regularizer):
        def __call__(self, w):
            return lam * tf.reduce_mean(
                tf.math.squared_difference(target, tf.matmul(w, w, transpose_a=True))
            )

    inputs = keras.Input((X.shape[1],))
    y = keras.layers.Dense(D)(inputs)
    outputs = keras.layers.Dense(
        len(S), use_bias=False, kernel_regularizer=Symmetric() if lam else None
    )(y)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adamax(0.0005), "mse")
    if steps:
        model.fit(X[:64], S[:64], batch_size=32, verbose=0)  # builds the graph
    start = time.perf_counter()
    if steps:
        model.fit(X[: 32 * steps], S[: 32 * steps], batch_size=32, verbose=0)
    else:
        model.fit(X, S, batch_size=32, epochs=25, verbose=0)
    seconds = time.perf_counter() - start
    error = float(
        np.mean(
            [np.mean((model(X[a : a + 500]) - S[a : a + 500]) ** 2) for a in range(0, len(X), 500)]
        )
    )
    return error, seconds, seconds / (steps or 25 * -(-len(X) // 32))


def ours(X: np.ndarray, S: np.ndarray, **options) -> tuple[float, float]:
    """Return (error of Y W_l, seconds)."""
    start = time.perf_counter()
    model = SimEc(D, **options).fit(X, S)
    seconds = time.perf_counter() - start
    Y = model.transform(X)
    error = np.mean(
        [
            np.mean((Y[a : a + 500] @ model.last_layer_ - S[a : a + 500]) ** 2)
            for a in range(0, len(X), 500)
        ]
    )
    return float(error), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=8000)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    X, S = similarities(options.n, options.mnist)
    rows = []

    def note(name: str, error: float | None, seconds: float, ratio: float | None) -> None:
        rows.append({"what": name, "error": error, "seconds": seconds, "times faster": ratio})
        print(
            f"{name:55s} {error if error is None else round(error, 7)!s:>12} {seconds:9.1f} s"
            + (f" {ratio:6.1f} x" if ratio else ""),
            flush=True,
        )

    ours(X[:500], S[:500, :500], init="least_squares", epochs=0)  # starts TensorFlow
    error, base, _ = plain_keras(X, S)
    note("plain Keras, 25 epochs of 32 rows, Adamax", error, base, None)
    for name, settings in {
        "SimEc, least squares, 2 sweeps": {"init": "least_squares", "sweeps": 2, "epochs": 0},
        "SimEc, spectral start, Adam, 6 epochs of 200 rows": {
            "init": "spectral",
            "epochs": 6,
            "batch_size": 200,
            "learning_rate": 0.01,
        },
    }.items():
        reached, seconds = ours(X, S, **settings)
        note(
            name + ("" if reached <= error else " (error not reached)"),
            reached,
            seconds,
            base / seconds,
        )
    _, _, slow = plain_keras(X, S, lam=1.0, steps=3)
    whole = slow * 25 * -(-len(X) // 32)
    note("plain Keras with the symmetric regulariser (3 steps)", None, whole, None)
    for name, settings in {
        "SimEc, symmetric, least squares, 5 sweeps": {
            "init": "least_squares",
            "sweeps": 5,
            "epochs": 0,
            "symmetric": 1.0,
        },
        "SimEc, symmetric, Adam, 6 epochs of 200 rows": {
            "init": "spectral",
            "epochs": 6,
            "batch_size": 200,
            "learning_rate": 0.01,
            "symmetric": 1.0,
        },
    }.items():
        reached, seconds = ours(X, S, **settings)
        note(name, reached, seconds, whole / seconds)
    if options.out:
        machine = f"{platform.processor() or platform.machine()}, TensorFlow {tf.__version__}"
        options.out.write_text(
            json.dumps({"n": options.n, "d": D, "machine": machine, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
