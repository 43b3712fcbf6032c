"""The experiments of figures 3 to 8: references, similarity encoders, errors."""

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from digits import (
    Digits,
    class_similarities,
    mean_squared,
    rbf_similarities,
    ridge,
    simpson_similarities,
    top_eigen,
)
from relations import combine_relations, spectrum, split_similarity

from simrec import SimEc

logger = logging.getLogger("paper")
Result = dict[str, Any]


class Scale:
    """How large the experiments are: as in the paper, or quick."""

    def __init__(self, quick: bool):
        self.quick = quick
        self.class_dims = (6, 9) if quick else (2, 5, 6, 9, 12)
        self.kernel_dims = (2, 10) if quick else (2, 5, 10, 20, 40)
        self.targets = (50, None) if quick else (100, 250, 500, 1000, 2000, 4000, None)
        self.missing = (0.0, 0.9) if quick else (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)
        self.simpson_dims = (2, 50) if quick else (2, 5, 10, 25, 50, 75, 100)
        self.hidden = 800 if quick else 1000
        self.epochs = 0.3 if quick else 1.0

    def n_epochs(self, epochs: int) -> int:
        """Return that many epochs, or fewer where it has to be quick."""
        return max(2, round(epochs * self.epochs))


def _timed(name: str, fit: Callable[[], SimEc]) -> tuple[SimEc, float]:
    start = time.perf_counter()
    model = fit()
    seconds = time.perf_counter() - start
    logger.info("  %s: %.1f s", name, seconds)
    return model, seconds


def _embedding_errors(model: SimEc, digits: Digits, S: Any) -> tuple[float, float]:
    train, test = digits.centred()
    Y, Y_test = model.transform(train), model.transform(test)
    return mean_squared(Y, Y.T, S.train), mean_squared(Y_test, Y_test.T, S.test)


def _prediction_errors(model: SimEc, parts: Any, goals: Any) -> list[float]:
    return [
        mean_squared(model.transform(part), model.last_layer_, goal)
        for part, goal in zip(parts, goals, strict=True)
    ]


def _kernel_model(d: int, scale: Scale, **changes: Any) -> SimEc:
    """One hidden layer of random features, its linear layer and W_l by least squares."""
    options: dict[str, Any] = {
        "hidden_layers": (scale.hidden,),
        "symmetric": 1.0,
        "init": "least_squares",
        "sweeps": 8,
        "epochs": 0,
    }
    return SimEc(d, **{**options, **changes})


def _centred_fit(
    model: SimEc, digits: Digits, S: np.ndarray, targets: int | None = None
) -> Callable[[], SimEc]:
    return lambda: model.fit(digits.centred()[0], S, targets=targets)


def figure3(digits: Digits, scale: Scale) -> Result:
    """Class similarities: what a linear and a deep encoder can express of them."""
    S = class_similarities(digits)
    train, test = digits.centred()
    trained = {
        "activation": "relu",
        "init": "spectral",
        "symmetric": 1.0,
        "self_similarity": 1.0,
        "learning_rate": 1e-3,
        "batch_size": 100,
    }
    encoders: dict[str, dict[str, Any]] = {
        "linear": {
            "init": "least_squares",
            "sweeps": 30,
            "ridge": 0.02,
            "epochs": 0,
            "symmetric": 1.0,
        },
        "2 hidden": {
            **trained,
            "hidden_layers": (400, 400),
            "dropout": 0.25,
            "input_dropout": 0.1,
            "epochs": scale.n_epochs(20),
        },
        "5 hidden": {
            **trained,
            "hidden_layers": (400, 300, 300, 200, 200),
            "dropout": 0.1,
            "input_dropout": 0.1,
            "epochs": scale.n_epochs(25),
        },
    }
    rows = []
    values, vectors = top_eigen(S.train, max(scale.class_dims))
    for d in scale.class_dims:
        embedding = vectors[:, :d] * np.sqrt(np.maximum(values[:d], 0))
        fitted = ridge(train, embedding, test, alpha=10.0)
        row = {
            "d": d,
            "eigendecomposition": [mean_squared(embedding, embedding.T, S.train), None],
            "ridge": [
                mean_squared(fitted[0], fitted[0].T, S.train),
                mean_squared(fitted[1], fitted[1].T, S.test),
            ],
        }
        for name, options in encoders.items():
            model, _ = _timed(
                f"d = {d}, {name}", _centred_fit(SimEc(d, **options), digits, S.train)
            )
            row[name] = list(_embedding_errors(model, digits, S))
            if d == 9:
                row.setdefault("embedding", {})[name] = model.transform(test)[:, :2].tolist()
        rows.append(row)
    return {"rows": rows, "encoders": encoders, "labels": digits.test_labels.tolist()}


