"""What the data are: counts, the ratings, the columns."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.features import family
from simrec.evaluation.report.subject import Subject

if TYPE_CHECKING:
    import pandas as pd


def counts(subject: Subject) -> dict[str, Any]:
    """Count ratings, users and items, and say how they are spread."""
    ratings = subject.ratings
    per_user = np.bincount(ratings.user_rows, minlength=ratings.n_users)
    per_item = np.bincount(ratings.item_rows, minlength=ratings.n_items)
    found: dict[str, Any] = {
        "ratings": len(ratings),
        "users who rated": ratings.n_users,
        "items rated": ratings.n_items,
        "share of all pairs that is rated": f"{100 * ratings.density:.2f}%",
        "mean rating": f"{ratings.mean:.2f}",
        "ratings of a user: median (least to most)": _spread(per_user),
        "ratings of an item: median (least to most)": _spread(per_item),
    }
    for side, known in (("item", ratings.items), ("user", ratings.users)):
        table = subject.table(side)
        if table is not None:
            new = int((known.rows(table[f"{side}_id"]) < 0).sum())
            found[f"{side}s with features and no rating"] = new
    times = ratings.timestamps
    if times is not None and np.issubdtype(times.dtype, np.datetime64):
        found["time of the ratings"] = f"{str(times.min())[:10]} to {str(times.max())[:10]}"
    return found


def rating_histogram(subject: Subject, most: int = 11) -> tuple[list[str], list[int]]:
    """Count ratings by value, or in equal steps where there are many values."""
    values = subject.ratings.values
    distinct, number = np.unique(values, return_counts=True)
    if len(distinct) <= most:
        return [f"{v:g}" for v in distinct], [int(n) for n in number]
    number, edges = np.histogram(values, bins=10)
    return [f"{edge:.3g}" for edge in edges[:-1]], [int(n) for n in number]


def columns(subject: Subject, side: str) -> "pd.DataFrame":
    """Describe the columns of a table: column, type, use, distinct, missing (share)."""
    import pandas as pd

    table, encoder = subject.table(side), subject.encoder(side)
    if table is None:
        return pd.DataFrame()
    rows = []
    for name in table.column_names:
        values = table[name]
        if encoder is None:
            use = "not used"
        elif name in encoder.columns_:
            use = encoder.columns_[name]
        else:
            use = "name" if side == "item" and name == subject.item_name else "not used"
        rows.append(
            {
                "column": name,
                "type": str(values.type).replace("element: ", ""),
                "use": "id" if name == f"{side}_id" else use,
                "distinct": _distinct(values),
                "missing": values.null_count / max(len(values), 1),
            }
        )
    return pd.DataFrame(rows)


def _distinct(values: pa.ChunkedArray) -> int:
    if family(values.type).startswith("list") or family(values.type) == "nothing":
        return len({str(v) for v in values.to_pylist() if v is not None})
    try:
        return int(pc.count_distinct(values).as_py())
    except pa.ArrowNotImplementedError:
        return len({str(v) for v in values.to_pylist() if v is not None})


def _spread(numbers: np.ndarray) -> str:
    return f"{np.median(numbers):,.0f} ({numbers.min():,} to {numbers.max():,})"
