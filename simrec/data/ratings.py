"""Ratings: who rated what, how high, when, and how much that counts."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.duplicates import drop, pair_keys, repeated_pairs, settle, total_weights
from simrec.data.ids import IdMap, check_ids, encode_ids
from simrec.data.messages import show_row
from simrec.data.rating_columns import (
    as_seconds,
    check_bounds,
    outside,
    rating_values,
    timestamp_values,
    weight_values,
)
from simrec.data.tables import TableLike, describe, is_frame, read_table
from simrec.errors import InputError

logger = logging.getLogger(__name__)

_PIECE = 1 << 22


def _only(from_table: Any, takes: Callable[[object], bool], what: str, example: str) -> Any:
    """Make a constructor like `from_table` that takes one form of table."""

    @wraps(from_table.__func__)
    def make(cls: "type[Ratings]", source: Any, **options: Any) -> "Ratings":
        if not takes(source):
            raise InputError(
                f"expected {what}, got {type(source).__name__}. Ratings.from_table takes any table."
            )
        return cls.from_table(source, **options)

    make.__doc__ = f"""Take ratings from {what}; see `from_table`.

    Examples
    --------
    {example}
    Ratings(3 of 2 users on 2 items)
    """
    return classmethod(make)


_FROM_FRAME = ">>> Ratings.from_pandas(table.to_pandas())"
_FROM_FILE = """>>> import pyarrow.parquet as pq
    >>> pq.write_table(table, "ratings.parquet")
    >>> Ratings.from_parquet("ratings.parquet")"""


def _is_path(source: object) -> bool:
    return isinstance(source, str | os.PathLike)


def _is_arrow(source: object) -> bool:
    return isinstance(source, pa.Table | pa.RecordBatch)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Ratings:
    """Ratings of items by users, one for each pair that was observed. Immutable.

    Made by `from_table`, which takes every form of table, or by `from_parquet`, `from_arrow` and
    `from_pandas`, which take one. The constructor trusts its arguments and takes over the arrays.

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

    def __post_init__(self) -> None:
        for array in (
            self.user_rows,
            self.item_rows,
            self.values,
            self.timestamps,
            self.weights,
        ):
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
        source : pandas.DataFrame, pyarrow.Table, str, path or Ratings
            The ratings. `Ratings` come back as they are, checked against the bounds.
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

        Returns
        -------
        Ratings

        Raises
        ------
        InputError
            If a column is missing or of the wrong type, ids or ratings are null or NaN, ratings
            are infinite or outside of the bounds, weights are negative, there is no row, or a
            file cannot be read.

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
        table = _read(source, user_id, item_id, rating, timestamp, weight, name)
        for column in (user_id, item_id):
            check_ids(table.column(column), column, label, table=table)
        present = table.column_names
        values = (
            np.ones(table.num_rows, dtype=np.float32)
            if rating is None
            else rating_values(table, rating, label)
        )
        times = weights = None
        if timestamp is not None and timestamp in present:
            times = timestamp_values(table, timestamp, label)
        if weight is not None and weight in present:
            weights = weight_values(table, weight, label)
        if not isinstance(source, str | os.PathLike):  # memory of the caller's, who may change it
            values = values.copy()
            times = None if times is None else times.copy()
            weights = None if weights is None else weights.copy()
        with ThreadPoolExecutor(2) as pool:
            both = pool.map(encode_ids, [table.column(user_id), table.column(item_id)])
            (users, user_rows), (items, item_rows) = both
        del table  # most of the memory in use here
        ratings = cls(
            users, items, user_rows, item_rows, values, times, 0, weights, rating is not None
        )
        if bounds is not None:
            ratings.check_bounds(*bounds, name=label)
        rows = repeated_pairs(user_rows, item_rows, len(items))
        return settled(ratings, rows, duplicates, label) if len(rows) else ratings

    from_parquet = _only(
        from_table, _is_path, "the path of a Parquet or CSV file or directory", _FROM_FILE
    )
    from_arrow = _only(from_table, _is_arrow, "an Arrow table", ">>> Ratings.from_arrow(table)")
    from_pandas = _only(from_table, is_frame, "a pandas DataFrame", _FROM_FRAME)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Ratings({len(self):,} of {self.n_users:,} users on {self.n_items:,} items)"

    @property
    def n_users(self) -> int:
        """How many users there are.

        Examples
        --------
        >>> ratings.n_users
        2
        """
        return len(self.users)

    @property
    def n_items(self) -> int:
        """How many items there are.

        Examples
        --------
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
        return None if self.timestamps is None else as_seconds(self.timestamps)

    @property
    def density(self) -> float:
        """Share of all pairs of users and items that was observed.

        Examples
        --------
        >>> ratings.density
        0.75
        """
        cells = self.n_users * self.n_items
        return len(self) / cells if cells else 0.0

    @property
    def mean(self) -> float:
        """The mean rating; NaN if there is none.

        Examples
        --------
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
            "rating": pa.array(self.values),
        }
        if self.timestamps is not None:
            columns["timestamp"] = pa.array(self.timestamps)
        if self.weights is not None:
            columns["weight"] = pa.array(self.weights)
        return pa.table(columns)

    def select(self, which: Any) -> "Ratings":
        """Take some of the ratings; users and items left without any are gone.

        Parameters
        ----------
        which : array-like
            One boolean per rating, or positions in the order wanted, none twice.

        Returns
        -------
        Ratings

        Examples
        --------
        >>> ratings.select(ratings.values >= 4)
        Ratings(2 of 2 users on 1 items)
        """
        which = _positions(which, len(self))
        users, user_rows = _shrink(self.users, self.user_rows[which])
        items, item_rows = _shrink(self.items, self.item_rows[which])
        times, weights = (
            None if array is None else array[which] for array in (self.timestamps, self.weights)
        )
        return replace(
            self,
            users=users,
            items=items,
            user_rows=user_rows,
            item_rows=item_rows,
            values=self.values[which],
            timestamps=times,
            weights=weights,
            n_duplicates=0,
        )

    def check_bounds(self, low: float, high: float, name: str | None = None) -> None:
        """Refuse ratings outside of the bounds.

        Parameters
        ----------
        low, high : float
            Lowest and highest possible rating.
        name : str, optional
            The table's name, for the error message.

        Raises
        ------
        InputError
            With the number of such ratings, the range found, and an example.

        Examples
        --------
        >>> ratings.check_bounds(1, 5)
        """
        bad = outside(self.values, low, high)
        if bad is None:
            return
        first = int(np.argmax(bad))
        raise InputError(
            f"{name or 'ratings'}: {np.count_nonzero(bad):,} of {len(self):,} ratings lie outside "
            f"of the bounds {low:g} to {high:g} (they go from {self.values.min():g} to "
            f"{self.values.max():g}), the first is row {first:,}: {_show(self, first)}. "
            "Give wider bounds, or drop or correct these rows."
        )


