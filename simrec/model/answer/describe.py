"""How the tables of a model were read, as a frame that prints so that it can be read."""

from typing import Any

import pandas as pd
import pyarrow as pa

from simrec import console
from simrec.data.features import ColumnSummary
from simrec.data.sides import Columns, Sides
from simrec.model.tower import Tower


def column_table(towers: Sides[Tower], columns: Columns) -> pa.Table:
    """Return a row for each column of the tables of items and users."""
    rows = [
        {"side": side, **row._asdict()} | ({"column": own} if row.used == "the id" else {})
        for side, tower in towers.named()
        for own in [columns.of(side)]
        for row in (tower.encoder.describe() if tower.encoder else ())
    ]
    names = ("side", *ColumnSummary._fields)
    types = [(n, pa.int64() if n in ("values", "missing") else pa.string()) for n in names]
    return pa.Table.from_pylist(rows, pa.schema(types))


class Description(pd.DataFrame):
    """The table of `TwoTower.describe`: a pandas frame that is printed whole."""

    def __str__(self) -> str:
        records: Any = self.astype(object).where(self.notna(), None).to_dict("records")
        return console.table(records)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return pd.DataFrame(self).to_html(index=False, na_rep="-")
