"""`SimEc`: factorise a matrix while learning the map from features to embeddings."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import build, options
from simrec.simec.answers import BLOCK, Answers
from simrec.simec.inputs import Features, Targets
from simrec.simec.training import Batches, Schedule, train


class SimEc(Answers):
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
        Nonlinearity of the hidden layers.
    bias : bool
        Whether the encoder's layers have a bias.
    encoder : keras.Model or None
        An encoder of your own (Sequential or functional tf_keras model, ending in d linear
        units); its weights are the start, and it stays as it is.
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
        Most targets whose whole product is formed in each step; of more, the batch's rows.
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
        "least_squares" goes on from there in closed form, alternating between the encoder's last
        layer and W_l (squared error, no bounds).
    init_rows : int
        Size of that subsample.
    sweeps : int
        Rounds of least squares.
    ridge : float
        Ridge of the encoder's last layer in least squares, relative to its features' mean square.
    optimizer : {"adam", "adamax", "adagrad", "rmsprop", "sgd", "lbfgs"}
        "lbfgs" takes all rows at once and counts `epochs` as iterations.
    learning_rate : float
        Initial step size.
    schedule : {"cosine", "constant"}
        Whether the step size decays to zero over the epochs.
    epochs, batch_size : int
        Passes over the data (0 leaves it at a least-squares start); rows of a batch (where rows
        have the mean number of entries).
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
    history_ : dict of list
        Loss and errors by epoch.
    n_relations_ : int
        Number of relations k.

    Examples
    --------
    >>> import numpy as np
    >>> from simrec import SimEc
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = SimEc(embedding_dim=3, optimizer="lbfgs", epochs=200).fit(X, X @ X.T)
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
    ) -> "SimEc":
        """Learn encoder and last layer; an earlier fit is forgotten.

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
            Columns of R to train on: so many of the first, or those named. For some columns of a
            symmetric S, the rows that they are.
        validation_data : (X, R) or None
            Held-out rows to measure on, instead of `validation_fraction`.
        callbacks : sequence of keras.callbacks.Callback or None
            Passed on to Keras; the network's error is logged as "error" and "val_error".
        log_dir : path or None
            Where to write logs for TensorBoard.

        Returns
        -------
        SimEc
            Itself.
        """
        params = self.get_params()
        options.check_params(params)
        schedule = Schedule(
            self.optimizer,
            self.learning_rate,
            self.schedule,
            self.epochs,
            self.batch_size,
            self.patience,
            self.verbose,
        )
        schedule.check()
        rng = np.random.default_rng(self.random_state)
        given = Targets.check(R)
        features = Features.check(X, given.n_rows)
        options.check_features(params, features)
        goal, columns, rows_of_targets = options.choose_targets(params, given, targets, rng)
        options.check_bounds(self.bounds, goal)
        if validation_data is not None and self.validation_fraction:
            raise InputError("validation_data and validation_fraction both hold out rows: give one")
        rows, held = build.split_rows(goal, self.validation_fraction, rng)
        output = Output()
        if self.bounds is not None:
            output = Output.fit(self.bounds, float(goal.take(rows).values().mean(dtype=float)))
        weights = options.relation_column_weights(
            self.relation_weights, goal.n_relations, goal.n_columns
        )
        network = build.make_network(
            params, features, goal, output, rows_of_targets, last_layer, rng
        )
        densify = self.encoder is not None
        if self.init == "least_squares":
            from simrec.simec.least_squares import least_squares_start

            least_squares_start(
                network, features, goal, rows, rows_of_targets, self.sweeps, self.ridge, densify
            )
        validation = None
        if validation_data is not None:
            held_data = build.check_validation_data(
                validation_data, features, goal, columns, given.n_columns
            )
            validation = Batches(*held_data, BLOCK, weights, densify)
        elif len(held):
            validation = Batches(features, goal, BLOCK, weights, densify, rows=held)
        self.history_: dict[str, list[float]] = {"error": []}
        if self.epochs:
            self.history_ = train(
                network,
                Batches(features, goal, self.batch_size, weights, densify, rng, rows),
                validation,
                schedule,
                callbacks or (),
                None if log_dir is None else os.fspath(log_dir),
            )
        self.encoder_ = network.encoder
        self.decoder_ = network.decoder
        self.network_ = network
        self.last_layer_ = build.layer_of(network.last.numpy(), goal.n_relations)
        self.output_ = output
        self.targets_ = columns
        self.n_relations_ = goal.n_relations
        self.feature_kind_ = features.kind
        self.feature_shape_ = features.shape
        return self

    def fit_transform(self, X: Any, R: Any) -> np.ndarray:
        """Fit and return the embeddings of the rows."""
        return self.fit(X, R).transform(X)
