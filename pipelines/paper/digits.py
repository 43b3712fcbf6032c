"""The digits, their similarities, and what linear algebra makes of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.linalg import eigh


@dataclass(frozen=True)
class Digits:
    """Images as rows of numbers in 0..1, with labels, split into training and test."""

    name: str
    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both parts less the mean of the training images."""
        mean = self.train.mean(0)
        return self.train - mean, self.test - mean


def _split(name: str, images: np.ndarray, labels: np.ndarray, n: int | None) -> Digits:
    if n is not None and n < len(images):
        images, labels = images[:n], labels[:n]
    n_test = len(images) // 5
    return Digits(name, images[n_test:], labels[n_test:], images[:n_test], labels[:n_test])


def load(directory: Path | None, n: int | None = None) -> tuple[Digits, Digits]:
    """Return (all ten digits, zeros and sevens), from MNIST or scikit-learn's small digits."""
    if directory is not None:
        parts = []
        for file in ("mnist10k", "mnist07"):
            path = directory / f"{file}.npz"
            if not path.exists():
                raise SystemExit(f"{path} is missing: --mnist names the directory that holds it")
            with np.load(path, allow_pickle=False) as data:
                images = data["images"].reshape(len(data["images"]), -1) / np.float32(255)
                parts.append((images.astype(np.float32), data["labels"].astype(int)))
        name = "MNIST"
    else:
        from sklearn.datasets import load_digits

        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.data))
        images, labels = (data.data[order] / 16).astype(np.float32), data.target[order]
        some = np.isin(labels, (0, 7))
        parts = [(images, labels), (images[some], labels[some])]
        name = "scikit-learn digits"
    return _split(name, *parts[0], n), _split(f"{name}, 0 and 7", *parts[1], n and n // 2)


def centre(S: np.ndarray) -> np.ndarray:
    """Return S centred in feature space."""
    mean = S.mean(0, dtype=np.float64)
    return (S - mean[None] - mean[:, None] + mean.mean()).astype(np.float32)


@dataclass(frozen=True)
class Similarities:
    """Centred similarities: among training rows, of test to training rows, among test rows."""

    train: np.ndarray
    cross: np.ndarray
    test: np.ndarray

    @classmethod
    def centred(cls, train: np.ndarray, cross: np.ndarray, test: np.ndarray) -> "Similarities":
        """Centre all three by the training rows, as kernel PCA does with new points."""
        column, row = train.mean(0, dtype=np.float64), cross.mean(1, dtype=np.float64)
        total = column.mean()
        return cls(
            centre(train),
            (cross - row[:, None] - column[None] + total).astype(np.float32),
            (test - row[:, None] - row[None] + total).astype(np.float32),
        )


def class_similarities(digits: Digits) -> Similarities:
    """1 for a pair of the same digit, else 0; test pairs centred among themselves."""
    a, b = digits.train_labels, digits.test_labels
    cross = (b[:, None] == a[None]).astype(np.float32)
    new = (b[:, None] == b[None]).astype(np.float32)
    same = Similarities.centred((a[:, None] == a[None]).astype(np.float32), cross, new)
    return Similarities(same.train, same.cross, centre(new))


def rbf_similarities(digits: Digits) -> Similarities:
    """exp(-|x - x'|^2 / (2 median distance^2))."""
    train, test = digits.centred()
    squared = _squared_distances(train, train)
    some = squared[: len(train) // 4, len(train) // 4 : len(train) // 2]
    scale = 2 * np.median(np.sqrt(some)) ** 2
    cross = _squared_distances(test, train)
    parts = (squared, cross, _squared_distances(test, test))
    return Similarities.centred(*[np.exp(-part / scale) for part in parts])


def simpson_similarities(digits: Digits) -> Similarities:
    """Pixels set in both images over pixels set in the one that has fewer."""
    a, b = digits.train > 0.5, digits.test > 0.5

    def simpson(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        p, q = p.astype(np.float32), q.astype(np.float32)
        return (p @ q.T) / np.maximum(np.minimum(p.sum(1)[:, None], q.sum(1)[None]), 1)

    return Similarities.centred(simpson(a, a), simpson(b, a), simpson(b, b))


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * (a @ b.T)
    return np.maximum(squares, 0)


def mean_squared(Y: np.ndarray, W: np.ndarray, S: np.ndarray) -> float:
    """Return the mean squared difference of Y W and S, without forming the product.

    In double precision, so that the difference of large sums keeps its digits.
    """
    Y, W = np.asarray(Y, np.float64), np.asarray(W, np.float64)
    blocks = [slice(a, a + 1000) for a in range(0, len(S), 1000)]
    square = sum(float(np.square(S[b], dtype=np.float64).sum()) for b in blocks)
    cross = sum(float(((S[b].astype(np.float64) @ W.T) * Y[b]).sum()) for b in blocks)
    return max(square - 2 * cross + float(((Y.T @ Y) * (W @ W.T)).sum()), 0.0) / S.size


def top_eigen(S: np.ndarray, d: int, by_magnitude: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the d largest eigenvalues and their vectors."""
    from scipy.sparse.linalg import eigsh

    d = min(d, len(S) - 1)
    if d > len(S) // 3:
        values, vectors = eigh(S.astype(np.float64))
    else:
        start = np.random.default_rng(0).normal(size=len(S))
        which = "LM" if by_magnitude else "LA"
        values, vectors = eigsh(S, k=d, which=which, v0=start.astype(S.dtype))
    order = np.argsort(-(np.abs(values) if by_magnitude else values))[:d]
    return values[order], vectors[:, order]


def ridge(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray, alpha: float) -> tuple:
    """Return ridge regression's predictions of embeddings for training and test rows."""
    mean = Y.mean(0)
    weights = np.linalg.solve(X.T @ X + alpha * np.eye(X.shape[1]), X.T @ (Y - mean))
    return X @ weights + mean, X_test @ weights + mean
