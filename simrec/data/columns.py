"""Names of columns in a person's tables, for those that SimRec calls user_id, item_id and so on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from simrec.data.sides import ID_COLUMNS, SIDES, Side
from simrec.errors import InputError


@dataclass(frozen=True)
class Columns:
    """Names of the columns in the tables that a model was trained with.

    Ids are columns of ratings and of features; None is a column of ratings that is not used.

    Examples
    --------
    >>> names = Columns(user_id="userId", rating="stars")
    >>> names.renaming()
    {'userId': 'user_id', 'stars': 'rating'}
    """

    user_id: str = "user_id"
    item_id: str = "item_id"
    rating: str | None = "rating"
    timestamp: str | None = "timestamp"
    weight: str | None = "weight"

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Columns":
        """Take names from a model directory, which is not believed."""
        known = {field.name for field in fields(cls)}
        optional = known - set(ID_COLUMNS.values())
        for name, value in document.items():
            if name not in known or not (
                isinstance(value, str) or (value is None and name in optional)
            ):
                raise InputError(f"manifest.json: columns are {dict(document)!r}")
        return cls(**document)

    def renaming(self, *usual: str) -> dict[str, str]:
        """Return the usual name of each column that is called otherwise; of some, if given."""
        return {
            own: name
            for name, own in asdict(self).items()
            if own not in (None, name) and (not usual or name in usual)
        }

    def of(self, side: Side) -> str:
        """Return the name of the column of ids of a side."""
        return self.item_id if side == "items" else self.user_id

    def in_table(self, name: str, present: Any) -> str:
        """Return what a column is called in a table that has these: its own name, or the usual."""
        own = getattr(self, name)
        return name if own not in present and name in present else own

    def named(self, table: pa.Table) -> pa.Table:
        """Give the ids of a result their own names."""
        own = {ID_COLUMNS[side]: self.of(side) for side in SIDES}
        own |= {f"for_{usual}": f"for_{name}" for usual, name in own.items()}
        return table.rename_columns([own.get(name, name) for name in table.column_names])


USUAL = Columns()
"""The names that SimRec uses itself."""