def settled(
    ratings: Ratings,
    rows: np.ndarray,
    duplicates: str,
    label: str,
    without: Callable[[np.ndarray, np.ndarray], np.ndarray] = drop,
) -> Ratings:
    """Keep one rating of each pair that occurs more than once, or refuse them.

    Parameters
    ----------
    ratings : Ratings
        The ratings.
    rows : numpy.ndarray
        Positions of all ratings of such pairs, ascending.
    duplicates : {"resolve", "error"}
        What to do with them; see `Ratings.from_table`.
    label : str
        The table's name, for messages.
    without : callable
        Returns an array without some of its rows.
    """
    keys = pair_keys(ratings.user_rows[rows], ratings.item_rows[rows], ratings.n_items)
    times, weights = ratings.timestamps, ratings.weights
    first, values, latest = settle(
        rows, keys, ratings.values[rows], None if times is None else times[rows]
    )
    n_extra = len(rows) - len(first)
    example = int(first.min())
    if duplicates == "error":
        raise InputError(
            f"{label}: {n_extra:,} of {len(ratings):,} rows repeat a (user, item) pair that came "
            f"before; row {example:,} is the first to be repeated: {_show(ratings, example)}. Keep "
            "one row for each pair, or allow duplicates='resolve' (the latest, else the mean)."
        )
    logger.warning(
        "%s: %d of %d rows repeat a (user, item) pair; %s rating of each pair was kept",
        label,
        n_extra,
        len(ratings),
        "the mean" if latest is None else "the latest",
    )
    dropped = np.setdiff1d(rows, first, assume_unique=True)
    places = first - np.searchsorted(dropped, first)  # now that others are gone

    def kept(array: np.ndarray, found: np.ndarray | None) -> np.ndarray:
        array = without(array, dropped)
        array[places] = found
        return array

    totals = None if weights is None else total_weights(keys, weights[rows])
    return replace(
        ratings,
        user_rows=without(ratings.user_rows, dropped),
        item_rows=without(ratings.item_rows, dropped),
        values=kept(ratings.values, values),
        timestamps=None if times is None else kept(times, latest),
        weights=None if weights is None else kept(weights, totals),
        n_duplicates=n_extra,
    )


