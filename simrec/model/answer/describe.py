"""How the tables of a model were read, as a frame that prints so that it can be read."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simrec import console


class Description(pd.DataFrame):
    """The table of `TwoTower.describe`: a pandas frame that is printed whole."""

    def __str__(self) -> str:
        records: Any = self.astype(object).where(self.notna(), None).to_dict("records")
        return console.table(records)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return pd.DataFrame(self).to_html(index=False, na_rep="-")
