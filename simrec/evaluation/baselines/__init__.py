"""What a model has to beat. No baseline shares code with the model.

For ratings the mean and the biases; for lists popularity, EASE and a TF-IDF profile, which learn
from all training pairs, low ratings included: they are what a user chose.
"""

from __future__ import annotations

from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.evaluation.baselines.ease import EaseBaseline
from simrec.evaluation.baselines.lists import ContentBaseline, ListBaseline, PopularityBaseline
from simrec.evaluation.baselines.rating import BiasBaseline, MeanBaseline

__all__ = [
    "LIST_BASELINES",
    "BiasBaseline",
    "ContentBaseline",
    "EaseBaseline",
    "ListBaseline",
    "MeanBaseline",
    "PopularityBaseline",
    "fit_list_baselines",
]

LIST_BASELINES = {"popular": "popularity", "ease": "EASE", "content": "a TF-IDF profile"}
"""List baselines by the ending of their columns, in words."""


def fit_list_baselines(
    train: Ratings, items: TableLike | None, threshold: float
) -> dict[str, ListBaseline]:
    """Fit all of `LIST_BASELINES` that these data allow."""
    found = {
        "popular": PopularityBaseline.fit(train, items, threshold),
        "ease": EaseBaseline.fit(train, threshold),
        "content": ContentBaseline.fit(train, items),
    }
    return {name: baseline for name, baseline in found.items() if baseline is not None}
