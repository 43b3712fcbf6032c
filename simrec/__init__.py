"""SimRec: two-tower similarity encoders for cold-start recommendation."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module. Imported on first use, so that `import simrec` stays light.
_PUBLIC = {
    "FeatureEncoder": "simrec.data.features",
    "InputError": "simrec.errors",
    "Ratings": "simrec.data.ratings",
    "SimEc": "simrec.simec.simec",
    "TwoTower": "simrec.model.two_tower",
    "cold_start_split": "simrec.data.split",
    "compare": "simrec.evaluation.compare",
    "evaluate": "simrec.evaluation.evaluate",
    "load_movielens": "simrec.data.movielens",
    "make_synthetic": "simrec.data.synthetic",
    "off_policy": "simrec.evaluation.off_policy",
    "report": "simrec.evaluation.report",
    "replay": "simrec.evaluation.replay",
    "time_split": "simrec.data.split",
    "top_k": "simrec.scoring.topk",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        found = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return found
    raise AttributeError(f"module 'simrec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
