"""Ratings: who rated what, how high, and when."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.id_columns import check_ids
from simrec.data.ids import IdMap, encode_ids, used_ids
from simrec.data.messages import describe, show_row
from simrec.data.rating_columns import checked_bounds, finite_numbers, read_columns, timestamps
from simrec.data.sides import USUAL, Columns
from simrec.data.tables import TableLike
from simrec.errors import InputError

logger = logging.getLogger(__name__)

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
    has_ratings: bool = True
    columns: Columns = USUAL

    def __post_init__(self) -> None:
        arrays = (self.user_rows, self.item_rows, self.values, self.timestamps)
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
        bounds: tuple[float, float] | None = None,
        name: str | None = None,
    ) -> "Ratings":
        """Take ratings from any table, or as they are.

        Where a (user, item) pair occurs in several rows, the rating with the latest time is kept,
        or the mean of all (of the latest, if several are) where there are no times to decide; it
        stands where the pair came first. Such rows are counted in `n_duplicates` and logged.

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
        if bounds is not None:
            bounds = checked_bounds(bounds)
        if isinstance(source, Ratings):
            if bounds is not None:
                source.check_bounds(*bounds, name=name)
            return source
        label = describe(source, name)
        columns = Columns(user_id, item_id, rating, timestamp)
        table = read_columns(source, columns, name)
        for column in (user_id, item_id):
            check_ids(table.column(column), column, label, table=table)
        times = None
        values = np.ones(table.num_rows, dtype=np.float32)
        if rating is not None:
            values = finite_numbers(table, rating, label)
        if timestamp is not None and timestamp in table.column_names:
            times = timestamps(table, timestamp, label)
        users, user_rows = encode_ids(table.column(user_id))
        items, item_rows = encode_ids(table.column(item_id))
        del table  # most of the memory in use here
        arrays = (user_rows, item_rows, values, times)
        ratings = cls(users, items, *arrays, 0, rating is not None, columns)
        if bounds is not None:
            ratings.check_bounds(*bounds, name=label)
        rows = repeated_pairs(user_rows, item_rows, len(items))
        return _merge_duplicates(ratings, rows, label) if len(rows) else ratings

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

        >>> ratings.to_csr().toarray()
        array([[5., 3.],
               [4., 0.]], dtype=float32)
        """
        coordinates = (self.user_rows, self.item_rows)
        shape = (self.n_users, self.n_items)
        return sparse.csr_matrix(sparse.coo_matrix((self.values, coordinates), shape=shape))

    def to_arrow(self) -> pa.Table:
        """Return a table of user_id, item_id, rating and, if known, timestamp.

        >>> ratings.to_arrow().column_names
        ['user_id', 'item_id', 'rating']
        """
        columns = {
            "user_id": _ids_of(self.users, self.user_rows),
            "item_id": _ids_of(self.items, self.item_rows),
            "rating": self.values,
            "timestamp": self.timestamps,
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
        which = np.asarray(which) if len(which) else np.empty(0, np.int64)
        try:
            rows = np.arange(len(self))[which]
        except IndexError as error:
            raise InputError(
                f"select: give a boolean for each of {len(self):,} ratings, or positions: {error}."
            ) from error
        if which.dtype != bool and len(np.unique(rows)) < len(rows):
            raise InputError("select: a position is given twice; give each rating once.")
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
        shown = show_row(self.select([first]).to_arrow(), 0)
        raise InputError(
            f"{name or 'ratings'}: {np.count_nonzero(bad):,} of {len(self):,} ratings lie outside "
            f"of the bounds {low:g} to {high:g} (they go from {self.values.min():g} to "
            f"{self.values.max():g}), the first is row {first:,}: {shown}. "
            "Give wider bounds, or drop or correct these rows."
        )


def _ids_of(ids: IdMap, rows: np.ndarray) -> pa.ChunkedArray:
    # In pieces: an Arrow array of strings holds no more than 2 GB.
    pieces = [ids.take(rows[start : start + _PIECE]) for start in range(0, len(rows), _PIECE)]
    return pa.chunked_array(pieces, type=ids.type)


def liked_from(bounds: tuple[float, float]) -> float:
    """Return the rating from which an item counts as liked: the upper half, without its middle."""
    return bounds[0] + 0.55 * (bounds[1] - bounds[0])


def repeated_pairs(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Find the ratings whose (user, item) pair occurs more than once: positions, ascending."""
    keys = _pair_keys(user_rows, item_rows, n_items)
    if (keys[1:] > keys[:-1]).all():  # many files are in order already
        return np.empty(0, dtype=np.int64)
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered  # as large as the pairs
    return np.flatnonzero(np.isin(keys, repeated)) if len(repeated) else repeated


def _pair_keys(user_rows: np.ndarray, item_rows: np.ndarray, n_items: int) -> np.ndarray:
    """Make one number of each (user, item) pair, int64."""
    keys = np.multiply(user_rows, n_items, dtype=np.int64)
    keys += item_rows
    return keys


def _merge_duplicates(ratings: Ratings, rows: np.ndarray, label: str) -> Ratings:
    """Keep one rating of each pair that occurs more than once.

    The latest is kept, and the mean where time does not decide. `rows` are the positions of all
    ratings of such pairs, ascending.
    """
    keys = _pair_keys(ratings.user_rows[rows], ratings.item_rows[rows], ratings.n_items)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
    counts, rows = np.diff(np.r_[starts, len(order)]), rows[order]
    first = rows[starts]
    times, latest = ratings.timestamps, None
    counted = np.ones(len(rows))
    if times is not None:
        latest = np.maximum.reduceat(times[rows], starts)
        counted = (times[rows] == np.repeat(latest, counts)).astype(np.float64)
    sums = np.add.reduceat(counted * ratings.values[rows].astype(np.float64), starts)
    kept_one = "the mean" if times is None else "the latest"
    logger.warning(
        "%s: %d of %d rows repeat a (user, item) pair; %s rating of each pair was kept",
        *(label, len(rows) - len(first), len(ratings), kept_one),
    )
    keep = np.ones(len(ratings), dtype=bool)
    keep[rows] = False
    keep[first] = True

    def kept(array: np.ndarray, values: Any) -> np.ndarray:
        array = array.copy()
        array[first] = values
        return array[keep]

    return replace(
        ratings,
        user_rows=ratings.user_rows[keep],
        item_rows=ratings.item_rows[keep],
        values=kept(ratings.values, sums / np.add.reduceat(counted, starts)),
        timestamps=None if times is None else kept(times, latest),
        n_duplicates=len(rows) - len(first),
    )
