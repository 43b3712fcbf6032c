"""Two similarity encoders, one after the other, and a scalar product.

A first SimEc is trained on item features to factorise R (items x users) with a masked loss and a
bounded output. A second SimEc learns user features against R^T with its last layer frozen to the
item embeddings. The two feed a scalar product: r_ui = g(y_user . y_item).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.data.sides import Sides
from simrec.model.ordered.start import identity_start, item_start, user_start
from simrec.model.ordered.training import Choice, train
from simrec.model.run.progress import Step

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc


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
    begin = start(R, inputs.items, bounds, embedding_dim, rng)
    items, item_choice = train(first, X, R, begin, steps.items)

    # 2. User features -> R^T, W_l frozen to the item embeddings. Without features the encoder reads
    # a constant: an average user.
    Y = items.transform(X)
    RT, X_users = sparse.csr_matrix(R.T), features_or_constant(inputs.users.X)
    second = SimEc(**shared, **inputs.users.simec_options)
    begin = user_start(RT, X_users, inputs.users.groups, Y, items.output_, rng)
    users, user_choice = train(second, X_users, RT, begin, steps.users, last_layer=Y.T)

    # 3. The scorer: g(y_user . y_item).
    return TwoSimEcs(items, users, Sides(item_choice, user_choice))


def features_or_constant(X: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return feature rows, or a constant where there are no features."""
    return X if X.shape[1] else sparse.csr_matrix(np.ones((X.shape[0], 1), np.float32))
