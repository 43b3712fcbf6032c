"""The rows of the speed benchmark, each a function of `Sizes` that gives `Ratio`s, by name."""

from importlib import import_module
from typing import Any

ROWS = {
    "fit-surprise": "fitting.fit_surprise",
    "fit-tfrs": "fitting.fit_tfrs",
    "fit-growth": "fitting.fit_growth",
    "read": "tables.read",
    "top-k": "scoring.search_matmul",
    "top-k-peers": "scoring.search_peers",
    "top-k-exclude": "scoring.search_exclude",
    "pairs": "scoring.pairs",
    "score": "tables.score",
    "encode": "tables.encode",
    "startup": "tables.startup",
}


def row(name: str) -> Any:
    """Give the function of a row."""
    module, function = ROWS[name].split(".")
    return getattr(import_module(f"speed_rows.{module}"), function)


__all__ = ["ROWS", "row"]
