"""Ids, integers or strings: checking them, and the row numbers SimRec works with."""

import bisect
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import as_arrow, as_numpy, null_mask, plain
from simrec.data.messages import bad_rows
from simrec.data.number_ids import dense_span, id_offsets, number_ids
from simrec.errors import InputError

# Below this many values, a binary search each beats building a hash table of all known ids.
_FEW = 64
# From this share of the known ids on (one in so many), a hash table beats binary searches.
_MANY = 16


class IdMap:
    """Distinct ids in ascending order, and the way from ids to rows and back.

    Row `r` is the id at place `r`. Ids are integers or strings of any Arrow type and come back
    as the type they were given in (string views as large strings). Strings are ordered by code
    point, as Python orders them.

    Parameters
    ----------
    ids : pyarrow.Array or pyarrow.ChunkedArray
        The ids, already distinct and ascending. For any others there is `IdMap.from_values`.

    Examples
    --------
    Those of the methods go on from this one.

    >>> import pyarrow as pa
    >>> ids = IdMap.from_values(["tea", "mate", "tea"])
    >>> ids.rows(["tea", "milk"])
    array([ 1, -1])
    >>> ids.take([0]).to_pylist()
    ['mate']
    """

    __slots__ = ("_direct", "_ids")

    def __init__(self, ids: pa.Array | pa.ChunkedArray) -> None:
        checked = check_ids(ids, "id", "IdMap")
        array = _flat(checked)
        if not _ascending(array):
            raise InputError(
                "IdMap: the ids are not distinct and ascending. "
                "Use IdMap.from_values, which sorts them."
            )
        self._ids: pa.Array = array
        self._direct: tuple[int, np.ndarray] | None = None

    @classmethod
    def from_values(cls, values: Any, name: str = "ids") -> "IdMap":
        """Collect the distinct ids among some values.

        Parameters
        ----------
        values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
            Ids in any order, repeated or not.
        name : str
            What the ids are, for error messages.

        Examples
        --------
        >>> IdMap.from_values([7, 3, 7]).ids.to_pylist()
        [3, 7]
        """
        return encode_ids(values, name)[0]

    @property
    def ids(self) -> pa.Array:
        """The ids, one per row.

        Examples
        --------
        >>> ids.ids.to_pylist()
        ['mate', 'tea']
        """
        return self._ids

    @property
    def column(self) -> pa.ChunkedArray:
        """The ids as a column, in as many chunks as they are in shards; none is copied.

        Examples
        --------
        >>> ids.column.num_chunks
        1
        """
        return pa.chunked_array([self._ids])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each shard; of a map in one piece, of all.

        Examples
        --------
        >>> ids.sizes
        (2,)
        """
        return (len(self),)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the ids.

        Examples
        --------
        >>> ids.type
        DataType(string)
        """
        return self._ids.type

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        return bool(self.column.equals(other.column))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(v) for v in self.take(range(min(3, len(self)))).to_pylist())
        return f"IdMap({len(self):,} ids, {self.type}: {shown}{', ...' if len(self) > 3 else ''})"

    def __getstate__(self) -> dict[str, Any]:
        return {"ids": self._ids}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._ids = state["ids"]
        self._direct = None

    def rows(self, values: Any, name: str = "ids") -> np.ndarray:
        """Find the row of each id.

        Parameters
        ----------
        values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
            Ids of the same kind, integers or strings; integers may be of another width.
        name : str
            What the ids are, for error messages.

        Returns
        -------
        numpy.ndarray
            Row numbers, int64, and -1 for an id that is not in the map.

        Raises
        ------
        InputError
            If ids are null, or are strings where the map has integers or the other way round.

        Examples
        --------
        >>> ids.rows(["milk", "tea", "mate"])
        array([-1,  1,  0])
        """
        array = check_ids(values, name)
        if not len(array) or not len(self):
            return np.full(len(array), -1, dtype=np.int64)
        kind, own = id_kind(array.type), id_kind(self.type)
        if kind != own:
            cast = "int" if own == "integer" else "str"
            raise InputError(
                f"{name}: {kind} ids were given ({array.type}, such as {array[0].as_py()!r}) where "
                f"the known ids are {own}s (such as {self.take([0])[0].as_py()!r}). "
                f"Convert the column, for example with .astype({cast!r}) in pandas."
            )
        return np.concatenate([self._chunk_rows(chunk) for chunk in array.chunks])

    def contains(self, values: Any, name: str = "ids") -> np.ndarray:
        """Check for each id whether it is in the map.

        Examples
        --------
        >>> ids.contains(["tea", "milk"])
        array([ True, False])
        """
        return self.rows(values, name) >= 0

    def take(self, rows: Any) -> pa.Array:
        """Return the ids of some rows, in the Arrow type they came in.

        Examples
        --------
        >>> ids.take([1, 0]).to_pylist()
        ['tea', 'mate']
        """
        return self._ids.take(pa.array(self._checked(rows)))

    def _checked(self, rows: Any) -> np.ndarray:
        index = np.asarray(rows)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"rows must be between 0 and {len(self) - 1}")
        return index.astype(np.int64, copy=False)

    def without(self, rows: Any) -> "IdMap":
        """Return the map of the ids of all other rows.

        Examples
        --------
        >>> ids.without([0]).ids.to_pylist()
        ['tea']
        """
        keep = np.ones(len(self), bool)
        keep[rows] = False
        return _trusted(self._ids.filter(pa.array(keep)))

    def none(self) -> "IdMap":
        """Return a map of no ids, of the same type.

        Examples
        --------
        >>> len(ids.none())
        0
        """
        return _trusted(pa.array([], self.type))

    def union(self, other: "IdMap") -> "IdMap":
        """Return the map of the ids that are in either.

        Examples
        --------
        >>> ids.union(IdMap.from_values(["milk"])).ids.to_pylist()
        ['mate', 'milk', 'tea']
        """
        if not len(other):
            return self
        if not len(self):
            return other
        shared = shared_type(self, other)
        return IdMap.from_values(pa.chunked_array([m.cast(shared).ids for m in (self, other)]))

    def cast(self, type_: pa.DataType) -> "IdMap":
        """Return the same ids in another type of the same kind.

        Examples
        --------
        >>> ids.cast(pa.large_string()).type
        DataType(large_string)
        """
        if type_ == self.type:
            return self
        try:
            return _trusted(self._ids.cast(type_))
        except pa.ArrowInvalid as error:  # uint64 beyond int64, and negative ids
            raise InputError(
                f"ids of type {self.type} and {type_} fit no common type: {error}. "
                "Make them strings."
            ) from error

    def _chunk_rows(self, chunk: pa.Array) -> np.ndarray:
        if isinstance(chunk, pa.DictionaryArray):
            return self._chunk_rows(chunk.dictionary)[as_numpy(chunk.indices)]
        if id_kind(self.type) == "integer":
            return self._integer_rows(as_numpy(chunk))
        if len(chunk) < _FEW < len(self):
            return np.array([self._bisect(value) for value in chunk.to_pylist()], dtype=np.int64)
        known = self._ids
        if chunk.type != known.type:
            chunk, known = chunk.cast(pa.large_string()), known.cast(pa.large_string())
        return _places(chunk, known)

    def _bisect(self, value: str) -> int:
        row = bisect.bisect_left(self._ids, value, key=lambda scalar: scalar.as_py())
        return row if row < len(self) and self._ids[row].as_py() == value else -1

    def _integer_rows(self, values: np.ndarray) -> np.ndarray:
        known = as_numpy(self._ids)
        low, high = int(known[0]), int(known[-1])
        inside = (values >= low) & (values <= high)  # exact whatever the two integer types
        if not inside.all():
            rows = np.full(len(values), -1, dtype=np.int64)
            rows[inside] = self._integer_rows(values[inside])
            return rows
        if high - low >= dense_span(len(known)):
            values = values.astype(known.dtype, copy=False)
            if _MANY * len(values) > len(known):
                return _places(as_arrow(values), as_arrow(known))
            rows = np.searchsorted(known, values)
            return np.where(known[rows] == values, rows, -1)
        if self._direct is None:
            table = np.full(high - low + 1, -1, dtype=np.int64)
            table[id_offsets(known, low)] = np.arange(len(known))
            self._direct = low, table
        return self._direct[1][id_offsets(values, low)]


