"""The commands: one list, from which the command line and pipeline files take theirs."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simrec.jobs.options import Option, options_of


@dataclass(frozen=True)
class Command:
    """A command: a function of its name in a module of simrec.jobs, by default of its name too."""

    summary: str
    module: str = ""
    section: bool = True  # of pipeline files
    fits: bool = False  # a TwoTower, whose settings are then options
    batch: bool = False  # takes the options of [engine]
    once: bool = False  # at most one such section in a file
    positional: tuple[str, ...] = ()  # options given without their names
    without: tuple[str, ...] = ()  # settings of the model that it decides by itself


COMMANDS = {
    "demo": Command("train, evaluate, score, recommend and report on a sample", section=False),
    "train": Command("train a model from ratings and features, save it", fits=True, once=True),
    "update": Command(
        "learn new ratings into a trained model, as a new version of it", "train", once=True
    ),
    "evaluate": Command(
        "hold out items, users and ratings, train, and print the four-task table",
        fits=True,
        once=True,
        without=("random_state",),
    ),
    "compare": Command(
        "say which of two models is better at what, or that no difference is clear",
        "evaluate",
        positional=("a", "b"),
    ),
    "replay": Command(
        "walk through history: how often must a model be trained again?", "evaluate", fits=True
    ),
    "score": Command("add a predicted rating to each (user, item) row of a table", batch=True),
    "recommend": Command("find the best items for each user, or print those of one", batch=True),
    "audience": Command(
        "find the best users for each item, such as a new one", "recommend", batch=True
    ),
    "export": Command("write a model for TensorFlow, Faiss or a vector database", "serve"),
    "report": Command(
        "write a page on a model for people who decide: quality, features, warnings", "evaluate"
    ),
    "serve": Command("answer by HTTP: lists, scores, new items and feedback", section=False),
    "studio": Command("serve a model with a page to try it by hand", "serve", section=False),
    "run": Command(
        "run the jobs of a pipeline file (TOML)", "pipeline", section=False, positional=("file",)
    ),
    "doctor": Command(
        "show versions, threads and memory, and try a small model", "demo", section=False
    ),
}
# Parameters that the command line decides by itself.
_NOT_OPTIONS = ("verbose",)
SECTIONS = tuple(name for name, command in COMMANDS.items() if command.section)


def function(name: str) -> Callable:
    """Return the function that does a job."""
    module = importlib.import_module(f"simrec.jobs.{COMMANDS[name].module or name}")
    return getattr(module, name)


def model_options() -> dict[str, Option]:
    """Return the settings of `TwoTower` as options."""
    from simrec.model.two_tower import TwoTower

    found = options_of(TwoTower, skip=_NOT_OPTIONS)
    return {name: dataclasses.replace(option, group="model") for name, option in found.items()}


def options(name: str) -> dict[str, Option]:
    """Return the options of a command, those of the model it fits included."""
    own = options_of(function(name), skip=_NOT_OPTIONS)
    if not COMMANDS[name].fits:
        return own
    settings = {k: v for k, v in model_options().items() if k not in COMMANDS[name].without}
    return {**own, **settings, **own}


def arguments(name: str, values: Mapping[str, Any], verbose: int = 1) -> dict[str, Any]:
    """Return the arguments of a command's function; settings become the model it fits."""
    if not COMMANDS[name].fits:
        return dict(values)
    from simrec.model.params import check_params
    from simrec.model.two_tower import TwoTower

    own, settings = options_of(function(name)), model_options()
    # A name that both know, such as the seed, goes to both.
    chosen = {key: value for key, value in values.items() if key in settings}
    rest = {key: value for key, value in values.items() if key in own or key not in settings}
    model = TwoTower(**chosen, verbose=verbose)
    check_params(model.get_params())
    return {**rest, "model": model}
