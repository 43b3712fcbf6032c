"""Tables divided between workers by ranges of user ids."""

import itertools
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workers import in_threads

from simrec.data.source import Source, open_source
from simrec.errors import InputError
from simrec.jobs.io.portions import Divided


def divided(directory, size, scratch):
    table = Divided.of("ratings", open_source(directory, "ratings"), "user_id")

    def work(workers):
        starts = table.starts(workers)
        return table.portion(starts, workers, scratch)

    return in_threads(size, work)


def write(directory, users, n_files, row_group=50):
    directory.mkdir()
    table = pa.table(
        {"user_id": users, "item_id": np.arange(len(users)), "when": ["x"] * len(users)}
    )
    step = -(-len(users) // n_files)
    for i in range(n_files):
        part = table.slice(i * step, step)
        pq.write_table(part, directory / f"part-{i}.parquet", row_group_size=row_group)
    return table


def check(table, portions):
    """Every row is on one worker, in the order of the ids' ranges and else of the table."""
    assert not [one for one in portions if isinstance(one, BaseException)]
    ids = [one["user_id"].to_pylist() for one in portions]
    assert all(max(a) < min(b) for a, b in itertools.pairwise(ids))
    together = pa.concat_tables(portions)
    order = ("item_id", "ascending")
    assert together.sort_by([order]).equals(table.sort_by([order]))
    assert max(map(len, ids)) < 2.2 * len(table) / len(portions)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("strings", [False, True])
def test_unsorted_files_are_exchanged(tmp_path, size, strings):
    users = np.random.default_rng(0).integers(0, 60, 1000)
    users = [f"u{u}" for u in users] if strings else users
    table = write(tmp_path / "in", users, 3)
    check(table, divided(tmp_path / "in", size, tmp_path / "scratch"))
    assert not list((tmp_path / "scratch").rglob("*.parquet"))


def test_no_fragment_is_read_by_two_workers(tmp_path, monkeypatch):
    users = np.random.default_rng(0).integers(0, 60, 1000)
    write(tmp_path / "in", users, 6)
    readers, plain = {}, Source.batches

    def batches(self, unit, *arguments):
        readers.setdefault(unit.index, set()).add(threading.get_ident())
        return plain(self, unit, *arguments)

    monkeypatch.setattr(Source, "batches", batches)
    divided(tmp_path / "in", 3, tmp_path / "scratch")
    assert sorted(readers) == list(range(6)) and all(len(who) == 1 for who in readers.values())


def test_more_workers_than_users_and_users_without_ids(tmp_path):
    write(tmp_path / "few", np.zeros(100, int), 2)
    errors = divided(tmp_path / "few", 2, tmp_path / "scratch")
    assert any(isinstance(e, InputError) and "2 workers for 1 users" in str(e) for e in errors)
    write(tmp_path / "null", pa.array([1, 2, None, 3] * 50), 2)
    errors = divided(tmp_path / "null", 2, tmp_path / "scratch")
    assert any(isinstance(e, InputError) and "part-0.parquet" in str(e) for e in errors)


def test_csv_files_are_exchanged_as_well(tmp_path):
    import pyarrow.csv

    users = np.random.default_rng(0).integers(0, 60, 400)
    table = pa.table({"user_id": users, "item_id": np.arange(len(users))})
    (tmp_path / "in").mkdir()
    for i in range(2):
        pyarrow.csv.write_csv(table.slice(i * 200, 200), tmp_path / "in" / f"{i}.csv")
    check(table, divided(tmp_path / "in", 2, tmp_path / "scratch"))
