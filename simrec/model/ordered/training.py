"""Train a SimEc by L-BFGS from its start, for as long as held-out entities gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from simrec.model.run.progress import Step

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

# Shares of the penalties of the start that are tried.
_FACTORS = (1.0, 0.1, 0.01, 0.001)
# The next share is tried if the last one lowered the error this much, and training goes on for so
# many iterations without a gain.
_GAIN, _PATIENCE = 1e-3, 10
# Of all iterations whose error is within this share of the least, the first is taken: the least one
# is a draw among the last ones before the error rises, and with all rows it rises earlier.
_MARGIN = 1e-3


@dataclass(frozen=True, eq=False)
class Point:
    """Weights to begin from: of a linear encoder as Keras keeps them, and W_l unless frozen."""

    weights: list[np.ndarray]
    last_layer: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Start:
    """Where to begin, how strongly to regularise, and what is held out.

    Attributes
    ----------
    widths : numpy.ndarray or None
        Factor of each feature: one `l2` then holds each column as strongly as its penalty says.
    l2, l2_last : float
        Penalties of the encoder and of W_l.
    held : numpy.ndarray of bool
        What is held out to choose by: rows of R, or entries where there are no features.
    trial, final : Point
        The start that has not seen what is held out, and the one that has.
    """

    widths: np.ndarray | None
    l2: float
    l2_last: float
    held: np.ndarray
    trial: Point
    final: Point


@dataclass(frozen=True)
class Choice:
    """What held-out entities chose: iterations, the share of the penalties, and their RMSE."""

    iterations: int
    factor: float
    rmse: float


def train(
    simec: SimEc,
    X: sparse.csr_matrix | None,
    R: sparse.csr_matrix,
    start: Start,
    step: Step,
    last_layer: np.ndarray | None = None,
) -> tuple[SimEc, Choice]:
    """Train without what is held out until it gains no more, then with all for as long.

    Parameters
    ----------
    simec : SimEc
        Its options.
    X, R : csr_matrix
        Features, None for the identity, and targets.
    start : Start
        Where to begin.
    step : callable
        Called after each training.
    last_layer : numpy.ndarray, optional
        W_l, if it is frozen.
    """
    linear = not simec.hidden_layers and simec.encoder is None
    # A user's own encoder takes features as they are.
    widths = start.widths if simec.encoder is None else None
    if X is not None and widths is not None:
        X = sparse.csr_matrix(X @ sparse.diags_array(widths), dtype=np.float32)

    def fitted(factor: float, begin: Point, X: Any, R: Any, **more: Any) -> SimEc:
        options = {"l2": factor * start.l2, "l2_last": factor * start.l2_last, **more}
        held = options.pop("validation_data", None)
        made = type(simec)(**{**simec.get_params(), **options})
        weights = begin.weights if linear else None
        W = begin.last_layer if last_layer is None else None
        made.fit(X, R, last_layer=last_layer, validation_data=held, start=(weights, W))
        step()
        return made

    best = Choice(simec.epochs, 1.0, np.inf)
    kept, seen = _split(X, R, start.held)
    for factor in _FACTORS if start.held.any() else ():
        trial = fitted(factor, start.trial, *kept, validation_data=seen, patience=_PATIENCE)
        errors = np.sqrt([epoch["val_error"] for epoch in trial.history_])
        if errors.min() >= (1 - _GAIN) * best.rmse:
            break
        good = int(np.argmax(errors <= (1 + _MARGIN) * errors.min()))
        best = Choice(good, factor, float(errors[good]))
    found = fitted(best.factor, start.final, X, R, epochs=best.iterations)
    if widths is not None:  # into the encoder, which then takes features as they are
        first, *others = found.encoder_.get_weights()
        found.encoder_.set_weights([first * widths[:, None], *others])
    return found, best


def _split(
    X: sparse.csr_matrix | None, R: sparse.csr_matrix, held: np.ndarray
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return (X, R) without and with what is held out: rows, or entries of the identity's rows."""
    if X is not None:
        return (X[~held], R[~held]), (X[held], R[held])
    return (None, entries(R, ~held)), (None, entries(R, held))


def entries(R: sparse.csr_matrix, keep: np.ndarray) -> sparse.csr_matrix:
    """Return R with only some of its stored entries."""
    pairs = R.tocoo()
    chosen = (pairs.data[keep], (pairs.row[keep], pairs.col[keep]))
    return sparse.csr_matrix(chosen, shape=R.shape)
