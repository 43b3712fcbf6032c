"""Workers that have some of the users each write what one worker writes, to the byte."""

import copy
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workers import in_threads

from simrec import InputError, TwoTower
from simrec.model import files as model_files
from simrec.model.run.workers import write_rows
from simrec.model.update.update import State
from simrec.storage.arrays import id_arrays

KINDS = ("default", "uptake alone", "ids of text")


def of_kind(kind, table):
    """A table as a kind of model takes it."""
    if kind == "uptake alone" and "rating" in table.column_names:
        table = table.drop_columns(["rating"])
    if kind == "ids of text" and "user_id" in table.column_names:
        place = table.column_names.index("user_id")
        texts = [f"u{str(i)[::-1]}" for i in table["user_id"].to_pylist()]
        table = table.set_column(place, "user_id", [texts])
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_workers_write_what_one_writes(kind, tables, tmp_path):
    given = {
        name: of_kind(kind, pq.read_table(tables / f"{name}.parquet"))
        for name in ("ratings", "items", "users")
    }
    model = TwoTower(embedding_dim=2, epochs=2, bounds=None if kind == "uptake alone" else (1, 5))
    model.fit(given["ratings"], items=given["items"], users=given["users"])
    model.save(tmp_path / "one")
    # One of the workers has no users at all.
    parts = []
    for rows in np.split(np.arange(len(model.users_)), [7, 7]):
        part = copy.copy(model)
        state = State(model.towers_, model.parts_, model.rated_, model.liked_).only_users(rows)
        part.towers_, part.parts_ = state.towers, dict(state.parts)
        part.rated_, part.liked_ = state.rated, state.liked
        parts.append(part)
    ids = in_threads(3, lambda w: model_files.save(parts[w.rank], tmp_path / "three", workers=w))
    assert ids == [model.model_id_] * 3
    assert sorted(os.listdir(tmp_path / "three")) == sorted(os.listdir(tmp_path / "one"))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "three" / file.name).read_bytes(), file.name
    assert len(TwoTower.load(tmp_path / "three").users_) == len(model.users_)


def test_workers_with_ids_of_different_types_are_refused(tmp_path):
    ids = [pa.array([1, 2]), pa.array([3], pa.int32())]
    work = [id_arrays("users_ids", one) for one in ids]
    found = in_threads(2, lambda w: write_rows(tmp_path, work[w.rank], w))
    (message,) = {str(error) for error in found if isinstance(error, InputError)}
    assert message.startswith("users_ids: workers have different types: <i4, <i8")
