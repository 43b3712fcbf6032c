"""`SimEc`: factorise a matrix while learning the map from features to embeddings."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from simrec.data.seeds import generator
from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.inputs import Features, Targets
from simrec.simec.keras import tf
from simrec.simec.network import build_network, last_layer_from_columns, set_start
from simrec.simec.params import Params, r_squared
from simrec.simec.relevance import relevance
from simrec.simec.training import Batches, Schedule, train

# Rows encoded at a time by `transform`; bounds memory, changes no result.
BLOCK = 4096


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
    l2, l2_embedding, l2_last : float
        Weight of the squares of the encoder's kernels, of the embeddings (mean over rows), and of
        W_l (mean over observed entries).
    dropout, input_dropout : float
        Share of hidden units and of input features dropped in training.
    symmetric : float
        Weight lambda of ``||S - W_l^T W_l||^2`` (mean over observed entries), for a symmetric S.
    symmetric_block : int
        With at most this many targets each step forms their whole product, with more only the
        rows of the batch.
    self_similarity : float
        Weight of ``||S - Y Y^T||^2`` over pairs of a batch, for a symmetric S.
    orthogonal : float
        Weight of the squared off-diagonal of ``W_l W_l^T``.
    decoder_weight : float
        Weight of the reconstruction of X by the mirrored encoder; enables `inverse_transform`.
    relation_weights : sequence of float or None
        Weight of each of k relations.
    n_targets : int or None
        Train on this many columns only.
    target_choice : {"first", "random"}
        Which columns `n_targets` takes.
    init : {"random", "spectral", "least_squares"}
        Start of W_l: small random numbers, or a truncated decomposition of a subsample of rows.
        "least_squares" starts from the decomposition and solves for the encoder's last layer and
        for W_l in turn (squared error, no bounds).
    init_rows : int
        Size of that subsample.
    sweeps : int
        Rounds of least squares.
    ridge : float
        Ridge of the encoder's last layer in least squares, relative to its features' mean square.
    optimizer : {"adam", "adamax", "adagrad", "rmsprop", "sgd", "lbfgs"}
        "lbfgs" takes all rows at once and counts `epochs` and `patience` as iterations.
    learning_rate : float
        Initial step size.
    schedule : {"cosine", "constant"}
        Whether the step size decays to zero over the epochs.
    epochs, batch_size : int
        Passes over the data (0 keeps the start as it is), and rows of a batch where
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
    encoder_, decoder_ : keras.Model
        The trained networks (`decoder_` None without `decoder_weight`).
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
    >>> model = SimEc(embedding_dim=3, optimizer="lbfgs", epochs=100).fit(X, X @ X.T)
    >>> model.transform(X[:4]).shape, model.predict(X[:4]).shape
    ((4, 3), (4, 60))
    """

    def __init__(
        self,
        embedding_dim: int = 16,
        hidden_layers: Sequence[int] = (),
        activation: str = "tanh",
        bias: bool = True,
        encoder: Any = None,
        bounds: tuple[float, float] | None = None,
        loss: str = "mse",
        l2: float = 0.0,
        l2_embedding: float = 0.0,
        l2_last: float = 0.0,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        symmetric: float = 0.0,
        symmetric_block: int = 1024,
        self_similarity: float = 0.0,
        orthogonal: float = 0.0,
        decoder_weight: float = 0.0,
        relation_weights: Sequence[float] | None = None,
        n_targets: int | None = None,
        target_choice: str = "first",
        init: str = "random",
        init_rows: int = 2000,
        sweeps: int = 5,
        ridge: float = 1e-5,
        optimizer: str = "adam",
        learning_rate: float = 0.01,
        schedule: str = "cosine",
        epochs: int = 50,
        batch_size: int = 256,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ):
        self.embedding_dim = embedding_dim
        self.hidden_layers = hidden_layers
        self.activation = activation
        self.bias = bias
        self.encoder = encoder
        self.bounds = bounds
        self.loss = loss
        self.l2 = l2
        self.l2_embedding = l2_embedding
        self.l2_last = l2_last
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.symmetric = symmetric
        self.symmetric_block = symmetric_block
        self.self_similarity = self_similarity
        self.orthogonal = orthogonal
        self.decoder_weight = decoder_weight
        self.relation_weights = relation_weights
        self.n_targets = n_targets
        self.target_choice = target_choice
        self.init = init
        self.init_rows = init_rows
        self.sweeps = sweeps
        self.ridge = ridge
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        R: Any,
        last_layer: np.ndarray | None = None,
        targets: int | Sequence[int] | np.ndarray | None = None,
        validation_data: tuple[Any, Any] | None = None,
        callbacks: Sequence[Any] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        start: tuple[Sequence[np.ndarray] | None, np.ndarray | None] | None = None,
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
        validation_data : (X, R) or None
            Held-out rows to measure on, instead of `validation_fraction`. Where X is None: None,
            and other entries of the same rows.
        callbacks : sequence of keras.callbacks.Callback or None
            Passed on to Keras; the network's error is logged as "error" and "val_error".
        log_dir : path or None
            Where to write logs for TensorBoard.
        start : (list of ndarray or None, ndarray or None), optional
            Where to begin: the weights of the encoder, in the order of Keras' ``get_weights()``,
            and W_l. What is None begins as `init` says.

        Returns
        -------
        SimEc
            Itself.

        Examples
        --------
        >>> SimEc(2, epochs=2).fit(X, X @ X.T, targets=20)
        <SimEc(embedding_dim=2, epochs=2) fitted to 5 features of each row and 20 targets>
        """
        params = self.get_params()
        options.check_params(params, start is not None)
        rng = generator(self.random_state)
        given = Targets.check(R)
        features = Features.check(X, given.n_rows)
        options.check_features(params, features)
        chosen, columns, rows_of_targets = options.choose_targets(params, given, targets, rng)
        options.check_bounds(self.bounds, chosen)
        if validation_data is not None and self.validation_fraction:
            raise InputError("validation_data and validation_fraction both hold out rows: give one")
        rows, held_out = options.split_rows(chosen, self.validation_fraction, rng)
        output = Output()
        if self.bounds is not None:
            output = Output.fit(self.bounds, float(chosen.take(rows).values().mean(dtype=float)))
        weights = options.relation_column_weights(
            self.relation_weights, chosen.n_relations, chosen.n_columns
        )
        network = build_network(params, features, chosen, output, rows_of_targets, last_layer, rng)
        if start is not None:
            set_start(network, *start, self.embedding_dim, chosen)
        densify = self.encoder is not None
        if self.init == "least_squares":
            from simrec.simec.least_squares import least_squares_start

            least_squares_start(
                network, features, chosen, rows, rows_of_targets, self.sweeps, self.ridge, densify
            )
        validation = None
        if validation_data is not None:
            held_out_data = options.check_validation_data(
                validation_data, features, chosen, columns, given.n_columns
            )
            validation = Batches(*held_out_data, BLOCK, weights, densify)
        elif len(held_out):
            validation = Batches(features, chosen, BLOCK, weights, densify, rows=held_out)
        self.history_: list[dict[str, float]] = []
        if self.epochs:
            self.history_ = train(
                network,
                Batches(features, chosen, self.batch_size, weights, densify, rng, rows),
                validation,
                Schedule.from_params(params),
                callbacks or (),
                None if log_dir is None else os.fspath(log_dir),
            )
        self.encoder_ = network.encoder
        self.decoder_ = network.decoder
        self.last_layer_ = last_layer_from_columns(network.last.numpy(), chosen.n_relations)
        self.output_ = output
        self.targets_ = columns
        self.n_relations_ = chosen.n_relations
        self.feature_kind_ = features.kind
        self.feature_shape_ = features.shape
        return self

    def fit_transform(self, X: Any, R: Any) -> np.ndarray:
        """Fit and return the embeddings of the rows.

        Examples
        --------
        >>> SimEc(2, epochs=2).fit_transform(X, X @ X.T).shape
        (60, 2)
        """
        return self.fit(X, R).transform(X)

    def transform(self, X: Any = None) -> np.ndarray:
        """Return the embeddings Y of feature rows (None: of the identity's rows).

        Examples
        --------
        >>> model.transform(X[:4]).shape
        (4, 3)
        """
        features = self._features(X)
        fetch = features.fetcher(densify=self.encoder is not None)
        blocks = [
            self.encoder_(fetch(tf.range(start, min(start + BLOCK, features.n_rows))))
            for start in range(0, features.n_rows, BLOCK)
        ]
        return tf.concat(blocks, 0).numpy()

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

    def inverse_transform(self, Y: np.ndarray) -> np.ndarray:
        """Return the features that the decoder gives for embeddings (their pre-images).

        Examples
        --------
        >>> both = SimEc(embedding_dim=3, decoder_weight=1.0, epochs=2).fit(X, X @ X.T)
        >>> both.inverse_transform(both.transform(X)).shape
        (60, 5)
        """
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
        return relevance(self.encoder_, features, layer[:, target, relation], steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a directory: no pickle, no code.

        Examples
        --------
        >>> model.save("simec")
        """
        from simrec.simec import files as simec_files

        self._check_fitted()
        simec_files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SimEc":
        """Return a model written by `save`; no code in it is run.

        Examples
        --------
        >>> model.save("simec")
        >>> np.array_equal(SimEc.load("simec").predict(X), model.predict(X))
        True
        """
        from simrec.simec import files as simec_files

        return simec_files.load(cls, path)

    def _fitted_to(self) -> str | None:
        if not hasattr(self, "encoder_"):
            return None
        shape = " x ".join(f"{n:,}" for n in self.feature_shape_)
        rows = "rows" if self.feature_kind_ == "identity" else "features of each row"
        # The encoder of a part, which was not fitted as a SimEc, has no targets of its own.
        targets = f" and {len(self.targets_):,} targets" if hasattr(self, "targets_") else ""
        return f"{shape} {rows}{targets}"

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
