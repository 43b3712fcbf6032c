"""The jobs by name, imported when asked for."""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simrec.jobs.options import Option, options_of

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

# Settings of the model that the command line decides by itself.
_NOT_OPTIONS = ("verbose",)


def function(name: str) -> Callable:
    """Return the function that does a job; it has the job's name, in a module of that name."""
    return getattr(importlib.import_module(f"simrec.jobs.{name}"), name)


def model_options() -> dict[str, Option]:
    """Return the settings of `TwoTower` as options."""
    from simrec.model.two_tower import TwoTower

    return options_of(TwoTower, skip=_NOT_OPTIONS)


def make_model(settings: Mapping[str, Any], verbose: int = 1) -> "TwoTower":
    """Make a model with these settings."""
    from simrec.model.two_tower import TwoTower

    return TwoTower(**settings, verbose=verbose)
