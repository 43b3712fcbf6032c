"""From options and checked data to a network and its batches."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simrec.errors import InputError
from simrec.scoring.output import Output
from simrec.simec.encoders import build_decoder, build_encoder, copy_encoder
from simrec.simec.initial import random_last_layer, spectral_last_layer
from simrec.simec.inputs import Features, Targets
from simrec.simec.network import Penalties, SimEcNetwork, SymmetricBlock


def check_last_layer(last_layer: Any, d: int, targets: Targets) -> np.ndarray:
    """Return a given W_l (d x n, or d x n x k) as the network keeps it: a row per column of R."""
    given = np.asarray(last_layer, dtype=np.float32)
    expected: tuple[int, ...] = (d, targets.n_columns)
    if targets.n_relations > 1:
        expected = (*expected, targets.n_relations)
    if given.shape != expected:
        raise InputError(
            f"last_layer must be {' x '.join(map(str, expected))} (embedding_dim x targets"
            f"{' x relations' if targets.n_relations > 1 else ''}), got shape {given.shape}"
        )
    if not np.isfinite(given).all():
        raise InputError("last_layer holds NaN or infinite values")
    return columns_of(given)


def columns_of(last_layer: np.ndarray) -> np.ndarray:
    """Return W_l (d x n, or d x n x k) as (k n) x d, relation after relation."""
    if last_layer.ndim == 2:
        return np.ascontiguousarray(last_layer.T)
    return np.ascontiguousarray(last_layer.transpose(2, 1, 0).reshape(-1, last_layer.shape[0]))


def layer_of(columns: np.ndarray, n_relations: int) -> np.ndarray:
    """Return (k n) x d as W_l: d x n, or d x n x k."""
    if n_relations == 1:
        return columns.T
    k, d = n_relations, columns.shape[1]
    return columns.reshape(k, -1, d).transpose(2, 1, 0)


def make_network(
    params: Mapping[str, Any],
    features: Features,
    targets: Targets,
    output: Output,
    rows_of_targets: np.ndarray | None,
    last_layer: Any,
    rng: np.random.Generator,
) -> SimEcNetwork:
    """Return an untrained network for these options and data."""
    d = params["embedding_dim"]
    if params["encoder"] is not None:
        encoder = copy_encoder(params["encoder"], features.shape, d)
    else:
        encoder = build_encoder(
            features.kind,
            int(np.prod(features.shape)),
            d,
            params["hidden_layers"],
            params["activation"],
            params["bias"],
            params["dropout"],
            # Random features must differ in more than their direction to be a basis.
            bias_range=1.0 if params["init"] == "least_squares" else 0.0,
            rng=rng,
        )
    decoder = None
    if params["decoder_weight"]:
        decoder = build_decoder(
            features.shape[0], d, params["hidden_layers"], params["activation"], rng
        )
    if last_layer is not None:
        if params["symmetric"] or params["orthogonal"]:
            raise InputError(
                "last_layer is frozen, but symmetric and orthogonal train it: leave one out"
            )
        start = check_last_layer(last_layer, d, targets)
    elif params["init"] != "random":
        start = spectral_last_layer(targets, d, output, rows_of_targets, params["init_rows"], rng)
    else:
        start = random_last_layer(targets.matrix.shape[1], d, rng)
    seed = int(rng.integers(2**31 - 1))
    block = target_of_row = None
    if rows_of_targets is not None:
        if params["symmetric"] and targets.n_columns <= params["symmetric_block"]:
            block = SymmetricBlock(
                [targets.relation(r)[rows_of_targets] for r in range(targets.n_relations)]
            )
        target_of_row = np.full(targets.n_rows, -1, np.int32)
        target_of_row[rows_of_targets] = np.arange(targets.n_columns)
    penalties = Penalties(
        l2=params["l2"],
        l2_embedding=params["l2_embedding"],
        l2_last=params["l2_last"] if last_layer is None else 0.0,
        symmetric=params["symmetric"],
        self_similarity=params["self_similarity"],
        orthogonal=params["orthogonal"],
        decoder=params["decoder_weight"],
        input_dropout=params["input_dropout"],
    )
    return SimEcNetwork(
        encoder,
        start,
        last_layer is None,
        output,
        params["loss"],
        penalties,
        block,
        decoder,
        target_of_row,
        targets.n_relations,
        seed,
        expand=params["optimizer"] != "lbfgs",
    )


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
    if features.kind == "identity":
        raise InputError("validation_data needs features, but X is None (the identity)")
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
