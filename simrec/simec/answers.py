"""What a fitted similarity encoder answers: embeddings, predictions, similarities, reasons."""

import os
from typing import Any, TypeVar

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import relevance
from simrec.simec.inputs import Features
from simrec.simec.keras import tf
from simrec.simec.params import Params

T = TypeVar("T", bound="Answers")

# Rows encoded at a time by `transform`; bounds memory, changes no result.
BLOCK = 4096


class Answers(Params):
    """The methods of `SimEc` that need no training, over its learned attributes."""

    embedding_dim: int
    encoder: Any
    encoder_: Any
    decoder_: Any
    last_layer_: np.ndarray
    output_: Output
    n_relations_: int
    feature_kind_: str
    feature_shape_: tuple[int, ...]

    def transform(self, X: Any = None) -> np.ndarray:
        """Return the embeddings Y of feature rows (None: of the identity's rows)."""
        features = self._features(X)
        fetch = features.fetcher(densify=self.encoder is not None)
        blocks = [
            self.encoder_(fetch(tf.range(start, min(start + BLOCK, features.n_rows))))
            for start in range(0, features.n_rows, BLOCK)
        ]
        return tf.concat(blocks, 0).numpy()

    def products(self, X: Any = None) -> np.ndarray:
        """Return the scalar products Y W_l with the targets, before the output: m x n (x k)."""
        return np.tensordot(self.transform(X), self.last_layer_, axes=1)

    def predict(self, X: Any = None) -> np.ndarray:
        """Return g(Y W_l), the predicted targets of feature rows: m x n, or m x n x k."""
        return self.output_(self.products(X))

    def similarity(self, X1: Any = None, X2: Any = None) -> np.ndarray:
        """Return Y1 Y2^T, the similarity of rows to rows (`X2` None: of `X1` to itself)."""
        Y1 = self.transform(X1)
        return Y1 @ (Y1 if X2 is None else self.transform(X2)).T

    def inverse_transform(self, Y: np.ndarray) -> np.ndarray:
        """Return the features that the decoder gives for embeddings: their pre-images."""
        self._check_fitted()
        if self.decoder_ is None:
            raise InputError("there is no decoder: fit with decoder_weight > 0")
        Y = np.asarray(Y, dtype=np.float32)
        if Y.ndim != 2 or Y.shape[1] != self.embedding_dim:
            raise InputError(f"Y must be rows of {self.embedding_dim} numbers, got shape {Y.shape}")
        return self.decoder_(Y).numpy()

    def explain(
        self, X: Any, target: int, relation: int = 0, steps: int = 64
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what each feature contributes to the scalar product with one target.

        Exact for a linear encoder; integrated gradients from the zero vector for a deep one.

        Parameters
        ----------
        X : ndarray or scipy sparse matrix
            Feature rows.
        target : int
            Number of the target among those trained on.
        relation : int
            Which of k relations.
        steps : int
            Points of the integral, for a deep encoder.

        Returns
        -------
        relevance : ndarray
            As X, dense: the contribution of each feature.
        base : ndarray
            What is left for each row; relevance.sum() + base is the scalar product.
        """
        features = self._features(X)
        layer = self.last_layer_ if self.n_relations_ > 1 else self.last_layer_[..., None]
        if not 0 <= target < layer.shape[1]:
            raise InputError(f"target must be between 0 and {layer.shape[1] - 1}, got {target}")
        if not 0 <= relation < self.n_relations_:
            raise InputError(f"relation must be below {self.n_relations_}, got {relation}")
        return relevance.relevance(self.encoder_, features, layer[:, target, relation], steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a directory: no pickle, no code."""
        from simrec.simec import files as simec_files

        self._check_fitted()
        simec_files.save(self, path)

    @classmethod
    def load(cls: type[T], path: str | os.PathLike[str]) -> T:
        """Return a model written by `save`."""
        from simrec.simec import files as simec_files

        return simec_files.load(cls, path)

    def _check_fitted(self) -> None:
        if not hasattr(self, "encoder_"):
            raise InputError("this SimEc is not fitted yet: call fit first")

    def _features(self, X: Any) -> Features:
        self._check_fitted()
        if X is None and self.feature_kind_ != "identity":
            raise InputError("X is None, but the model was fitted on features")
        if X is not None and self.feature_kind_ == "identity":
            raise InputError(
                "the model was fitted with X=None (the identity): it takes no features"
            )
        features = Features.check(X, self.feature_shape_[0] if X is None else None)
        if features.shape != self.feature_shape_:
            raise InputError(
                f"a row of X has shape {features.shape}, but the model was fitted on "
                f"{self.feature_shape_}"
            )
        return features.as_kind(self.feature_kind_)
