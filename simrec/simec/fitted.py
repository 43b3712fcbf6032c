"""A fitted `SimEc`: what it answers, and the directory it is kept in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.inputs import Features, Targets
from simrec.simec.options import Params, r_squared


@dataclass(frozen=True, eq=False)
class LinearEncoder:
    """Embed feature rows by ``x @ kernel + bias``, and the identity by the rows of the kernel."""

    kind: str
    kernel: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, features: Features) -> np.ndarray:
        """Return the embeddings of checked feature rows."""
        if self.kind == "identity":
            return self.kernel[: features.n_rows].copy()
        found = features.data @ self.kernel
        return np.asarray(found if self.bias is None else found + self.bias, np.float32)

    def network(self) -> Any:
        """Return the same encoder as a Keras model."""
        from simrec.simec.encoders import DenseStack

        n, d = self.kernel.shape
        stack = DenseStack(self.kind, n, (d,), bias=self.bias is not None)
        model = stack.build(np.random.default_rng(0))
        model.set_weights([self.kernel] if self.bias is None else [self.kernel, self.bias])
        return model


class FittedSimEc(Params):
    """The attributes and answers of a fitted model; `SimEc` describes them."""

    embedding_dim: int
    encoder: Any
    solver: str
    last_layer_: np.ndarray
    output_: Output
    targets_: np.ndarray
    n_relations_: int
    feature_kind_: str
    feature_shape_: tuple[int, ...]
    history_: list[dict[str, float]]
    _linear: Any = None

    @property
    def encoder_(self) -> Any:
        """The trained encoder as a Keras model.

        Examples
        --------
        >>> model.encoder_.output_shape
        (None, 3)
        """
        if "_network" not in self.__dict__:
            if self._linear is None:
                raise AttributeError("this SimEc is not fitted yet: call fit first")
            self._network = self._linear.network()
        return self._network

    @encoder_.setter
    def encoder_(self, encoder: Any) -> None:
        self.__dict__.pop("_network", None)
        # A Keras model, or an encoder without TensorFlow that can become one.
        self._linear = encoder if hasattr(encoder, "network") else None
        if self._linear is None:
            self._network = encoder
            if self.solver == "closed_form":  # one that was loaded
                self._linear = LinearEncoder(encoder.stack.features, *encoder.get_weights())

    def transform(self, X: Any = None) -> np.ndarray:
        """Return the embeddings Y of feature rows (None: of the identity's rows).

        Examples
        --------
        >>> model.transform(X[:4]).shape
        (4, 3)
        """
        return self._embed(self._features(X))

    def _embed(self, features: Features) -> np.ndarray:
        if self._linear is not None:
            return self._linear(features)
        from simrec.simec.training import embed

        return embed(self.encoder_, features, self.encoder is not None)

    def products(self, X: Any = None) -> np.ndarray:
        """Return the scalar products Y W_l with the targets, before the output: m x n (x k).

        Examples
        --------
        >>> np.allclose(model.products(X), model.transform(X) @ model.last_layer_, atol=1e-5)
        True
        """
        return np.tensordot(self.transform(X), self.last_layer_, axes=1)

    def predict(self, X: Any = None) -> np.ndarray:
        """Return g(Y W_l), the predicted targets of feature rows: m x n, or m x n x k.

        Examples
        --------
        >>> model.predict(X[:4]).shape
        (4, 60)
        """
        return self.output_(self.products(X))

    def score(self, X: Any, R: Any) -> float:
        """Return the share of the variance of the observed entries that is explained (R^2).

        `R` is as in `fit`, with all of its columns or those that were trained on.

        Examples
        --------
        >>> 0.5 < model.score(X, X @ X.T) < 1
        True
        """
        self._check_fitted()
        given, n = Targets.check(R), len(self.targets_)
        if given.n_columns != n and given.n_columns > self.targets_.max():
            given = given.select_columns(self.targets_)
        found = self.predict(X)
        if (len(found), n, self.n_relations_) != (given.n_rows, given.n_columns, given.n_relations):
            raise InputError(
                f"R is {given.n_rows} x {given.n_columns} x {given.n_relations}, but the "
                f"predictions are {len(found)} x {n} x {self.n_relations_}"
            )
        if self.n_relations_ > 1:
            found = np.moveaxis(found, 2, 1).reshape(len(found), -1)
        if given.sparse:
            rows = np.repeat(np.arange(given.n_rows), given.counts())
            return r_squared(given.values(), found[rows, given.matrix.indices])
        return r_squared(given.values(), found[~np.isnan(given.matrix)])

    def similarity(self, X1: Any = None, X2: Any = None) -> np.ndarray:
        """Return Y1 Y2^T, the similarity of rows to rows (`X2` None: of `X1` to itself).

        Examples
        --------
        >>> model.similarity(X[:4], X[4:6]).shape
        (4, 2)
        """
        Y1 = self.transform(X1)
        return Y1 @ (Y1 if X2 is None else self.transform(X2)).T

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
            Position of the target among those trained on.
        relation : int
            Which of k relations.
        steps : int
            Points at which a deep encoder's gradient is taken.

        Returns
        -------
        relevance : ndarray
            The contribution of each feature, a dense array of the shape of X.
        base : ndarray
            The rest of each row: relevance.sum() + base is the scalar product.

        Examples
        --------
        >>> relevance, base = model.explain(X, target=0)
        >>> np.allclose(relevance.sum(1) + base, model.products(X)[:, 0], atol=1e-4)
        True
        """
        features = self._features(X)
        layer = self.last_layer_ if self.n_relations_ > 1 else self.last_layer_[..., None]
        if not 0 <= target < layer.shape[1]:
            raise InputError(f"target must be between 0 and {layer.shape[1] - 1}, got {target}")
        if not 0 <= relation < self.n_relations_:
            raise InputError(f"relation must be below {self.n_relations_}, got {relation}")
        return self._relevance(features, layer[:, target, relation], steps)

    def explain_similarity(
        self, X1: Any, X2: Any, steps: int = 64
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each feature of two rows contributes to their similarity y_1 . y_2.

        What a feature of one row and a feature of the other make together belongs to both, half
        each (their Shapley values). Exact for a linear encoder; integrated gradients from the zero
        vector, with the other row's embedding fixed, for a deep one.

        Parameters
        ----------
        X1, X2 : ndarray or scipy sparse matrix
            As many rows each, compared pair by pair; or a single row without the first axis.
        steps : int
            Points at which a deep encoder's gradient is taken.

        Returns
        -------
        relevance_1, relevance_2 : ndarray
            The contribution of each feature, dense arrays of the shapes of X1 and X2.
        base : ndarray
            The rest of each pair, which comes from the encoder's bias: both sums and the base add
            up to the similarity.

        Examples
        --------
        >>> one, other, base = model.explain_similarity(X[:4], X[4:8])
        >>> total = one.sum(1) + other.sum(1) + base
        >>> np.allclose(total, np.diag(model.similarity(X[:4], X[4:8])), atol=1e-4)
        True
        """
        self._check_fitted()
        single = np.ndim(X1) == np.ndim(X2) == len(self.feature_shape_)
        pair = [self._features(np.asarray(X)[None] if single else X) for X in (X1, X2)]
        if pair[0].n_rows != pair[1].n_rows:
            raise InputError(
                f"X1 and X2 are compared row by row, but have {pair[0].n_rows} and "
                f"{pair[1].n_rows} rows"
            )
        Y1, Y2 = map(self._embed, pair)
        one, base_1 = self._relevance(pair[0], Y2, steps)
        other, base_2 = self._relevance(pair[1], Y1, steps)
        one, other, base = one / 2, other / 2, (base_1 + base_2) / 2
        return (one[0], other[0], base[0]) if single else (one, other, base)

    def _relevance(self, features: Features, w: np.ndarray, steps: int) -> Any:
        from simrec.simec.encoders import relevance

        if self.encoder is not None:  # an encoder of the user's takes dense rows
            features = features.as_kind("dense")
        return relevance(self.encoder_, features, w, steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a directory: no pickle, no code.

        Examples
        --------
        >>> model.save("simec")
        """
        from simrec.simec.files import save

        self._check_fitted()
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a model written by `save`; no code in it is run.

        Examples
        --------
        >>> model.save("simec")
        >>> np.array_equal(SimEc.load("simec").predict(X), model.predict(X))
        True
        """
        from simrec.simec.files import load

        return load(cls, path)

    def _fitted_to(self) -> str | None:
        if self._linear is None and "_network" not in self.__dict__:
            return None
        shape = " x ".join(f"{n:,}" for n in self.feature_shape_)
        rows = "rows" if self.feature_kind_ == "identity" else "features of each row"
        # The encoder of a part, which was not fitted as a SimEc, has no targets of its own.
        targets = f" and {len(self.targets_):,} targets" if hasattr(self, "targets_") else ""
        return f"{shape} {rows}{targets}"

    def _check_fitted(self) -> None:
        if self._fitted_to() is None:
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
