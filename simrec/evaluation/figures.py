"""The table of `evaluate`: a frame that prints so that it can be read."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from simrec import console
from simrec.evaluation.baselines import LIST_BASELINES
from simrec.evaluation.tasks import TASK_NAMES

BEST = "No baseline is better than the model."


class Figures(pd.DataFrame):
    """A row for each task, as a pandas frame; printed, a line for each figure, and the verdict.

    Of list baselines only the NDCG is printed, and what was not measured is left out.
    """

    def __str__(self) -> str:
        if "task" not in self:
            return super().__str__()
        lists = [name for name in map(str, self) if name.startswith("ndcg@")]
        verdict = verdicts(self, int(lists[0].removeprefix("ndcg@"))) or [BEST]
        records: Any = self.astype(object).where(self.notna(), None).to_dict("records")
        return "\n".join([console.four_tasks(records), "", *verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def verdicts(table: pd.DataFrame, k: int = 10) -> list[str]:
    """Say where the model is no better than a baseline: a sentence each, none if it always is."""
    found = []
    for row in table.to_dict("records"):
        name, own = TASK_NAMES[row["task"]], row[f"ndcg@{k}"]
        theirs = {end: row.get(f"ndcg@{k}_{end}", np.nan) for end in LIST_BASELINES}
        best = max(theirs, key=lambda end: np.nan_to_num(theirs[end], nan=-1.0))
        if own < theirs[best]:
            rival = "the most popular items" if best == "popular" else LIST_BASELINES[best]
            found.append(
                f"{name}: the lists are no better than {rival} "
                f"(NDCG@{k} {own:.4f} against {theirs[best]:.4f})"
            )
        error = min(row["rmse_mean"], row["rmse_bias"])
        if row["rmse"] >= error:
            found.append(
                f"{name}: the predictions are no better than the best baseline "
                f"(RMSE {row['rmse']:.4f} against {error:.4f})"
            )
    return found


def spread(tables: Sequence[pd.DataFrame]) -> Figures:
    """Give the mean and the standard deviation of each figure over several tables."""
    columns: dict[str, Any] = {"task": tables[0]["task"]}
    for name in tables[0].columns.drop("task"):
        values = np.stack([table[name].to_numpy(np.float64) for table in tables])
        columns[name], columns[f"{name}_std"] = values.mean(axis=0), values.std(axis=0, ddof=1)
    return Figures(columns)
