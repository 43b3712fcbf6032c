"""`SimEc`: factorise a matrix while learning the map from features to embeddings."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from simrec.errors import InputError, check_seed
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.closed_form import LinearEncoder, fit_closed_form
from simrec.simec.inputs import Features, Problem, Targets
from simrec.simec.options import Params


@dataclass(repr=False, eq=False)
class SimEc(Params):
    """Similarity encoder: embeddings y = f'(x) and a last layer W_l with g(Y W_l) ~ R.

    The loss is the mean over the observed entries of R, plus the terms whose weights are given;
    docs/simec.md has every formula.

    Parameters
    ----------
    embedding_dim : int
        Size d of the embedding.
    hidden_layers : sequence of int
        Widths of the encoder's hidden layers; none for a linear encoder.
    activation : str
        Nonlinearity of the hidden layers, by its Keras name.
    bias : bool
        Whether the encoder's layers have a bias.
    encoder : keras.Model or None
        An encoder of your own: a Sequential or functional tf_keras model that ends in d linear
        units. A copy is trained from its weights; the model itself stays as it is.
    bounds : (float, float) or None
        Range of the predictions; None for the scalar product itself.
    loss : {"mse", "mae", "bce"}
        Pointwise loss; cross-entropy needs bounds.
    l2 : float
        Weight of the squares of the encoder's kernels.
    dropout, input_dropout : float
        Share of hidden units and of input features dropped in training.
    symmetric : float
        Weight lambda of ``||S - W_l^T W_l||^2``, for a symmetric S; with missing entries only in
        least squares.
    self_similarity : float
        Weight of ``||S - Y Y^T||^2`` over pairs of a batch, for a complete symmetric S.
    init : {"random", "spectral", "least_squares"}
        Start of W_l: small random numbers, or a truncated decomposition of a subsample of rows.
        "least_squares" starts from the decomposition and solves for the encoder's last layer and
        for W_l in turn (squared error, no bounds).
    sweeps : int
        Rounds of least squares.
    ridge : float
        Ridge of the encoder's last layer in least squares, relative to its features' mean square.
    solver : {"closed_form", "lbfgs", "adam"}
        "closed_form" solves a linear encoder by least squares, without TensorFlow: with a frozen
        `last_layer` exactly, else in `sweeps` over encoder and W_l. With bounds it fits what the
        inverse of the output makes of R. "lbfgs" takes all rows at once and counts `epochs` as
        iterations. "adam" takes batches.
    learning_rate : float
        Initial step size; it decays to zero over the epochs, as a cosine.
    epochs, batch_size : int
        Passes over the data (0 keeps the start of "least_squares"), and rows of a batch where
        rows have the mean number of entries.
    validation_fraction : float
        Share of rows held out whole, on which to measure and stop early.
    patience : int or None
        Epochs without improvement on the held-out rows before stopping; the best weights are kept.
    random_state : int
        Seed of everything random; same seed, same machine, same model.
    verbose : int
        As in Keras: 0 silent, 1 a progress bar, 2 a line per epoch.

    Attributes
    ----------
    last_layer_ : ndarray
        W_l, d x n, or d x n x k for several relations.
    output_ : Output
        g.
    targets_ : ndarray
        The columns of R that were trained on.
    history_ : list of dict
        Loss and errors of each epoch.
    n_relations_ : int
        Number of relations k.

    Examples
    --------
    Those of the methods go on from this one.

    >>> import numpy as np
    >>> from simrec import SimEc
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = SimEc(embedding_dim=3, solver="lbfgs", epochs=100).fit(X, X @ X.T)
    >>> model.transform(X[:4]).shape, model.predict(X[:4]).shape
    ((4, 3), (4, 60))
    """

    embedding_dim: int = 16
    hidden_layers: Sequence[int] = ()
    activation: str = "tanh"
    bias: bool = True
    encoder: Any = None
    bounds: tuple[float, float] | None = None
    loss: str = "mse"
    l2: float = 0.0
    dropout: float = 0.0
    input_dropout: float = 0.0
    symmetric: float = 0.0
    self_similarity: float = 0.0
    init: str = "random"
    sweeps: int = 5
    ridge: float = 1e-5
    solver: str = "adam"
    learning_rate: float = 0.01
    epochs: int = 50
    batch_size: int = 256
    validation_fraction: float = 0.0
    patience: int | None = None
    random_state: int = 0
    verbose: int = 0
    last_layer_: np.ndarray = field(init=False)
    output_: Output = field(init=False)
    targets_: np.ndarray = field(init=False)
    n_relations_: int = field(init=False)
    feature_kind_: str = field(init=False)
    feature_shape_: tuple[int, ...] = field(init=False)
    history_: list[dict[str, float]] = field(init=False)
    _linear: Any = field(default=None, init=False)

    def fit(
        self,
        X: Any,
        R: Any,
        last_layer: np.ndarray | None = None,
        targets: int | Sequence[int] | np.ndarray | None = None,
    ) -> "SimEc":
        """Fit encoder and last layer; an earlier fit is forgotten.

        Parameters
        ----------
        X : ndarray, scipy sparse matrix or None
            A row of features per row of R; None for the identity.
        R : scipy sparse matrix, ndarray, or sequence of scipy sparse matrices
            Targets: m x n, or m x n x k (or k sparse matrices). Observed is what is stored in a
            sparse one (an explicit 0 included) and what is not NaN in a dense one.
        last_layer : ndarray or None
            W_l, d x n (x k): used as it is and not trained.
        targets : int, sequence of int or None
            Columns of R to train on: the first so many, or those listed. Where R is already some
            columns of a symmetric S, the rows that these columns belong to.

        Examples
        --------
        >>> SimEc(2, epochs=2).fit(X, X @ X.T, targets=20)
        <SimEc(embedding_dim=2, epochs=2) fitted to 5 features of each row and 20 targets>
        """
        params = self.get_params()
        options.check_params(params)
        rng = np.random.default_rng(check_seed(self.random_state))
        given = Targets.check(R)
        features = Features.check(X, given.n_rows)
        options.check_features(params, features)
        chosen, columns, rows_of_targets = options.choose_targets(params, given, targets, rng)
        options.check_bounds(self.bounds, chosen)
        rows, held_out = options.split_rows(chosen, self.validation_fraction, rng)
        output = Output()
        if self.bounds is not None:
            values = replace(chosen, matrix=chosen.matrix[rows]).values()
            output = Output.fit(self.bounds, float(values.mean(dtype=float)))
        problem = Problem(params, features, chosen, output, rows_of_targets, last_layer, rng)
        if self.solver == "closed_form":
            self.encoder_, last = fit_closed_form(problem)
            self.history_ = []
        else:
            from simrec.simec.training import fit_by_gradient

            network, self.history_ = fit_by_gradient(problem, rows, held_out)
            self.encoder_, last = network.encoder, network.last.numpy()
        self.n_relations_ = k = chosen.n_relations
        self.last_layer_ = last.T
        if k > 1:  # the network keeps (k n) x d rows
            self.last_layer_ = last.reshape(k, -1, last.shape[1]).transpose(2, 1, 0)
        self.output_, self.targets_ = output, columns
        self.feature_kind_, self.feature_shape_ = features.kind, features.shape
        return self

    @property
    def encoder_(self) -> Any:
        """The trained encoder as a Keras model.

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

        >>> np.allclose(model.products(X), model.transform(X) @ model.last_layer_, atol=1e-5)
        True
        """
        return np.tensordot(self.transform(X), self.last_layer_, axes=1)

    def predict(self, X: Any = None) -> np.ndarray:
        """Return g(Y W_l), the predicted targets of feature rows: m x n, or m x n x k.

        >>> model.predict(X[:4]).shape
        (4, 60)
        """
        return self.output_(self.products(X))

    def similarity(self, X1: Any = None, X2: Any = None) -> np.ndarray:
        """Return Y1 Y2^T, the similarity of rows to rows (`X2` None: of `X1` to itself).

        >>> model.similarity(X[:4], X[4:6]).shape
        (4, 2)
        """
        Y1 = self.transform(X1)
        return Y1 @ (Y1 if X2 is None else self.transform(X2)).T

    def explain(self, X: Any, target: int, relation: int = 0) -> tuple[np.ndarray, np.ndarray]:
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
        return self._relevance(features, layer[:, target, relation])

    def explain_similarity(self, X1: Any, X2: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what each feature of two rows contributes to their similarity y_1 . y_2.

        What a feature of one row and a feature of the other make together belongs to both, half
        each (their Shapley values). Exact for a linear encoder; integrated gradients from the zero
        vector, with the other row's embedding fixed, for a deep one.

        Parameters
        ----------
        X1, X2 : ndarray or scipy sparse matrix
            As many rows each, compared pair by pair; or a single row without the first axis.

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
        one, base_1 = self._relevance(pair[0], Y2)
        other, base_2 = self._relevance(pair[1], Y1)
        one, other, base = one / 2, other / 2, (base_1 + base_2) / 2
        return (one[0], other[0], base[0]) if single else (one, other, base)

    def _relevance(self, features: Features, w: np.ndarray) -> Any:
        from simrec.simec.encoders import relevance

        if self.encoder is not None:  # an encoder of the user's takes dense rows
            features = features.as_kind("dense")
        return relevance(self.encoder_, features, w)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a directory: no pickle, no code.

        >>> model.save("simec")
        """
        from simrec.simec.files import save

        self._check_fitted()
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a model written by `save`; no code in it is run.

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
        # The encoder of a part has no targets of its own.
        targets = f" and {len(self.targets_):,} targets" if hasattr(self, "targets_") else ""
        return f"{shape} {rows}{targets}"

    def _check_fitted(self) -> None:
        if self._fitted_to() is None:
            raise InputError("this SimEc is not fitted yet: call fit first")

    def _features(self, X: Any) -> Features:
        self._check_fitted()
        return Features.like_fitted(X, self.feature_kind_, self.feature_shape_)
