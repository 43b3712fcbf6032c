"""Feature tables to sparse matrices: one class per kind of column, and the encoder of a table.

To add a kind, write a subclass of `Column` (see `column`) and list it in `_COLUMNS` of `encoder`.
"""

from simrec.data.features.column import family
from simrec.data.features.encoder import ColumnSummary, FeatureEncoder

__all__ = ["ColumnSummary", "FeatureEncoder", "family"]
