"""Checks of a similarity encoder's options against each other and against the data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError
from simrec.simec.encoders import check_hidden_layers
from simrec.simec.initial import INITS
from simrec.simec.inputs import Features, Targets, check_columns
from simrec.simec.losses import check_loss

_NOT_NEGATIVE = (
    "l2",
    "l2_embedding",
    "l2_last",
    "symmetric",
    "self_similarity",
    "orthogonal",
    "decoder_weight",
    "ridge",
)
_SAMPLE = 1500
_SHARES = ("dropout", "input_dropout", "validation_fraction")


def check_params(params: Mapping[str, Any]) -> None:
    """Raise for an option that no data could make right."""
    d = params["embedding_dim"]
    if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
        raise InputError(f"embedding_dim must be a positive integer, got {d!r}")
    check_hidden_layers(params["hidden_layers"])
    bounds = params["bounds"]
    if bounds is not None and (len(bounds) != 2 or not bounds[0] < bounds[1]):
        raise InputError(f"bounds must be (low, high) with low < high, got {bounds!r}")
    check_loss(params["loss"], bounds)
    for name in _NOT_NEGATIVE:
        if not (np.isfinite(params[name]) and params[name] >= 0):
            raise InputError(f"{name} must be zero or positive, got {params[name]!r}")
    for name in _SHARES:
        if not 0 <= params[name] < 1:
            raise InputError(f"{name} must be at least 0 and below 1, got {params[name]!r}")
    if params["init"] not in INITS:
        raise InputError(f"init must be one of {', '.join(INITS)}, got {params['init']!r}")
    if params["epochs"] == 0 and params["init"] != "least_squares":
        raise InputError("epochs=0 trains nothing: give epochs, or init='least_squares'")
    if params["init"] == "least_squares" and (
        params["loss"] != "mse" or params["bounds"] is not None
    ):
        raise InputError("init='least_squares' needs loss='mse' and no bounds")
    if params["init"] == "least_squares" and params["relation_weights"] is not None:
        raise InputError("init='least_squares' weighs all relations alike: use init='spectral'")
    if params["target_choice"] not in ("first", "random"):
        raise InputError(
            f"target_choice must be 'first' or 'random', got {params['target_choice']!r}"
        )
    for name in ("symmetric_block", "init_rows", "sweeps"):
        least = 1 if name == "sweeps" else 2
        if int(params[name]) != params[name] or params[name] < least:
            raise InputError(f"{name} must be an integer of at least {least}, got {params[name]!r}")
    if params["encoder"] is not None and params["hidden_layers"]:
        raise InputError(
            "hidden_layers describes the built-in encoder, but an encoder is given: leave one out"
        )


def check_features(params: Mapping[str, Any], features: Features) -> None:
    """Raise for an option that these features cannot serve."""
    if features.kind == "identity":
        for name in ("input_dropout", "decoder_weight", "validation_fraction"):
            if params[name]:
                raise InputError(
                    f"{name} needs features, but X is None (the identity): a row that is not "
                    "trained has no embedding, and a row number has no parts"
                )
        if params["encoder"] is not None:
            raise InputError("an encoder needs features, but X is None (the identity)")
    elif len(features.shape) > 1 and params["encoder"] is None:
        raise InputError(
            f"a row of X has shape {features.shape}: give an encoder that takes it (a CNN), or "
            "reshape X to one row of numbers per entity"
        )
    if params["decoder_weight"] and params["encoder"] is not None:
        raise InputError(
            "decoder_weight mirrors the built-in encoder, but an encoder is given: "
            "leave out one of them"
        )


def check_bounds(bounds: tuple[float, float] | None, targets: Targets) -> None:
    """Raise where a target lies outside the bounds."""
    if bounds is None:
        return
    values = targets.values()
    outside = (values < bounds[0]) | (values > bounds[1])
    if outside.any():
        raise InputError(
            f"{int(outside.sum())} targets lie outside bounds {tuple(bounds)}, for example "
            f"{float(values[outside][0]):g}: widen the bounds or mend the targets"
        )


def relation_column_weights(
    weights: Sequence[float] | None, n_relations: int, n_columns: int
) -> np.ndarray | None:
    """Return a weight for each column, or None where all count alike."""
    if weights is None:
        return None
    array = np.asarray(weights, dtype=np.float32)
    if array.shape != (n_relations,):
        raise InputError(
            f"relation_weights has {array.size} values, but R has {n_relations} "
            f"relation{'s' if n_relations > 1 else ''}: one weight for each"
        )
    if not np.isfinite(array).all() or (array < 0).any() or array.sum() == 0:
        raise InputError(f"relation_weights must not be negative nor all zero, got {weights!r}")
    if (array == array[0]).all():
        return None
    return np.repeat(array, n_columns)


def choose_targets(
    params: Mapping[str, Any],
    targets: Targets,
    columns: Any,
    rng: np.random.Generator,
) -> tuple[Targets, np.ndarray, np.ndarray | None]:
    """Return the targets to train on, their columns, and the row that each of them is.

    The last is None unless a term of the loss compares targets with rows, for which S must be
    square and symmetric (or its first columns, or those named).
    """
    params_n = params["n_targets"]
    square = params["symmetric"] or params["self_similarity"]
    if columns is not None and params_n is not None:
        raise InputError("targets and n_targets both choose columns: give one of them")
    rows_of_targets = np.arange(targets.n_columns)
    if columns is None and params_n is not None:
        columns = int(params_n)
        if params["target_choice"] == "random" and 0 < columns <= targets.n_columns:
            columns = np.sort(rng.permutation(targets.n_columns)[:columns])
    if columns is not None:
        if targets.n_columns < targets.n_rows and np.size(columns) == targets.n_columns:
            # The columns are chosen already; `targets` says which rows they are.
            rows_of_targets = check_columns(columns, targets.n_rows)
            chosen = rows_of_targets
        else:
            chosen = rows_of_targets = check_columns(columns, targets.n_columns)
            targets = targets.select_columns(chosen)
    else:
        chosen = rows_of_targets
    if not square:
        return targets, chosen, None
    name = "symmetric" if params["symmetric"] else "self_similarity"
    if targets.n_columns > targets.n_rows or rows_of_targets.max() >= targets.n_rows:
        raise InputError(
            f"{name} compares targets with rows, but R has {targets.n_rows} rows and "
            f"{targets.n_columns} columns: it is for a square symmetric S (or some columns of one)"
        )
    if params["bounds"] is not None:
        raise InputError(
            f"{name} needs Y W_l itself to be the similarity, but bounds are given: leave one out"
        )
    if params["self_similarity"] and targets.n_relations > 1:
        raise InputError(
            f"self_similarity compares Y Y^T with one S, but R has {targets.n_relations} relations"
        )
    # A sample of a large matrix: a matrix that is not symmetric differs nearly everywhere.
    some = np.sort(rng.permutation(targets.n_columns)[:_SAMPLE])
    for r in range(targets.n_relations):
        _check_symmetric(targets.relation(r)[rows_of_targets[some]][:, some], name)
    return targets, chosen, rows_of_targets


def _check_symmetric(block: Any, name: str) -> None:
    if sp.issparse(block):
        difference = abs(block - block.T)
        # An entry stored on one side only says nothing about symmetry.
        pattern = block.copy()
        pattern.data = np.ones_like(pattern.data)
        gap = difference.multiply(pattern.multiply(pattern.T)).max() if block.nnz else 0.0
        scale = abs(block).max() if block.nnz else 0.0
    else:
        gap = _nanmax(np.abs(block - block.T))
        scale = _nanmax(np.abs(block))
    if gap > 1e-3 * max(float(scale), 1e-12):
        raise InputError(
            f"{name} needs a symmetric S, but S and its transpose differ by up to {float(gap):.3g} "
            "(where the columns are not the first rows, say which rows they are with targets=)"
        )


def _nanmax(array: np.ndarray) -> float:
    return float(np.nanmax(array)) if not np.isnan(array).all() else 0.0
