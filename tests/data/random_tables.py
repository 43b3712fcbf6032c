"""Tables of any types and values that Arrow can hold, drawn at random."""

from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAMES = (
    *("class", "from", "A", "a", "k", "self", "name", "exclude", "x y", "1st", "é", "a=b", "v[0]"),
    *("__index_level_0__", "Unnamed: 0", "", "score", "index", "a~1", "a=missing", "None"),
)
SIZES = (1e-40, 1e-5, 1.0, 1.0, 1e4, 1e9, 1e12, 1e14, 1e19, 1e37, 1e300)
WORDS = ("", "a", "b", "drama", "New York", "a b c d", "ü", "日本", "x" * 300, "NaN", "<missing>")


def some(rng, values, share=0.15):
    """Replace some values by null, in most cases none."""
    if rng.random() < 0.6:
        return list(values)
    return [None if rng.random() < share else value for value in values]


def integers(rng, n):
    name = rng.choice(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
    info = np.iinfo(name)
    low, high = (0, 5) if rng.random() < 0.5 else (info.min, info.max)
    values = rng.integers(low, high, n, dtype=name, endpoint=True)
    return pa.array(some(rng, values.tolist()), pa.type_for_alias(str(name)))


def floats(rng, n):
    values = rng.normal(size=n) * rng.choice(SIZES)
    if rng.random() < 0.15:
        values[rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf])
    kind = rng.choice(["float16", "float32", "float64", "float64"])
    with np.errstate(over="ignore"):
        return pa.array(some(rng, values.astype(kind)), pa.type_for_alias(str(kind)))


def decimals(rng, n):
    values = [Decimal(int(v)) / 100 for v in rng.integers(-999, 999, n)]
    kind = pa.decimal128(9, 2) if rng.random() < 0.5 else pa.decimal256(40, 2)
    return pa.array(some(rng, values), kind)


def booleans(rng, n):
    return pa.array(some(rng, (rng.random(n) < 0.5).tolist()), pa.bool_())


def strings(rng, n):
    words = [str(w) for w in rng.choice(WORDS, n)]
    if rng.random() < 0.3:
        words = [f"{word} {place}" for place, word in enumerate(words)]
    kind = rng.choice([pa.string(), pa.large_string(), pa.string_view()])
    return pa.array(some(rng, words), pa.string()).cast(kind)


def dictionaries(rng, n):
    values = pa.array(some(rng, rng.choice(WORDS, 4).tolist()))  # repeats and null among them
    return pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 4, n), pa.int8()), values)


def runs(rng, n):
    return pc.run_end_encode(
        integers(rng, n) if rng.random() < 0.5 else strings(rng, n).cast("string")
    )


def times(rng, n):
    wide = rng.random() < 0.2
    values = rng.integers(-(2**31) if wide else 0, 2**31 - 1 if wide else 20_000, n)
    kind = rng.choice(
        [
            pa.date32(),
            pa.date64(),
            pa.timestamp("s"),
            pa.timestamp("ns", "UTC"),
            pa.duration("ms"),
            pa.time32("s"),
            pa.month_day_nano_interval(),
        ]
    )
    if kind == pa.month_day_nano_interval():
        return pa.array([pa.MonthDayNano([1, 2, 3])] * n)
    if kind == pa.time32("s"):
        return pa.array(np.abs(values) % 86_400, pa.int32()).cast(kind)
    if kind == pa.date32():
        return pa.array(values, pa.int32()).cast(kind)
    if kind == pa.date64():
        return pa.array([date(2000, 1, 1) + timedelta(int(v) % 999) for v in values], kind)
    return pa.array(values, pa.int64()).cast(kind)


def lists(rng, n):
    lengths = rng.integers(0, 4, n)
    inner = rng.choice([strings, integers, floats])(rng, max(int(lengths.sum()), 1))
    rows = np.split(np.arange(lengths.sum()), np.cumsum(lengths)[:-1])
    values = inner.to_pylist()
    kind = rng.choice([pa.list_, pa.large_list, pa.list_view])(inner.type)
    return pa.array(some(rng, [[values[i] for i in row] for row in rows]), kind)


def vectors(rng, n):
    size = int(rng.integers(0, 4))
    values = rng.normal(size=(n, size)) * rng.choice(SIZES)
    kind = rng.choice([pa.float32(), pa.float64()])
    with np.errstate(over="ignore"):
        values = values.astype(kind.to_pandas_dtype()).tolist()
    return pa.array(
        some(rng, values), pa.list_(kind, size) if rng.random() < 0.7 else pa.list_(kind)
    )


def others(rng, n):
    made = [
        pa.nulls(n),
        pa.array([b"x"] * n),
        pa.array([{"a": 1}] * n),
        pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        pa.array([b"0" * 16] * n, pa.uuid()),
        pa.array([[[1.0]]] * n),
        pa.array([[]] * n),
        pa.array([[None]] * n, pa.list_(pa.null())),
        pa.array([7] * n),
        pa.array(["same"] * n),
        pa.array([[True]] * n),
    ]
    return made[rng.integers(len(made))]


COLUMNS = (
    *(integers, floats, decimals, booleans, strings, dictionaries, runs, times, lists, vectors),
    others,
)


def features(rng, n):
    """Draw a table of features, sometimes with two columns of one name."""
    count = int(rng.integers(0, 6))
    names = [str(name) for name in rng.choice(NAMES, count, replace=rng.random() < 0.1)]
    return pa.table([COLUMNS[rng.integers(len(COLUMNS))](rng, n) for _ in names], names=names)


def ids(rng, n):
    """Draw distinct ids of a type that ids may have, or may not."""
    numbers = rng.permutation(n)
    start = int(rng.choice([0, -5, 2**31, 2**62, -(2**63)]))
    words = pa.array([f"id {number}" for number in numbers])
    made = {
        "integer": pa.array([int(v) + start for v in numbers], pa.int64()),
        "small": pa.array(numbers, pa.int16()),
        "unsigned": pa.array([2**64 - 1 - int(v) for v in numbers], pa.uint64()),
        "string": words,
        "view": words.cast(pa.string_view()),
        "large": words.cast(pa.large_string()),
        "dictionary": words.dictionary_encode(),
        "runs": pc.run_end_encode(words),
        "float": pa.array(numbers, pa.float64()),
        "null": pa.array([None, *numbers.tolist()][:n]),
        "bytes": words.cast(pa.binary()),
    }
    kind = list(made)[
        min(rng.integers(0, 14), len(made) - 1) if rng.random() < 0.2 else rng.integers(8)
    ]
    return made[kind]
