"""Rows of the speed benchmark: reading ratings, encoding features, Parquet jobs, start-up."""

import shutil
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec import FeatureEncoder, Ratings, TwoTower, make_synthetic
from speed_rows.timing import Ratio, Sizes, compare, in_turns, run_python

_COLUMNS = ["user_id", "item_id", "rating"]
_CLI = "import sys; from simrec.cli import main; sys.exit(main(sys.argv[1:]))"
_NO_TENSORFLOW = (
    "import sys; from simrec.cli import main; code = main(sys.argv[1:]); "
    "sys.exit(code or int('tensorflow' in sys.modules))"
)


def read(sizes: Sizes) -> list[Ratio]:
    """Parquet into `Ratings` against Parquet into Arrow."""
    n = sizes.choose(25_000_000, 1_000_000)
    rows = []
    for kind, bar in (("integer", 3.0), ("string", 6.0)):
        with tempfile.TemporaryDirectory(dir=sizes.work) as directory:
            path = Path(directory) / "ratings.parquet"
            pq.write_table(_ratings(n, kind), path)
            calls = {
                "ours": lambda path=path: Ratings.from_parquet(path),
                "bare": lambda path=path: pq.read_table(path, columns=_COLUMNS),
            }
            seconds = in_turns(calls, sizes.repeats)
        name = f"`Ratings.from_parquet`, {n:,} ratings, {kind} ids"
        rows.append(compare(name, "bare pyarrow read", *seconds.values(), bar=bar))
    return rows


def encode(sizes: Sizes) -> list[Ratio]:
    """Features of ten columns of all sorts against scikit-learn's encoders of the same."""
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    n = sizes.choose(1_000_000, 50_000)
    table = _features(n)
    frame = table.to_pandas()
    numbers = [name for name in table.column_names if name.startswith("number")]
    categories = [name for name in table.column_names if name.startswith("category")]
    lists = [name for name in table.column_names if name.startswith("tags")]
    scaled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2, dtype=np.float32)
    # The fastest way scikit-learn has to take lists apart: tokens that need no splitting.
    split = [(name, CountVectorizer(analyzer=list, binary=True), name) for name in lists]
    transformer = ColumnTransformer(
        [("numbers", scaled, numbers), ("categories", one_hot, categories), *split]
    )
    calls = {
        "ours": lambda: FeatureEncoder().fit_transform(table),
        "sklearn": lambda: transformer.fit_transform(frame),
    }
    seconds = in_turns(calls, sizes.repeats, warm_up=False)
    name = f"`FeatureEncoder`, {n:,} rows, {table.num_columns} columns"
    theirs = "scikit-learn ColumnTransformer"
    return [compare(name, theirs, *seconds.values(), bar=3.0, faster=True)]


def score(sizes: Sizes) -> list[Ratio]:
    """`simrec score` against reading and writing the same columns; both with their start-up."""
    n = sizes.choose(20_000_000, 1_000_000)
    with tempfile.TemporaryDirectory(dir=sizes.work) as directory:
        model, pairs = _small_model(Path(directory)), Path(directory) / "pairs.parquet"
        rng = np.random.default_rng(0)
        known = TwoTower.load(model)
        table = {
            "user_id": known.users_.take(rng.integers(len(known.users_), size=n)),
            "item_id": known.items_.take(rng.integers(len(known.items_), size=n)),
        }
        pq.write_table(pa.table(table), pairs, row_group_size=1 << 20)
        out = [str(Path(directory) / name) for name in ("scored", "copied.parquet")]
        job = ["score", "--model", str(model), "--pairs", str(pairs), "--out", out[0], "--quiet"]
        # The score column has to be written as well: a float of no structure beside the ids.
        bare = (
            "import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq\n"
            "file = pq.ParquetFile(sys.argv[1])\n"
            "scores = np.random.default_rng(0).random(1 << 20, np.float32)\n"
            "schema = file.schema_arrow.append(pa.field('score', pa.float32()))\n"
            "with pq.ParquetWriter(sys.argv[2], schema) as out:\n"
            "    for at in range(file.num_row_groups):\n"
            "        rows = file.read_row_group(at)\n"
            "        part = pa.array(scores[: rows.num_rows])\n"
            "        out.write_table(rows.append_column('score', part))\n"
        )

        def ours() -> float:
            # A job whose output is there already would find nothing to do.
            shutil.rmtree(out[0], ignore_errors=True)
            return run_python(["-c", _CLI, *job])

        calls = {"ours": ours, "bare": lambda: run_python(["-c", bare, str(pairs), out[1]])}
        seconds = in_turns(calls, sizes.repeats, warm_up=False)
        shutil.rmtree(out[0])
        run_python(["-c", _NO_TENSORFLOW, *job])
    name = f"`simrec score`, Parquet to Parquet, {n:,} rows"
    note = "TensorFlow was not imported"
    theirs = "bare pyarrow read and write"
    return [compare(name, theirs, *seconds.values(), bar=2.0, note=note)]


