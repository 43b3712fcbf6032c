"""Rows on exports: what plain TensorFlow, Faiss and Parquet vectors answer against the model."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec import TwoTower
from simrec.model.export import formats

Row = tuple[str, float, str]

_PAIRS = 200_000
_EQUAL = "<= 1e-5"
# Asks a SavedModel in a process that cannot import SimRec or TFRS.
_PLAIN = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("simrec", "tensorflow_recommenders"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import numpy as np, tensorflow as tf
path, signature, asked, answered = sys.argv[1:]
function = tf.saved_model.load(path).signatures[signature]
specs = function.structured_input_signature[1]
columns = dict(np.load(asked))
rows = len(next(iter(columns.values())))
kept = {}
for start in range(0, rows, 512):
    part = {name: tf.constant(v[start : start + 512]) for name, v in columns.items()}
    part = {name: v if v.dtype == tf.string else tf.cast(v, specs[name].dtype)
            for name, v in part.items()}
    if "k" in specs:
        n = len(next(iter(part.values())))
        part |= {"k": tf.constant(10), "exclude": tf.zeros([n, 0], specs["exclude"].dtype)}
    for name, value in function(**part).items():
        kept.setdefault(name, []).append(value.numpy())
np.savez(answered, **{name: np.concatenate(v).astype("U" if v[0].dtype == object else v[0].dtype)
                      for name, v in kept.items()})
"""


def export_rows(model: TwoTower, users: pa.Table) -> list[Row]:
    """Export a fitted model in each format, and compare what comes back.

    Parameters
    ----------
    model : TwoTower
        A model that was fitted with features of users.
    users : pyarrow.Table
        user_id and features; they are taken as new users, whatever the model knows of them.

    Returns
    -------
    list of (claim, figure, reach)
    """
    import simrec.simec.keras  # noqa: F401 (TensorFlow starts before the clock does)

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        settings: dict[str, dict[str, Any]] = {
            "savedmodel": {},
            "tower": {"side": "user"},
            "parquet": {"rank_by": "rating"},
            "faiss": {},
        }
        formats._FEW = 0  # an index, however few the items are
        done = {f: model.export(root / f, f, **given) for f, given in settings.items()}
        return [
            *_savedmodel(model, users, root),
            _tower(model, users, root),
            _parquet(model, root / "parquet"),
            ("recall@10 of a Faiss index (ivf)", done["faiss"]["recall_at_10"], ">= 0.95"),
            *((f"`export --format {f}`, seconds", d["seconds"], "-") for f, d in done.items()),
        ]


def _savedmodel(model: TwoTower, users: pa.Table, root: Path) -> list[Row]:
    known = model.users_.ids
    fresh = _fresh(model, users)
    rows = []
    for who, signature, columns, given in [
        ("known users", "known_users", {"user_id": _plain(known)}, known),
        ("new users by features", "new_users", _features(model, fresh), fresh),
    ]:
        answer = _ask(root / "savedmodel", signature, columns, root)
        ours = model.recommend(given, k=10, exclude=None, output="arrow")
        score = ours["score"].to_numpy().reshape(answer["score"].shape)
        ids = ours["item_id"].to_numpy().reshape(answer["item_id"].shape)
        what = f"SavedModel in plain TensorFlow, top 10 of {len(score):,} {who}"
        rows += [
            (
                f"{what}: largest difference of scores",
                float(np.abs(answer["score"] - score).max()),
                _EQUAL,
            ),
            (
                f"{what}: same item in the same place",
                float((answer["item_id"] == ids).mean()),
                ">= 0.999",
            ),
        ]
    return rows


def _tower(model: TwoTower, users: pa.Table, root: Path) -> Row:
    fresh = _fresh(model, users)
    answer = _ask(root / "tower", "serving_default", _features(model, fresh), root)
    ours = np.array(model.embed_users(fresh, output="arrow")["vector"].to_pylist(), np.float32)
    difference = float(np.abs(answer["vector"][:, :-1] - ours).max())
    return (
        f"user tower in plain TensorFlow, {len(ours):,} users: largest difference of vectors",
        difference,
        _EQUAL,
    )


def _parquet(model: TwoTower, directory: Path) -> Row:
    rng = np.random.default_rng(0)
    ids, vectors = {}, {}
    for side in ("user", "item"):
        table = pq.read_table(directory / f"{side}s.parquet").combine_chunks()
        rows = rng.integers(0, len(table), _PAIRS)
        flat = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        ids[f"{side}_id"], vectors[side] = table[f"{side}_id"].take(rows), flat[rows]
    score = np.einsum("ij,ij->i", vectors["user"], vectors["item"])
    # Exported with rank_by="rating": the prediction before its output, with the shift.
    ours, output = model.predict(pa.table(ids)), replace(model.predictor().output, shift=0.0)
    difference = float(np.abs(output(score) - ours).max())
    return (
        f"inner product of Parquet vectors, {_PAIRS:,} pairs: largest difference of scores",
        difference,
        _EQUAL,
    )


def _fresh(model: TwoTower, users: pa.Table) -> pa.Table:
    """Give the users ids that the model does not know, so that features alone count."""
    ids = users["user_id"]
    if pa.types.is_integer(ids.type):
        new = pc.add(ids.cast(pa.int64()), pc.max(model.users_.ids).as_py() + 1)
    else:
        new = pc.binary_join_element_wise("new", ids.cast(pa.string()), " ")
    return users.set_column(users.column_names.index("user_id"), "user_id", new)


def _features(model: TwoTower, users: pa.Table) -> dict[str, np.ndarray]:
    encoder = model.towers_.users.encoder
    assert encoder is not None
    return {column: _plain(users[column]) for column in encoder.columns_}


def _plain(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Give a column as a graph takes it, what is missing as an empty string or NaN."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(pc.fill_null(values, "").to_pylist())
    if values.null_count:
        values = pc.fill_null(values.cast(pa.float64()), float("nan"))
    return (
        values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    )


def _ask(path: Path, signature: str, columns: dict[str, np.ndarray], root: Path) -> Any:
    np.savez(root / "asked.npz", **columns)
    words = [str(path), signature, str(root / "asked.npz"), str(root / "answered.npz")]
    subprocess.run([sys.executable, "-c", _PLAIN, *words], check=True, stderr=subprocess.DEVNULL)
    return np.load(root / "answered.npz")
