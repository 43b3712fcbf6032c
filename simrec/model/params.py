"""Checks of the arguments of a `TwoTower`, before any table is read."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from simrec.data.seeds import check_seed
from simrec.errors import InputError

_LEAST = {"embedding_dim": 1, "epochs": 1, "folds": 2, "min_count": 1, "knots": 0}
_MAY_BE_NONE = ("embedding_dim", "epochs")


def check_params(params: Mapping[str, Any]) -> None:
    """Raise for arguments that are wrong whatever the data."""
    if params["method"] not in ("default", "simec"):
        raise InputError(f"method must be 'default' or 'simec', got {params['method']!r}.")
    output = params["rating_output"]
    if output not in ("auto", "identity", "sigmoid"):
        raise InputError(f"rating_output must be 'auto', 'identity' or 'sigmoid', got {output!r}.")
    if params["method"] == "simec" and output == "identity":
        raise InputError("rating_output: method='simec' has a sigmoid within the bounds.")
    widths = params["hidden_layers"]
    if not isinstance(widths, Sequence | np.ndarray) or not all(_whole(n, 1) for n in widths):
        raise InputError(f"hidden_layers must be widths from 1 on, got {widths!r}.")
    for name in ("item_encoder", "user_encoder"):
        if params[name] is None:
            continue
        if params["method"] != "simec":
            raise InputError(f"{name}: only method='simec' trains an encoder of your own.")
        if tuple(params["hidden_layers"]):
            raise InputError(f"{name} and hidden_layers both describe an encoder: give one.")
    for name, least in _LEAST.items():
        value = params[name]
        if not (value is None and name in _MAY_BE_NONE) and not _whole(value, least):
            raise InputError(f"{name} must be a whole number from {least} on, got {value!r}.")
    bounds = params["bounds"]
    if bounds is not None and not (
        isinstance(bounds, Sequence | np.ndarray)
        and len(bounds) == 2
        and all(isinstance(b, Real) for b in bounds)
        and bounds[0] <= bounds[1]
    ):
        raise InputError(f"bounds must be (lowest, highest), got {bounds!r}.")
    half_life = params["half_life"]
    if half_life is not None and half_life != "auto" and not _positive(half_life):
        raise InputError(
            f"half_life must be a number of days above 0, 'auto' or None; got {half_life!r}."
        )
    for name in ("item_columns", "user_columns"):
        if not isinstance(params[name], Mapping | None):
            raise InputError(f"{name} must name a kind for each column, got {params[name]!r}.")
    check_seed(params["random_state"])


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and 0 < value < np.inf


def _whole(value: Any, least: int) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and value >= least