def startup(sizes: Sizes) -> list[Ratio]:
    """Seconds more than Python alone, and than importing pyarrow; the bar is 0.4 seconds."""
    repeats = max(sizes.repeats, 5)
    with tempfile.TemporaryDirectory(dir=sizes.work) as directory:
        model, pairs = _small_model(Path(directory)), Path(directory) / "pair.parquet"
        known = TwoTower.load(model)
        one = {"user_id": known.users_.take([0]), "item_id": known.items_.take([0])}
        pq.write_table(pa.table(one), pairs)
        out = str(Path(directory) / "scored")
        job = ["score", "--model", str(model), "--pairs", str(pairs), "--out", out, "--quiet"]

        def score_one() -> float:
            shutil.rmtree(out, ignore_errors=True)
            return run_python(["-c", _NO_TENSORFLOW, *job])

        calls = {
            "help": lambda: run_python(["-c", _CLI, "--help"]),
            "python": lambda: run_python(["-c", "pass"]),
            "score": score_one,
            "pyarrow": lambda: run_python(["-c", "import pyarrow"]),
        }
        processor: dict[str, list[float]] = {name: [] for name in calls}
        noted = {
            name: lambda name=name, call=call: processor[name].append(call())
            for name, call in calls.items()
        }
        seconds = in_turns(noted, repeats)
    rows = []
    for ours, theirs, path, against in (
        ("help", "python", "`simrec --help`", "`python -c pass`"),
        ("score", "pyarrow", "`simrec score` of one row", '`python -c "import pyarrow"`'),
    ):
        base = median(seconds[theirs])
        more = median(processor[ours]) - median(processor[theirs])
        # As a ratio: 0.4 seconds more than the other.
        rows.append(
            compare(
                path,
                against,
                seconds[ours],
                seconds[theirs],
                bar=(base + 0.4) / base,
                note=f"{median(seconds[ours]) - base:+.2f} s, of the processor's {more:+.2f} s; "
                "to reach: +0.40 s",
            )
        )
    return rows


def _ratings(n: int, kind: str) -> pa.Table:
    """Pairs that differ, in no order, with ids as wide as they are in the wild."""
    rng = np.random.default_rng(0)
    n_users, n_items = max(int(30 * n**0.5), 100), max(int(4 * n**0.5), 50)
    cells = rng.choice(n_users * n_items, size=int(n * 1.02), replace=True)
    cells = rng.permutation(np.unique(cells))[:n]
    users, items = np.divmod(cells, n_items)
    columns = []
    for rows, prefix in ((users, "u"), (items, "i")):
        ids = pa.array(rows.astype(np.int64) + 1_000_000)
        columns.append(
            ids
            if kind == "integer"
            else pa.array(np.char.add(prefix, np.arange(rows.max() + 1).astype("U"))).take(
                pa.array(rows)
            )
        )
    ratings = rng.integers(1, 11, size=len(cells)).astype(np.float32) / 2
    return pa.table({"user_id": columns[0], "item_id": columns[1], "rating": ratings})


def _features(n: int) -> pa.Table:
    """Four columns of numbers, four of categories and two of lists, some of it missing."""
    rng = np.random.default_rng(0)
    columns = {}
    for at in range(4):
        numbers = pa.array(rng.standard_normal(n), mask=rng.random(n) < 0.05)
        columns[f"number_{at}"] = numbers
    for at, distinct in enumerate((2, 20, 500, 5000)):
        names = pa.array([f"value {value}" for value in range(distinct)])
        columns[f"category_{at}"] = names.take(pa.array(rng.integers(distinct, size=n)))
    for at, distinct in enumerate((20, 2000)):
        names = pa.array([f"tag {value}" for value in range(distinct)])
        lengths = rng.integers(1, 5, size=n)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tags = names.take(pa.array(rng.integers(distinct, size=offsets[-1])))
        columns[f"tags_{at}"] = pa.ListArray.from_arrays(offsets, tags)
    return pa.table(columns)


def _small_model(directory: Path) -> Path:
    data = make_synthetic(n_users=6000, n_items=3000, n_ratings=100_000)
    path = directory / "model"
    TwoTower(epochs=2).fit(data.ratings, items=data.items, users=data.users).save(path)
    return path
