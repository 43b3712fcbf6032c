"""`SimEc`: factorise a matrix while learning the map from features to embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simrec.errors import InputError, check_seed
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
    l2 : float
        Weight of the squares of the encoder's kernels.
    dropout, input_dropout : float
        Share of hidden units and of input features dropped in training.
    symmetric : float
        Weight lambda of ``||S - W_l^T W_l||^2`` (mean over observed entries), for a symmetric S.
    self_similarity : float
        Weight of ``||S - Y Y^T||^2`` over pairs of a batch, for a symmetric S.
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
    encoder_ : keras.Model
        The trained encoder.
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

    def fit(
        self,
        X: Any,
        R: Any,
        last_layer: np.ndarray | None = None,
        targets: int | Sequence[int] | np.ndarray | None = None,
        callbacks: Sequence[Any] = (),
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
        callbacks : sequence of keras.callbacks.Callback
            Passed on to Keras by "adam"; the error is logged as "error" and "val_error".

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
        options.check_params(params)
        rng = np.random.default_rng(check_seed(self.random_state))
        given = Targets.check(R)
        features = Features.check(X, given.n_rows)
        options.check_features(params, features)
        chosen, columns, rows_of_targets = options.choose_targets(params, given, targets, rng)
        options.check_bounds(self.bounds, chosen)
        if callbacks and self.solver != "adam":
            raise InputError(f"solver={self.solver!r} has no epochs to call back at: use 'adam'")
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

            network, self.history_ = fit_by_gradient(problem, rows, held_out, callbacks)
            self.encoder_, last = network.encoder, network.last.numpy()
        self.n_relations_ = chosen.n_relations
        self.last_layer_ = last_layer_from_columns(last, chosen.n_relations)
        self.output_, self.targets_ = output, columns
        self.feature_kind_, self.feature_shape_ = features.kind, features.shape
        return self