def _show(ratings: Ratings, row: int) -> str:
    return show_row(ratings.select(np.array([row])).to_arrow(), 0)


def _read(
    source: TableLike,
    user_id: str,
    item_id: str,
    rating: str | None,
    timestamp: str | None,
    weight: str | None,
    name: str | None,
) -> pa.Table:
    named = [c for c in (user_id, item_id, rating, timestamp, weight) if c is not None]
    if len(set(named)) < len(named):
        raise InputError(
            "user_id, item_id, rating, timestamp and weight must be different columns."
        )
    usual = ("timestamp", "weight")  # read if they are there
    extra = [c for c in (timestamp, weight) if c is not None]
    try:
        return read_table(
            source,
            [c for c in named if c not in extra or c not in usual],
            optional=[c for c in extra if c in usual],
            dictionaries=(user_id, item_id),
            name=name,
        )
    except InputError as error:
        if rating is None or f"no column {rating!r}" not in str(error):
            raise
        raise InputError(f"{error} For interactions without ratings pass rating=None.") from error


def _ids_of(ids: IdMap, rows: np.ndarray) -> pa.ChunkedArray:
    # In pieces: an Arrow array of strings holds no more than 2 GB.
    pieces = [ids.take(rows[start : start + _PIECE]) for start in range(0, len(rows), _PIECE)]
    return pa.chunked_array(pieces, type=ids.type)


def _positions(which: Any, n: int) -> np.ndarray:
    which = np.asarray(which)
    if which.dtype == bool:
        if which.shape != (n,):
            raise InputError(f"select: {n:,} ratings need as many booleans, got {which.shape}.")
        return which
    if not which.size:
        return np.empty(0, dtype=np.int64)
    if which.dtype.kind not in "iu" or which.ndim != 1:
        raise InputError(f"select: give booleans or integers, not {which.dtype} {which.shape}.")
    if which.min() < -n or which.max() >= n:
        raise InputError(f"select: positions go from {-n} to {n - 1}, got {which.max()}.")
    seen = np.zeros(n, dtype=bool)
    seen[which] = True
    if np.count_nonzero(seen) < len(which):
        raise InputError("select: a position is given twice; give each rating once.")
    return which


def _shrink(ids: IdMap, rows: np.ndarray) -> tuple[IdMap, np.ndarray]:
    used = np.zeros(len(ids), dtype=bool)
    used[rows] = True
    if used.all():
        return ids, rows
    places = np.cumsum(used, dtype=rows.dtype)
    places -= 1
    return IdMap(ids.take(np.flatnonzero(used))), places[rows]


def liked_from(bounds: tuple[float, float]) -> float:
    """Return the rating from which an item counts as liked: three quarters of the way up.

    Examples
    --------
    >>> liked_from((1, 5))
    4.0
    """
    low, high = bounds
    return low + 0.75 * (high - low)
