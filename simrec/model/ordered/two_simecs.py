"""Two similarity encoders, one after the other, and a scalar product.

A first SimEc is trained on item features to factorise R (items x users) with a masked loss and a
bounded output. A second SimEc learns user features against R^T with its last layer frozen to the
item embeddings. The two feed a scalar product: r_ui = g(y_user . y_item).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.ordered.start import identity_start, item_start, user_start
from simrec.model.ordered.training import Choice, train
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.progress import Step
from simrec.model.run.workers import ONE_WORKER, Workers
from simrec.model.simecs import agreed

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# The stage of a fit whose state is kept here, and what training has chosen of a SimEc's options.
_STAGE = "item SimEc"
_CHOSEN_OPTIONS = ("l2", "l2_last", "epochs")


@dataclass(frozen=True, eq=False)
class Inputs:
    """The features of one side, and the encoder that reads them.

    Attributes
    ----------
    X : csr_matrix
        A row of features for each entity; no columns where there are none.
    groups : numpy.ndarray
        For each feature, the number of the column of the table that it comes from.
    hidden_layers : tuple of int
        Widths of the encoder's hidden layers; none for a linear one.
    encoder : keras.Model or None
        An encoder of the user's own instead.
    """

    X: sparse.csr_matrix
    groups: np.ndarray
    hidden_layers: tuple[int, ...] = ()
    encoder: Any = None

    @property
    def simec_options(self) -> dict[str, Any]:
        """What a `SimEc` is told of the encoder."""
        return {"hidden_layers": self.hidden_layers, "encoder": self.encoder}


@dataclass(eq=False)
class TwoSimEcs:
    """The fitted pair, and what was chosen on held-out entities."""

    items: SimEc
    users: SimEc
    chosen: Sides[Choice]


def fit_two_simecs(
    R: sparse.csr_matrix,
    inputs: Sides[Inputs],
    bounds: tuple[float, float],
    embedding_dim: int,
    epochs: int,
    rng: np.random.Generator,
    steps: Sides[Step],
    workers: Workers = ONE_WORKER,
    checkpoint: Checkpoint | None = None,
) -> TwoSimEcs:
    """Fit the item SimEc, then the user SimEc against its embeddings.

    Parameters
    ----------
    R : csr_matrix
        Items x users; what is stored is observed.
    inputs : Sides of Inputs
        Features and encoders.
    bounds : (float, float)
        Range of the predictions.
    embedding_dim : int
        Size of the embeddings.
    epochs : int
        Most iterations of L-BFGS for each of the two.
    rng : numpy.random.Generator
        Source of starts and of held-out entities.
    steps : Sides of callable
        Called after each training of the item SimEc, and of the user SimEc.
    workers : Workers
        Workers that all do the same; the first one's weights count.
    checkpoint : Checkpoint, optional
        Where to keep the item SimEc, and to go on from.
    """
    from simrec.simec.simec import SimEc

    shared: dict[str, Any] = {
        "embedding_dim": embedding_dim,
        "bounds": bounds,
        "optimizer": "lbfgs",
        "epochs": epochs,
        "random_state": int(rng.integers(2**31)),
    }

    # 1. Item features -> R. Without features X is the identity: an embedding for each item.
    X, start = inputs.items.X, item_start
    if not X.shape[1]:
        X, start = None, identity_start
    first = SimEc(**shared, **inputs.items.simec_options)
    kept = None if checkpoint is None else _kept_items(checkpoint, first, X, R, rng)
    if kept is None:
        begin = start(R, inputs.items, bounds, embedding_dim, rng)
        items, item_choice = train(first, X, R, begin, steps.items)
        items = agreed(items, workers)
        if checkpoint is not None:
            _keep_items(checkpoint, items, item_choice, rng)
    else:
        items, item_choice = kept

    # 2. User features -> R^T, W_l frozen to the item embeddings. Without features the encoder reads
    # a constant: an average user.
    Y = items.transform(X)
    RT, X_users = sparse.csr_matrix(R.T), features_or_constant(inputs.users.X)
    second = SimEc(**shared, **inputs.users.simec_options)
    begin = user_start(RT, X_users, inputs.users.groups, Y, items.output_, rng)
    users, user_choice = train(second, X_users, RT, begin, steps.users, last_layer=Y.T)

    # 3. The scorer: g(y_user . y_item).
    return TwoSimEcs(items, agreed(users, workers), Sides(item_choice, user_choice))


def _keep_items(
    checkpoint: Checkpoint, items: SimEc, choice: Choice, rng: np.random.Generator
) -> None:
    """Write a checkpoint between the item SimEc and the user SimEc."""
    state = {
        "chosen": [choice.iterations, choice.factor, _number_or_none(choice.rmse)],
        "options": {name: getattr(items, name) for name in _CHOSEN_OPTIONS},
        "history": items.history_,
        "rng": rng.bit_generator.state,
    }
    networks = {"encoder": items.encoder_.get_weights()}
    last_layer = np.ascontiguousarray(items.last_layer_)
    started = time.perf_counter()
    checkpoint.write(_STAGE, {"last_layer": last_layer}, state, started, networks=networks)


def _kept_items(
    checkpoint: Checkpoint,
    simec: SimEc,
    X: sparse.csr_matrix | None,
    R: sparse.csr_matrix,
    rng: np.random.Generator,
) -> tuple[SimEc, Choice] | None:
    """Take over what `_keep_items` has written, if anything."""
    saved = checkpoint.read(_STAGE)
    if saved is None:
        return None
    state, weights = saved.documents["state"], saved.keras_weights["encoder"]
    items = type(simec)(**{**simec.get_params(), **state["options"], "epochs": 0})
    items.fit(X, R, start=(weights, np.array(saved.arrays["last_layer"])))  # of no epochs
    items.epochs, items.history_ = state["options"]["epochs"], state["history"]
    rng.bit_generator.state = state["rng"]
    iterations, factor, rmse = state["chosen"]
    return items, Choice(iterations, factor, np.inf if rmse is None else rmse)


def _number_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def features_or_constant(X: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return feature rows, or a constant where there are no features."""
    return X if X.shape[1] else sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
