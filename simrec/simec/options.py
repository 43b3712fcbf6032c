"""Checks of the options against each other and against the data, and the choices they make."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError
from simrec.simec.encoders import check_activation, check_hidden_layers
from simrec.simec.initial import INITS
from simrec.simec.inputs import Features, Targets, check_columns
from simrec.simec.losses import check_loss
from simrec.simec.training import OPTIMIZERS, SCHEDULES

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
_SHARES = ("dropout", "input_dropout", "validation_fraction")
_AT_LEAST = {"epochs": 0, "batch_size": 1, "symmetric_block": 2, "init_rows": 2, "sweeps": 1}
_SAMPLE = 1500  # rows and columns on which symmetry is checked


def check_params(params: Mapping[str, Any], has_start: bool = False) -> None:
    """Raise for options that are wrong whatever the data; `has_start` if a start is given."""
    d = params["embedding_dim"]
    if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
        raise InputError(f"embedding_dim must be a positive integer, got {d!r}")
    check_hidden_layers(params["hidden_layers"])
    check_activation(params["activation"])
    bounds = params["bounds"]
    if bounds is not None and not (
        len(bounds) == 2 and all(isinstance(b, Real) for b in bounds) and bounds[0] < bounds[1]
    ):
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
    if params["epochs"] == 0 and params["init"] != "least_squares" and not has_start:
        raise InputError("epochs=0 trains nothing: give epochs, a start, or init='least_squares'")
    if params["init"] != "random" and has_start:
        raise InputError(f"init={params['init']!r} and start both say where to begin: give one")
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
    for name, least in _AT_LEAST.items():
        value = params[name]
        if isinstance(value, bool) or int(value) != value or value < least:
            raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
    if params["optimizer"] not in OPTIMIZERS:
        raise InputError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {params['optimizer']!r}"
        )
    if params["schedule"] not in SCHEDULES:
        raise InputError(f"schedule must be one of {SCHEDULES}, got {params['schedule']!r}")
    if not params["learning_rate"] > 0:
        raise InputError(f"learning_rate must be positive, got {params['learning_rate']!r}")
    if params["patience"] is not None and params["patience"] < 1:
        raise InputError(f"patience must be None or at least 1, got {params['patience']!r}")
    if params["encoder"] is not None and params["hidden_layers"]:
        raise InputError(
            "hidden_layers describes the built-in encoder, but an encoder is given: leave one out"
        )


def check_features(params: Mapping[str, Any], features: Features) -> None:
    """Raise for options that do not fit the kind of features."""
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
    """Return the targets to train on, their columns, and the row that each of them belongs to.

    The last is None unless a term of the loss compares targets with rows. Such a term needs a
    square symmetric S, or some of its columns.
    """
    n_targets = params["n_targets"]
    square = params["symmetric"] or params["self_similarity"]
    if columns is not None and n_targets is not None:
        raise InputError("targets and n_targets both choose columns: give one of them")
    rows_of_targets = np.arange(targets.n_columns)
    if columns is None and n_targets is not None:
        columns = int(n_targets)
        if params["target_choice"] == "random" and 0 < columns <= targets.n_columns:
            columns = np.sort(rng.permutation(targets.n_columns)[:columns])
    if columns is not None:
        if targets.n_columns < targets.n_rows and np.size(columns) == targets.n_columns:
            # R holds these columns only; `columns` says which rows they belong to.
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
    # A sample is enough: a matrix that is not symmetric differs nearly everywhere.
    some = np.sort(rng.permutation(targets.n_columns)[:_SAMPLE])
    for r in range(targets.n_relations):
        _check_symmetric(targets.relation(r)[rows_of_targets[some]][:, some], name)
    return targets, chosen, rows_of_targets


def _check_symmetric(block: Any, name: str) -> None:
    if sp.issparse(block):
        difference = abs(block - block.T)
        # Only entries stored on both sides can be compared.
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


def split_rows(
    targets: Targets, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) among the rows that have entries."""
    rows = np.flatnonzero(targets.counts())
    n_held = round(share * len(rows))
    if share and not 1 <= n_held < len(rows):
        raise InputError(
            f"validation_fraction={share:g} of {len(rows)} rows leaves nothing to "
            f"{'measure on' if n_held < 1 else 'train on'}"
        )
    shuffled = rng.permutation(rows) if n_held else rows
    return np.sort(shuffled[n_held:]), np.sort(shuffled[:n_held])


def check_validation_data(
    data: Any, features: Features, targets: Targets, columns: np.ndarray, n_columns: int
) -> tuple[Features, Targets]:
    """Return held-out features and targets, the targets on the columns that are trained."""
    try:
        X, R = data
    except (TypeError, ValueError) as error:
        raise InputError("validation_data must be a pair (X, R)") from error
    held = Targets.check(R, "validation R")
    held_features = Features.check(X, held.n_rows, "validation X")
    if held_features.kind != features.kind or held_features.shape != features.shape:
        raise InputError(
            f"validation X has {held_features.kind} rows of shape {held_features.shape}, but X has "
            f"{features.kind} rows of shape {features.shape}"
        )
    if held.n_columns == n_columns and held.n_columns != targets.n_columns:
        held = held.select_columns(columns)
    if (held.n_columns, held.n_relations) != (targets.n_columns, targets.n_relations):
        raise InputError(
            f"validation R has {held.n_columns} columns and {held.n_relations} relations, but R "
            f"has {targets.n_columns} and {targets.n_relations}"
        )
    return held_features, held