def _places(values: pa.Array, known: pa.Array) -> np.ndarray:
    """Find each value among the known ones, -1 where it is not."""
    found = pc.index_in(values, value_set=known)
    # Where a number would be made a scalar of Arrow's, pandas would be imported.
    return as_numpy(found.fill_null(as_arrow(np.array([-1], np.int32))[0])).astype(np.int64)


def encode_ids(values: Any, name: str = "ids") -> tuple[IdMap, np.ndarray]:
    """Collect the distinct ids and number every value by them, in one go.

    Parameters
    ----------
    values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
        Ids in any order.
    name : str
        What the ids are, for error messages.

    Returns
    -------
    ids : IdMap
        The distinct ids.
    rows : numpy.ndarray
        The row of each value, int32 (int64 beyond 2**31 distinct ids).
    """
    ids, rows = number_ids(check_ids(values, name))
    return _trusted(ids), rows


def shared_type(one: IdMap, other: IdMap) -> pa.DataType:
    """Return the type that holds the ids of both maps."""
    if id_kind(one.type) != id_kind(other.type):
        raise InputError(
            f"ids of two kinds cannot share a map: {one.type} and {other.type}. "
            "Convert one of the columns."
        )
    schemas = [pa.schema([("id", m.type)]) for m in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _trusted(ids: pa.Array) -> IdMap:
    """Wrap ids that are known to be distinct and ascending, without checking again."""
    made = IdMap.__new__(IdMap)
    made._ids = ids
    made._direct = None
    return made


def _ascending(ids: pa.Array) -> bool:
    if len(ids) < 2:
        return True
    return bool(pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py())


def _flat(values: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_string(values.type) and values.nbytes > np.iinfo(np.int32).max:
        values = values.cast(pa.large_string())  # 32-bit offsets cannot hold them in one piece
    flat = values.combine_chunks()
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def id_kind(type_: pa.DataType) -> str | None:
    """Return what ids an Arrow type holds: "integer", "string", or None for neither."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_integer(type_):
        return "integer"
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return "string" if any(is_string(type_) for is_string in strings) else None


def check_ids(
    values: Any,
    column: str,
    label: str | None = None,
    *,
    table: pa.Table | None = None,
    unique: bool = False,
) -> pa.ChunkedArray:
    """Take ids in any form and refuse those that cannot be ids.

    Parameters
    ----------
    values : pyarrow.Array, pyarrow.ChunkedArray, pandas.Series, numpy.ndarray or list
        The ids.
    column, label : str
        The column's name and the table's, for error messages.
    table : pyarrow.Table, optional
        Where the error takes its example row from.
    unique : bool
        Whether each id may occur only once, as in a table of items.

    Returns
    -------
    pyarrow.ChunkedArray
        Integers or strings, or a dictionary of them; no nulls.
    """
    array = plain(as_chunked(values, column))
    where = label or "ids"
    if not len(array) and pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if table is None:
        table = pa.table({column: array})
    if array.null_count or (pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py()):
        bad = null_mask(array)
        if pa.types.is_floating(array.type):
            bad |= np.isnan(array.to_numpy())
        raise bad_rows(where, column, bad, "have no id (null or NaN)", "Drop these rows.", table)
    if id_kind(array.type) is None:
        hint = (
            "pandas turns integer columns with missing values into floats: "
            "convert with .astype('int64')."
            if pa.types.is_floating(array.type)
            else "Convert the column."
        )
        example = f", such as {array[0].as_py()!r}" if len(array) else ""
        raise InputError(
            f"{where}: column {column!r} holds {array.type} values{example}; "
            f"ids must be integers or strings. {hint}"
        )
    if pa.types.is_dictionary(array.type) and any(c.dictionary.null_count for c in array.chunks):
        # Null by way of the dictionary: seen only once the values are spelled out.
        spelled = array.cast(array.type.value_type)
        return check_ids(spelled, column, label, table=table, unique=unique)
    if unique:
        ids, rows = number_ids(array)
        repeated = (np.bincount(rows, minlength=len(ids)) > 1)[rows]
        if repeated.any():
            raise bad_rows(
                where,
                column,
                repeated,
                f"share their {column} with another row",
                f"Keep one row for each {column}.",
                table,
            )
    return array


def one_or_several(given: Any, name: str) -> pa.ChunkedArray:
    """Take one id, or several in any form, as an Arrow column.

    Examples
    --------
    >>> one_or_several("tea", "item_id").to_pylist(), one_or_several({7}, "item_id").to_pylist()
    (['tea'], [7])
    """
    one = isinstance(given, str | bytes | pa.Scalar) or not isinstance(given, Iterable)
    values = as_chunked([given] if one else given, name)
    if not len(values) or not pa.types.is_null(values.type):
        return values
    raise InputError(f"{name}: expected an id or several, got {given!r}.")


def as_chunked(values: Any, name: str) -> pa.ChunkedArray:
    """Take values in any form as an Arrow column; `name` says what they are in errors."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes):
        raise InputError(f"{name}: expected several ids, got the single value {values!r}.")
    if not isinstance(values, pa.Array):
        if isinstance(values, Iterable) and not hasattr(values, "__array__"):
            values = list(values)
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise InputError(f"{name}: expected one row of ids, got an array of {values.shape}.")
        try:
            try:
                values = pa.array(values, from_pandas=True)
            except OverflowError:  # integers beyond int64
                values = pa.array(values, pa.uint64())
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{name}: ids must all be integers or all be strings: {error}."
            ) from error
        if isinstance(values, pa.ChunkedArray):
            return values
    return pa.chunked_array([values])
