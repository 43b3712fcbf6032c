"""Ratings: who rated what, how high, when, and how much that counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap, check_ids, encode_ids, used_ids
from simrec.data.messages import describe
from simrec.data.rating_columns import (
    check_bounds,
    finite_numbers,
    merge_duplicates,
    positions,
    read_columns,
    repeated_pairs,
    show_rating,
    timestamp_values,
)
from simrec.data.sides import USUAL, Columns
from simrec.data.tables import TableLike
from simrec.errors import InputError

_PIECE = 1 << 22


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Ratings:
    """Ratings of items by users, one for each pair that was observed. Immutable.

    Made by `from_table`, also called `from_parquet`, `from_arrow` and `from_pandas`. The
    constructor trusts its arguments and takes over the arrays.

    Attributes
    ----------
    users, items : IdMap
        The ids that occur, and their rows.
    user_rows, item_rows : numpy.ndarray
        Row in `users` and in `items` of each rating, in the order of the input's rows.
    values : numpy.ndarray
        The ratings, float32. All 1 for interactions without ratings.
    timestamps : numpy.ndarray or None
        Time of each rating, int64, float64 or datetime64, if there was such a column.
    n_duplicates : int
        How many rows were merged away because their pair occurred before.
    weights : numpy.ndarray or None
        How much each interaction counts, float32, if there was such a column: play counts, dwell
        time. At least 0.
    has_ratings : bool
        Whether `values` are ratings; False for interactions without.
    columns : Columns
        Names of the columns in the table they come from, by which a model knows later tables.

    Examples
    --------
    Those of the methods go on from this one.

    >>> import pyarrow as pa
    >>> rows = {"user_id": [1, 1, 2], "item_id": ["a", "b", "a"], "rating": [5.0, 3.0, 4.0]}
    >>> table = pa.table(rows)
    >>> ratings = Ratings.from_table(table)
    >>> ratings
    Ratings(3 of 2 users on 2 items)
    >>> ratings.item_rows, ratings.values
    (array([0, 1, 0], dtype=int32), array([5., 3., 4.], dtype=float32))
    """

    users: IdMap
    items: IdMap
    user_rows: np.ndarray
    item_rows: np.ndarray
    values: np.ndarray
    timestamps: np.ndarray | None = None
    n_duplicates: int = 0
    weights: np.ndarray | None = None
    has_ratings: bool = True
    columns: Columns = USUAL

    def __post_init__(self) -> None:
        arrays = (self.user_rows, self.item_rows, self.values, self.timestamps, self.weights)
        for array in arrays:
            if array is not None:
                if array.shape != (len(self.values),):
                    raise ValueError("Ratings: the arrays must have one entry for each rating")
                array.flags.writeable = False

    @classmethod
    def from_table(
        cls,
        source: "TableLike | Ratings",
        *,
        user_id: str = "user_id",
        item_id: str = "item_id",
        rating: str | None = "rating",
        timestamp: str | None = "timestamp",
        weight: str | None = "weight",
        duplicates: Literal["resolve", "error"] = "resolve",
        bounds: tuple[float, float] | None = None,
        name: str | None = None,
    ) -> "Ratings":
        """Take ratings from any table, or as they are.

        Parameters
        ----------
        source : table-like or Ratings
            A frame, an Arrow table, or the path of files. `Ratings` come back as they are, checked
            against the bounds.
        user_id, item_id : str
            Columns of the ids, integers or strings.
        rating : str or None
            Column of the ratings, numbers. None for interactions without ratings: `has_ratings` is
            then False and every value 1.
        timestamp : str or None
            Column of the times: numbers, dates or timestamps. The default is used if it is there;
            another name has to be there. None leaves times aside.
        weight : str or None
            Column of the weights, numbers of at least 0; found like `timestamp`.
        duplicates : {"resolve", "error"}
            What to do where a (user, item) pair occurs in several rows. "resolve" keeps the rating
            with the latest time, or the mean of all (of the latest, if several are) where there
            are no times to decide; it stands where the pair came first. Weights add up.
            Duplicates are counted in `n_duplicates` and logged. "error" refuses them.
        bounds : (float, float), optional
            Lowest and highest possible rating; ratings outside of them are refused.
        name : str, optional
            The table's part in the call, for error messages.

        Raises
        ------
        InputError
            If the table cannot be used: what, where, an example row and what to do about it.

        Examples
        --------
        >>> Ratings.from_table(table, rating=None).has_ratings  # pairs alone
        False
        """
        if duplicates not in ("resolve", "error"):
            raise InputError(f"duplicates must be 'resolve' or 'error', got {duplicates!r}.")
        if bounds is not None:
            bounds = check_bounds(bounds)
        if isinstance(source, Ratings):
            if bounds is not None:
                source.check_bounds(*bounds, name=name)
            return source
        label = describe(source, name)
        columns = Columns(user_id, item_id, rating, timestamp, weight)
        table = read_columns(source, columns, name)
        for column in (user_id, item_id):
            check_ids(table.column(column), column, label, table=table)
        times = weights = None
        values = np.ones(table.num_rows, dtype=np.float32)
        if rating is not None:
            values = finite_numbers(table, rating, label, "rating")
        if timestamp is not None and timestamp in table.column_names:
            times = timestamp_values(table, timestamp, label)
        if weight is not None and weight in table.column_names:
            weights = finite_numbers(table, weight, label, "weight")
        columns_of_ids = [table.column(user_id), table.column(item_id)]
        with ThreadPoolExecutor(2) as pool:  # starts no thread for a few rows, of a request
            each = map if table.num_rows < 10_000 else pool.map
            (users, user_rows), (items, item_rows) = each(encode_ids, columns_of_ids)
        del columns_of_ids
        del table  # most of the memory in use here
        arrays = (user_rows, item_rows, values, times)
        ratings = cls(users, items, *arrays, 0, weights, rating is not None, columns)
        if bounds is not None:
            ratings.check_bounds(*bounds, name=label)
        rows = repeated_pairs(user_rows, item_rows, len(items))
        return merge_duplicates(ratings, rows, duplicates, label) if len(rows) else ratings

    from_parquet = from_arrow = from_pandas = from_table

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Ratings({len(self):,} of {self.n_users:,} users on {self.n_items:,} items)"

    @property
    def n_users(self) -> int:
        """How many users there are.

        >>> ratings.n_users
        2
        """
        return len(self.users)

    @property
    def n_items(self) -> int:
        """How many items there are.

        >>> ratings.n_items
        2
        """
        return len(self.items)

    @property
    def seconds(self) -> np.ndarray | None:
        """The times as float64: seconds since 1970 of dates and timestamps, numbers as given.

        Examples
        --------
        >>> later = table.append_column("timestamp", pa.array([1.5, 2.0, 9.0]))
        >>> Ratings.from_table(later).seconds
        array([1.5, 2. , 9. ])
        """
        if self.timestamps is None or self.timestamps.dtype.kind != "M":
            return None if self.timestamps is None else self.timestamps.astype(np.float64)
        return (self.timestamps - np.datetime64(0, "s")) / np.timedelta64(1, "s")

    @property
    def mean(self) -> float:
        """The mean rating; NaN if there is none.

        >>> ratings.mean
        4.0
        """
        return float(self.values.mean(dtype=np.float64)) if len(self) else float("nan")

    def to_csr(self) -> sparse.csr_matrix:
        """Return the users x items matrix. What is stored was observed, ratings of 0 included.

        Examples
        --------
        >>> ratings.to_csr().toarray()
        array([[5., 3.],
               [4., 0.]], dtype=float32)
        """
        coordinates = (self.user_rows, self.item_rows)
        shape = (self.n_users, self.n_items)
        return sparse.csr_matrix(sparse.coo_matrix((self.values, coordinates), shape=shape))

    def to_arrow(self) -> pa.Table:
        """Return a table of user_id, item_id, rating and, if known, timestamp and weight.

        Examples
        --------
        >>> ratings.to_arrow().column_names
        ['user_id', 'item_id', 'rating']
        """
        columns = {
            "user_id": _ids_of(self.users, self.user_rows),
            "item_id": _ids_of(self.items, self.item_rows),
            "rating": self.values,
            "timestamp": self.timestamps,
            "weight": self.weights,
        }
        return pa.table({name: column for name, column in columns.items() if column is not None})

    def select(self, which: Any) -> "Ratings":
        """Take some of the ratings; users and items left without any are gone.

        Parameters
        ----------
        which : array-like
            One boolean per rating, or positions in the order wanted, none twice.

        Examples
        --------
        >>> ratings.select(ratings.values >= 4)
        Ratings(2 of 2 users on 1 items)
        """
        which = positions(which, len(self))
        users, user_rows = used_ids(self.users, self.user_rows[which])
        items, item_rows = used_ids(self.items, self.item_rows[which])
        return replace(
            self,
            users=users,
            items=items,
            user_rows=user_rows,
            item_rows=item_rows,
            values=self.values[which],
            timestamps=None if self.timestamps is None else self.timestamps[which],
            weights=None if self.weights is None else self.weights[which],
            n_duplicates=0,
        )

    def check_bounds(self, low: float, high: float, name: str | None = None) -> None:
        """Raise InputError if ratings lie outside of the bounds; `name` is the table's.

        >>> ratings.check_bounds(1, 5)
        """
        # Rounded as the ratings were: 0.7 is within (0.7, 1) though its float32 is less.
        bad = (self.values < np.float32(low)) | (self.values > np.float32(high))
        if not bad.any():
            return
        first = int(np.argmax(bad))
        raise InputError(
            f"{name or 'ratings'}: {np.count_nonzero(bad):,} of {len(self):,} ratings lie outside "
            f"of the bounds {low:g} to {high:g} (they go from {self.values.min():g} to "
            f"{self.values.max():g}), the first is row {first:,}: {show_rating(self, first)}. "
            "Give wider bounds, or drop or correct these rows."
        )


def _ids_of(ids: IdMap, rows: np.ndarray) -> pa.ChunkedArray:
    # In pieces: an Arrow array of strings holds no more than 2 GB.
    pieces = [ids.take(rows[start : start + _PIECE]) for start in range(0, len(rows), _PIECE)]
    return pa.chunked_array(pieces, type=ids.type)


def liked_from(bounds: tuple[float, float]) -> float:
    """Return the rating from which an item counts as liked: the upper half, without its middle."""
    return bounds[0] + 0.55 * (bounds[1] - bounds[0])