def figure4(digits: Digits, scale: Scale) -> Result:
    """RBF kernel: Y Y^T with and without the symmetric regulariser, by d."""
    S = rbf_similarities(digits)
    values, vectors = top_eigen(S.train, max(scale.kernel_dims))
    rows = []
    for d in scale.kernel_dims:
        embedding = vectors[:, :d] * np.sqrt(values[:d])
        new = S.cross @ vectors[:, :d] / np.sqrt(values[:d])
        row = {
            "d": d,
            "kernel PCA": [
                mean_squared(embedding, embedding.T, S.train),
                mean_squared(new, new.T, S.test),
            ],
        }
        # More dimensions are finer functions of the image, and need more random features.
        width = scale.hidden * (1 if d <= 10 or scale.quick else 2 if d <= 20 else 4)
        for name, changes in {
            "with": {"hidden_layers": (width,)},
            "without": {
                "hidden_layers": (200,),
                "symmetric": 0.0,
                "init": "random",
                "epochs": scale.n_epochs(6),
                "learning_rate": 1e-3,
            },
        }.items():
            model, _ = _timed(
                f"d = {d}, {name} lambda",
                _centred_fit(_kernel_model(d, scale, **changes), digits, S.train),
            )
            row[name] = list(_embedding_errors(model, digits, S))
            row[f"{name}, Y W"] = _prediction_errors(model, digits.centred(), (S.train, S.cross))
        rows.append(row)
    return {"rows": rows}


def figure5(digits: Digits, scale: Scale) -> Result:
    """RBF kernel from fewer target columns, d = 10."""
    S = rbf_similarities(digits)
    rows = []
    for n in scale.targets:
        fit = _centred_fit(_kernel_model(10, scale), digits, S.train, n)
        fitted, seconds = _timed(f"{n or len(S.train)} targets", fit)
        rows.append(
            {
                "targets": n or len(S.train),
                "simec": list(_embedding_errors(fitted, digits, S)),
                "seconds": seconds,
            }
        )
    values, vectors = top_eigen(S.train, 10)
    embedding = vectors * np.sqrt(values)
    return {"rows": rows, "kernel PCA": mean_squared(embedding, embedding.T, S.train)}


def figure6(digits: Digits, scale: Scale) -> Result:
    """RBF kernel with missing entries, d = 10, against filling in the mean."""
    S = rbf_similarities(digits)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random(S.train.shape, dtype=np.float32))
    draws = upper + np.triu(upper, 1).T
    rows = []
    for share in scale.missing:
        holed = S.train.copy()
        holed[draws < share] = np.nan
        filled = np.where(np.isnan(holed), np.nanmean(holed), holed)
        values, vectors = top_eigen(filled, 10)
        embedding = vectors * np.sqrt(np.maximum(values, 0))
        model: SimEc = _kernel_model(10, scale, sweeps=12 if share > 0.9 else 6)
        targets: Any = holed
        if share >= 0.8:
            import scipy.sparse as sp

            known = ~np.isnan(holed)
            targets = sp.csr_matrix((holed[known], np.nonzero(known)), holed.shape)
        fitted, seconds = _timed(f"{share:.0%} missing", _centred_fit(model, digits, targets))
        rows.append(
            {
                "missing": share,
                "mean-filled": mean_squared(embedding, embedding.T, S.train),
                "simec": list(_embedding_errors(fitted, digits, S)),
                "seconds": seconds,
            }
        )
    return {"rows": rows}


