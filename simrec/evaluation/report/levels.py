"""Groups of entities by the values of a feature."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simrec.data.arrays import is_list
from simrec.data.features import family

MISSING = "(missing)"
OTHER = "(other)"


def levels(
    values: pa.ChunkedArray, kind: str, bins: int = 4, most: int = 8
) -> dict[str, np.ndarray]:
    """Say which entities have which value: a mask for each.

    Categories give their most frequent values and one for all others, numbers give bins with
    about equally many entities, lists give their most frequent elements (an entity can be in
    several); vectors and text give nothing.
    """
    if kind == "number":
        return _bins(values, bins)
    if kind == "category":
        return _categories(values, most)
    if kind == "list":
        return _elements(values, most)
    return {}


def as_numbers(values: pa.ChunkedArray) -> np.ndarray:
    """Give a column as floats, dates and times as days; NaN where missing."""
    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if family(flat.type) == "time":
        made = flat.to_numpy(zero_copy_only=False)
        step = "timedelta64[s]" if pa.types.is_duration(flat.type) else "datetime64[s]"
        seconds = made.astype(step).astype(np.float64)
        return np.where(np.isnat(made), np.nan, seconds / 86400)
    if family(flat.type) == "string":
        flat = flat.cast(pa.string())
    made = pc.cast(flat, pa.float64(), safe=False)
    return made.to_numpy(zero_copy_only=False)


def as_words(values: pa.ChunkedArray) -> np.ndarray:
    """Give a column as an array of strings, missing ones by a name of their own."""
    return np.array([MISSING if v is None else str(v) for v in values.to_pylist()], dtype=object)


def lists(values: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Give the row and the word of each element of a column of lists."""
    assert is_list(values.type)
    rows, words = [], []
    for row, elements in enumerate(values.to_pylist()):
        for element in elements or ():
            rows.append(row)
            words.append(str(element))
    return np.array(rows, dtype=np.int64), np.array(words, dtype=object)


def _bins(values: pa.ChunkedArray, bins: int) -> dict[str, np.ndarray]:
    numbers = as_numbers(values)
    known = numbers[np.isfinite(numbers)]
    found: dict[str, np.ndarray] = {}
    if len(known):
        edges = np.unique(np.quantile(known, np.linspace(0, 1, bins + 1)))
        places = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
        dates = family(values.type) == "time" and not pa.types.is_duration(values.type)
        for place in range(max(len(edges) - 1, 1)):
            mask = (places == place) & np.isfinite(numbers)
            if mask.any():
                low, high = numbers[mask].min(), numbers[mask].max()
                ends = [_written(low, dates), _written(high, dates)]
                found[ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"] = mask
    missing = ~np.isfinite(numbers)
    return {**found, MISSING: missing} if missing.any() else found


def _categories(values: pa.ChunkedArray, most: int) -> dict[str, np.ndarray]:
    words = as_words(values)
    names, counts = np.unique(words.astype(str), return_counts=True)
    kept = names[np.argsort(-counts, kind="stable")][:most]
    found = {str(name): words == name for name in kept}
    rest = ~np.isin(words.astype(str), kept)
    return {**found, OTHER: rest} if rest.any() else found


def _elements(values: pa.ChunkedArray, most: int) -> dict[str, np.ndarray]:
    rows, words = lists(values)
    if not len(rows):
        return {}
    names, counts = np.unique(words.astype(str), return_counts=True)
    found = {}
    for name in names[np.argsort(-counts, kind="stable")][:most]:
        mask = np.zeros(len(values), dtype=bool)
        mask[rows[words == name]] = True
        found[str(name)] = mask
    return found


def _written(value: float, date: bool) -> str:
    if date:
        return str(np.datetime64(int(value), "D"))
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.3g}"
