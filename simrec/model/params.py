"""The arguments of a `TwoTower`: checks before any table is read, and what learning needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from simrec.data.sides import Sides
from simrec.errors import InputError, check_seed, is_number, is_whole

_LEAST = {"embedding_dim": 1, "epochs": 1, "folds": 2, "min_count": 1, "knots": 0}
_MAY_BE_NONE = ("embedding_dim", "epochs")

OutputKind = Literal["auto", "identity", "sigmoid"]
RankBy = Literal["both", "rating", "uptake"]

# Sweeps over both sides, and coordinates of the embeddings of ratings, where they are not given.
_EPOCHS, _EMBEDDING_DIM = 16, 16


@dataclass(frozen=True)
class Settings:
    """The arguments of `TwoTower` that learning depends on."""

    embedding_dim: int | None = None
    epochs: int = 16
    folds: int = 5
    hidden_layers: tuple[int, ...] = ()
    random_state: int = 0
    refine: bool = True
    lists: bool = True
    rating_output: OutputKind = "auto"
    encoders: Sides[Any] = Sides(None, None)  # noqa: RUF009 (frozen)
    keep_evidence: bool = True
    half_life: float | Literal["auto"] | None = None
    strengths: Sides[float | None] = Sides(None, None)  # noqa: RUF009 - of penalties; None to choose
    content: float | None = None  # coefficient of the content block; None to choose it

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Settings":
        """Take the arguments by name."""
        names = ("embedding_dim", "folds", "random_state", "refine", "lists", "rating_output")
        return cls(
            epochs=params["epochs"] or _EPOCHS,
            hidden_layers=tuple(params["hidden_layers"]),
            encoders=Sides(params["item_encoder"], params["user_encoder"]),
            keep_evidence=params["keep_evidence"],
            half_life=params["half_life"],
            **{name: params[name] for name in names},
        )

    def quick(self, chosen: Mapping[str, Any]) -> "Settings":
        """Return settings of fits that weights of lists are chosen on.

        Half the sweeps will do, and nothing that the fit to all ratings has chosen is chosen again.
        """
        strengths = Sides(chosen.get("item_penalty"), chosen.get("user_penalty"))
        return replace(
            self,
            strengths=strengths,
            epochs=min(self.epochs, 8),
            hidden_layers=(),
            encoders=Sides(None, None),
            refine=True,
            keep_evidence=True,
            rating_output="sigmoid" if chosen.get("rating_output") == "sigmoid" else "identity",
            content=chosen.get("content", 0.0),
        )

    @property
    def rating_dim(self) -> int:
        """Coordinates of an embedding of the rating part, without bias."""
        return self.embedding_dim or _EMBEDDING_DIM


def check_params(params: Mapping[str, Any]) -> None:
    """Raise for arguments that are wrong whatever the data."""

    def check(right: bool, name: str, expected: str) -> None:
        if not right:
            raise InputError(f"{name} must {expected}, got {params[name]!r}.")

    for name in ("refine", "lists", "keep_evidence"):
        check(isinstance(params[name], bool | np.bool_), name, "be True or False")
    output, widths, bounds = (params[n] for n in ("rating_output", "hidden_layers", "bounds"))
    known = isinstance(output, str) and output in ("auto", "identity", "sigmoid")
    check(known, "rating_output", "be 'auto', 'identity' or 'sigmoid'")
    listed = isinstance(widths, Sequence | np.ndarray) and all(is_whole(n, 1) for n in widths)
    check(listed, "hidden_layers", "be widths from 1 on")
    for name in ("item_encoder", "user_encoder"):
        if params[name] is not None and tuple(widths):
            raise InputError(f"{name} and hidden_layers both describe an encoder: give one.")
    for name, least in _LEAST.items():
        right = (params[name] is None and name in _MAY_BE_NONE) or is_whole(params[name], least)
        check(right, name, f"be a whole number from {least} on")
    pair = isinstance(bounds, Sequence | np.ndarray) and len(bounds) == 2
    right = pair and all(is_number(b) for b in bounds) and bounds[0] <= bounds[1]
    check(bounds is None or right, "bounds", "be (lowest, highest)")
    half_life = params["half_life"]
    right = (
        half_life is None
        or half_life == "auto"
        or (is_number(half_life) and 0 < half_life < np.inf)
    )
    check(right, "half_life", "be a number of days above 0, 'auto' or None")
    for name in ("item_columns", "user_columns"):
        check(isinstance(params[name], Mapping | None), name, "name a kind for each column")
    check_seed(params["random_state"])
