"""`SimEc`: factorise a matrix while learning the map from features to embeddings."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simrec.data.seeds import generator
from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec import options
from simrec.simec.closed_form import fit_closed_form, last_layer_from_columns
from simrec.simec.fitted import FittedSimEc
from simrec.simec.inputs import Features, Problem, Targets


@dataclass(repr=False, eq=False)
class SimEc(FittedSimEc):
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
    solver : {"closed_form", "lbfgs", "adam", "adamax", "adagrad", "rmsprop", "sgd"}
        "closed_form" solves a linear encoder by least squares, without TensorFlow: with a frozen
        `last_layer` exactly, else in `sweeps` over encoder and W_l. With bounds it fits what the
        inverse of the output makes of R. "lbfgs" takes all rows at once and counts `epochs` and
        `patience` as iterations. The others take batches.
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
    l2_embedding: float = 0.0
    l2_last: float = 0.0
    dropout: float = 0.0
    input_dropout: float = 0.0
    symmetric: float = 0.0
    symmetric_block: int = 1024
    self_similarity: float = 0.0
    orthogonal: float = 0.0
    decoder_weight: float = 0.0
    relation_weights: Sequence[float] | None = None
    n_targets: int | None = None
    target_choice: str = "first"
    init: str = "random"
    init_rows: int = 2000
    sweeps: int = 5
    ridge: float = 1e-5
    solver: str = "adam"
    learning_rate: float = 0.01
    schedule: str = "cosine"
    epochs: int = 50
    batch_size: int = 256
    validation_fraction: float = 0.0
    patience: int | None = None
    random_state: int = 0
    verbose: int = 0

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
            values = replace(chosen, matrix=chosen.matrix[rows]).values()
            output = Output.fit(self.bounds, float(values.mean(dtype=float)))
        problem = Problem(params, features, chosen, output, rows_of_targets, last_layer, start, rng)
        if self.solver == "closed_form":
            if validation_data is not None or callbacks or log_dir is not None:
                raise InputError(
                    "solver='closed_form' has no epochs to measure or call back at: leave out "
                    "validation_data, callbacks and log_dir"
                )
            self.encoder_, last = fit_closed_form(problem)
            self.decoder_, self.history_ = None, []
        else:
            from simrec.simec.training import fit_by_gradient

            held: Any = held_out
            if validation_data is not None:
                held = options.check_validation_data(
                    validation_data, features, chosen, columns, given.n_columns
                )
            network, self.history_ = fit_by_gradient(problem, rows, held, callbacks or (), log_dir)
            self.encoder_, self.decoder_ = network.encoder, network.decoder
            last = network.last.numpy()
        self.n_relations_ = chosen.n_relations
        self.last_layer_ = last_layer_from_columns(last, chosen.n_relations)
        self.output_, self.targets_ = output, columns
        self.feature_kind_, self.feature_shape_ = features.kind, features.shape
        return self

    def fit_transform(self, X: Any, R: Any) -> np.ndarray:
        """Fit and return the embeddings of the rows.

        Examples
        --------
        >>> SimEc(2, epochs=2).fit_transform(X, X @ X.T).shape
        (60, 2)
        """
        return self.fit(X, R).transform(X)
