"""Constructor arguments as parameters, as scikit-learn asks for them, and checks of a SimEc's.

The options of a SimEc are checked against each other and against the data.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from simrec.errors import InputError, is_number, is_whole
from simrec.simec.inputs import Features, Targets

T = TypeVar("T", bound="Params")

ACTIVATIONS = (
    *("elu", "exponential", "gelu", "hard_sigmoid", "linear", "mish", "relu", "selu"),
    *("sigmoid", "softmax", "softplus", "softsign", "swish", "tanh"),
)
_CHOICES = {
    "activation": ACTIVATIONS,
    "loss": ("mse", "mae", "bce"),
    "init": ("random", "spectral", "least_squares"),
    "solver": ("closed_form", "lbfgs", "adam"),
}
PENALTIES = ("l2", "symmetric", "self_similarity")
_SHARES = ("dropout", "input_dropout", "validation_fraction")
_AT_LEAST = {"embedding_dim": 1, "epochs": 0, "batch_size": 1, "sweeps": 1}
_SAMPLE = 1500  # rows and columns on which symmetry is checked


def check_params(params: Mapping[str, Any]) -> None:
    """Raise for options that are wrong whatever the data."""

    def check(name: str, right: Any, expected: str) -> None:
        if not right:
            raise InputError(f"{name} must be {expected}, got {params[name]!r}")

    for name, allowed in _CHOICES.items():
        check(name, params[name] in allowed, f"one of {', '.join(allowed)}")
    for name, least in _AT_LEAST.items():
        check(name, is_whole(params[name], least), f"an integer of at least {least}")
    for name in (*PENALTIES, "ridge"):
        check(name, np.isfinite(params[name]) and params[name] >= 0, "zero or positive")
    for name in _SHARES:
        check(name, 0 <= params[name] < 1, "at least 0 and below 1")
    check_hidden_layers(params["hidden_layers"])
    bounds, patience, epochs = params["bounds"], params["patience"], params["epochs"]
    check("learning_rate", params["learning_rate"] > 0, "positive")
    check("patience", patience is None or patience >= 1, "None or at least 1")
    pair = bounds is None or (len(bounds) == 2 and all(map(is_number, bounds)))
    check("bounds", bounds is None or (pair and bounds[0] < bounds[1]), "(low, high), low < high")
    held_out, solved = params["validation_fraction"] > 0, params["init"] == "least_squares"
    wrong = {
        "loss='bce' compares a probability with a target between bounds, but bounds is None: give "
        "bounds=(0, 1), or the range of your targets": params["loss"] == "bce" and bounds is None,
        "epochs=0 trains nothing: give epochs, or init='least_squares'": not (epochs or solved),
        "init='least_squares' needs loss='mse', and neither bounds nor validation_fraction": (
            solved and (params["loss"] != "mse" or bounds is not None or held_out)
        ),
        "solver='lbfgs' has no epochs to stop early at: leave out validation_fraction": (
            params["solver"] == "lbfgs" and held_out
        ),
        "hidden_layers describes the built-in encoder, but an encoder is given: leave one out": (
            params["encoder"] is not None and params["hidden_layers"]
        ),
    }
    for message, is_so in wrong.items():
        if is_so:
            raise InputError(message)
    unsolved = [name for name in (*PENALTIES, *_SHARES, "hidden_layers") if name != "symmetric"]
    given = [name for name in unsolved if params[name]]
    given += ["encoder"] * (params["encoder"] is not None) + ["loss"] * (params["loss"] != "mse")
    if params["solver"] == "closed_form" and given:
        raise InputError(
            f"solver='closed_form' fits a linear encoder to the squared error with a ridge: leave "
            f"out {', '.join(given)}, or use solver='lbfgs' or 'adam'"
        )


def check_hidden_layers(hidden_layers: Sequence[int]) -> tuple[int, ...]:
    """Return the widths as a tuple of positive ints."""
    if isinstance(hidden_layers, str) or not isinstance(hidden_layers, Sequence):
        raise InputError(f"hidden_layers must be a sequence of widths, got {hidden_layers!r}")
    if any(isinstance(w, bool) or int(w) != w or w < 1 for w in hidden_layers):
        raise InputError(f"hidden_layers must be positive integers, got {hidden_layers!r}")
    return tuple(int(width) for width in hidden_layers)


def check_features(params: Mapping[str, Any], features: Features) -> None:
    """Raise for options that do not fit the kind of features."""
    if features.kind == "identity":
        given = [name for name in ("input_dropout", "validation_fraction") if params[name]]
        given += ["encoder"] * (params["encoder"] is not None)
        if given:
            raise InputError(
                f"{given[0]} needs features, but X is None (the identity): a row that is not "
                "trained has no embedding, and a row number has no parts"
            )
    elif len(features.shape) > 1 and params["encoder"] is None:
        raise InputError(
            f"a row of X has shape {features.shape}: give an encoder that takes it (a CNN), or "
            "reshape X to one row of numbers per entity"
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


def choose_targets(
    params: Mapping[str, Any], targets: Targets, columns: Any, rng: np.random.Generator
) -> tuple[Targets, np.ndarray, np.ndarray | None]:
    """Return the targets to train on, their columns, and the row that each of them belongs to.

    The last is None unless a term of the loss compares targets with rows. Such a term needs a
    square symmetric S, or some of its columns.
    """
    chosen = np.arange(targets.n_columns)
    if columns is not None:
        if targets.n_columns < targets.n_rows and np.size(columns) == targets.n_columns:
            # R holds these columns only; `columns` says which rows they belong to.
            chosen = _check_columns(columns, targets.n_rows)
        else:
            chosen = _check_columns(columns, targets.n_columns)
            offsets = np.arange(targets.n_relations) * targets.n_columns
            where = (offsets[:, None] + chosen[None, :]).ravel()  # of every relation
            targets = replace(targets, matrix=targets.matrix[:, where], n_columns=len(chosen))
    if not (params["symmetric"] or params["self_similarity"]):
        return targets, chosen, None
    name = "symmetric" if params["symmetric"] else "self_similarity"
    if targets.n_columns > targets.n_rows or chosen.max() >= targets.n_rows:
        raise InputError(
            f"{name} compares targets with rows, but R has {targets.n_rows} rows and "
            f"{targets.n_columns} columns: it is for a square symmetric S (or some columns of one)"
        )
    if params["bounds"] is not None:
        raise InputError(
            f"{name} needs Y W_l itself to be the similarity, but bounds are given: leave one out"
        )
    by_gradients = params["epochs"] and params["solver"] != "closed_form"
    if targets.n_relations > 1 or (by_gradients and not targets.complete):
        raise InputError(
            f"{name} compares embeddings with one S, complete if it is trained by gradients, but R "
            f"has {targets.n_relations} relations or missing entries: leave it out, or fit missing "
            "entries with init='least_squares' and epochs=0"
        )
    # A sample is enough: a matrix that is not symmetric differs nearly everywhere.
    some = np.sort(rng.permutation(targets.n_columns)[:_SAMPLE])
    _check_symmetric(targets.matrix[chosen[some]][:, some], name)
    return targets, chosen, chosen


def _check_columns(targets: int | Sequence[int] | np.ndarray, n_columns: int) -> np.ndarray:
    """Return target columns as an array: the first `targets`, or those given."""
    first = isinstance(targets, int | np.integer)
    columns = np.arange(targets) if first else np.asarray(targets)  # type: ignore[arg-type]
    whole = columns.ndim == 1 and columns.dtype.kind in "iu" and len(columns) > 0
    if not whole or columns.min() < 0 or columns.max() >= n_columns:
        raise InputError(
            f"targets must be a number of columns, or a list of columns, of the {n_columns} there "
            f"are; got {targets!r}"
        )
    if len(np.unique(columns)) != len(columns):
        raise InputError("targets names a column twice")
    return columns.astype(np.int64)


def _check_symmetric(block: Any, name: str) -> None:
    if sp.issparse(block):  # only entries stored on both sides can be compared
        dense = np.full(block.shape, np.nan, np.float32)
        entries = block.tocoo()
        dense[entries.row, entries.col] = entries.data
        block = dense
    gap, scale = (np.nanmax(np.abs(array), initial=0) for array in (block - block.T, block))
    if gap > 1e-3 * max(float(scale), 1e-12):
        raise InputError(
            f"{name} needs a symmetric S, but S and its transpose differ by up to {float(gap):.3g} "
            "(where the columns are not the first rows, say which rows they are with targets=)"
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


class Params:
    """`get_params`, `set_params` and `repr` from the names of the constructor's arguments.

    With them scikit-learn's `clone`, `cross_val_score` and `GridSearchCV` work. It need not be
    installed: only scikit-learn itself calls `__sklearn_tags__`.
    """

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name (`deep` is there for scikit-learn).

        >>> from simrec import TwoTower
        >>> TwoTower(bounds=(1, 5)).get_params()["bounds"]
        (1, 5)
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: T, **params: Any) -> T:
        """Set arguments by name and return self; they count from the next fit on.

        >>> from simrec import TwoTower
        >>> TwoTower().set_params(embedding_dim=8)
        TwoTower(embedding_dim=8)
        """
        names = self._names()
        for name, value in params.items():
            if name not in names:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(names)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if not (
                value is (d := defaults[name].default) or (type(value) is type(d) and value == d)
            )
        ]
        fitted = self._fitted_to()
        call = f"{type(self).__name__}({', '.join(shown)})"
        return f"<{call} fitted to {fitted}>" if fitted else call

    def _fitted_to(self) -> str | None:
        """Say what the model was fitted to; None if it was not."""
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted_to() is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(sparse=True, allow_nan=True),
            non_deterministic=False,
        )