def _simpson_model(d: int, scale: Scale, ridge: float) -> SimEc:
    return SimEc(
        d,
        hidden_layers=(scale.hidden * (1 if scale.quick else 2),),
        init="least_squares",
        sweeps=3,
        ridge=ridge,
        epochs=0,
    )


def _pixels(digits: Digits) -> tuple[np.ndarray, np.ndarray]:
    """Set pixels, and these over their number: the two scales of a Simpson similarity."""

    def features(images: np.ndarray) -> np.ndarray:
        pixels = (images > 0.5).astype(np.float32)
        number = np.maximum(pixels.sum(1, keepdims=True), 1)
        return np.concatenate([pixels, pixels * (100 / number)], axis=1)

    train, test = features(digits.train), features(digits.test)
    return train - train.mean(0), test - train.mean(0)


def _held_out_ridge(train: np.ndarray, S: np.ndarray, d: int, scale: Scale) -> float:
    """Choose the ridge on a fifth of the training rows."""
    held = np.arange(len(train)) % 5 == 0
    errors = {}
    for alpha in (3e-4, 1e-3, 3e-3, 1e-2):
        model = _simpson_model(d, scale, alpha).fit(train[~held], S[~held])
        errors[alpha] = _prediction_errors(model, (train[held],), (S[held],))[0]
    logger.info("  errors on held-out training rows by ridge: %s", errors)
    return min(errors, key=errors.__getitem__)


def figure7(digits: Digits, scale: Scale) -> Result:
    """Simpson similarities of zeros and sevens: negative eigenvalues in Y W_l."""
    S = simpson_similarities(digits)
    train, test = _pixels(digits)
    found = spectrum(S.train)
    logger.info("%s", found.report(max(scale.simpson_dims)))
    chosen = _held_out_ridge(train, S.train, max(scale.simpson_dims), scale)
    rows = []
    for d in scale.simpson_dims:
        model, _ = _timed(
            f"d = {d}", lambda d=d: _simpson_model(d, scale, chosen).fit(train, S.train)
        )
        rows.append(
            {
                "d": d,
                "positive": found.error_symmetric(d),
                "magnitude": found.error_free(d),
                "simec": _prediction_errors(model, (train, test), (S.train, S.cross)),
            }
        )
    return {"rows": rows, "eigenvalues": found.values.tolist(), "ridge": chosen}


def figure8(digits: Digits, scale: Scale) -> Result:
    """Positive and negative part of the Simpson similarities as two relations."""
    S = simpson_similarities(digits)
    train, _ = _pixels(digits)
    S1, S2, found = split_similarity(S.train.astype(np.float64))
    # On one scale: S1 as large as S2.
    S1 = (S1 * (-found.values[-1] / found.values[0])).astype(np.float32)
    S2 = S2.astype(np.float32)
    positive = found.values[found.values > 0] * (-found.values[-1] / found.values[0])
    negative = -found.values[found.values < 0][::-1]
    average = combine_relations([S1, S2]) * float(negative[0])
    rows = []
    for d in scale.simpson_dims:
        row: Result = {
            "d": d,
            "reference": [float((v[d:] ** 2).sum()) / S1.size for v in (positive, negative)],
        }
        for name, goal in {
            "S1": S1,
            "S2": S2,
            "S1;S2": np.stack([S1, S2], axis=2),
            "S1+S2": average.astype(np.float32),
        }.items():
            model, _ = _timed(
                f"d = {d}, {name}",
                lambda goal=goal, d=d: _simpson_model(d, scale, 1e-4).fit(train, goal),
            )
            Y, W = model.transform(train), model.last_layer_
            layers = (W[..., 0], W[..., 1]) if W.ndim == 3 else (W, W)
            row[name] = [mean_squared(Y, w, s) for w, s in zip(layers, (S1, S2), strict=True)]
        rows.append(row)
    return {"rows": rows}


FIGURES: dict[str, tuple[Callable[[Digits, Scale], Result], str]] = {
    "fig3": (figure3, "digits"),
    "fig4": (figure4, "digits"),
    "fig5": (figure5, "digits"),
    "fig6": (figure6, "digits"),
    "fig7": (figure7, "zeros and sevens"),
    "fig8": (figure8, "zeros and sevens"),
}
