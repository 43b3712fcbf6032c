"""Arrays of a fit in files, where memory is limited: the same model, and nothing left behind."""

import errno
import os

import numpy as np
import pytest
from scipy import sparse

from simrec import InputError, TwoTower, make_synthetic
from simrec.jobs.train import DataOptions, train
from simrec.mapped import is_mapped, release
from simrec.model.rating import observed, packed
from simrec.model.rating.observed import rating_rows, transposed_rows
from simrec.model.run import scratch as module
from simrec.model.run.scratch import IN_MEMORY, Scratch, by_blocks, slices

SMALL = {"embedding_dim": 3, "epochs": 2, "random_state": 1}


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=150, n_items=80, n_ratings=2500)


@pytest.fixture
def files(tmp_path):
    """Room in which every array goes to a file."""
    return Scratch(1, tmp_path)


def fit(data, **how):
    # Some users without ratings: their part of the model is written too.
    ratings = data.ratings.filter(np.asarray(data.ratings["user_id"]) > 10)
    return TwoTower(**SMALL).fit(ratings, items=data.items, users=data.users, **how)


def test_a_fit_in_files_is_the_same_to_the_bit(data, tmp_path, monkeypatch):
    made, room = [], tmp_path / "scratch"
    room.mkdir()
    plain = Scratch.empty

    def empty(self, *arguments):
        array = plain(self, *arguments)
        if self.limited:  # choices are made on a sample, in memory
            made.append(is_mapped(array))
        assert not any(room.iterdir())
        return array

    expected = fit(data)
    monkeypatch.setattr(Scratch, "empty", empty)
    model = fit(data, memory=1, scratch=room)
    assert made
    assert all(made)
    pairs = data.ratings.slice(0, 500)
    for one, other in zip(
        model.predict(pairs, return_std=True), expected.predict(pairs, return_std=True), strict=True
    ):
        assert np.array_equal(one, other)
    lists = [m.recommend(k=5, output="arrow") for m in (model, expected)]
    assert lists[0].equals(lists[1])
    model.save(tmp_path / "model")
    model.update(data.ratings.slice(0, 20))
    expected.update(data.ratings.slice(0, 20))
    assert np.array_equal(model.predict(pairs), expected.predict(pairs))


def test_an_array_in_a_file_has_no_name_and_keeps_what_was_written(files, tmp_path):
    array = files.empty((5000, 7))
    assert not any(tmp_path.iterdir())
    array[:] = np.arange(35000).reshape(5000, 7)
    release(array, array[100:200], array[:, 1], array[:0])
    assert np.array_equal(array.ravel(), np.arange(35000))


def test_released_pages_are_not_resident(files):
    array = files.empty((4 << 20,))
    array[:] = 1
    before = _resident()
    release(array)
    assert before - _resident() > 8 << 20


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_small_arrays_stay_in_memory(tmp_path):
    room = Scratch(64_000, tmp_path)
    assert not is_mapped(room.empty((250,)))
    assert is_mapped(room.empty((251,)))
    assert not is_mapped(IN_MEMORY.empty((251,)))


def test_a_full_disk_is_named(files, tmp_path, monkeypatch, data):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="the disk is full") as error:
        fit(data, memory=1, scratch=tmp_path)
    assert error.value.filename == str(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"memory": "much"}, "expected a size such as 2GB"),
        ({"scratch": "."}, "give memory too"),
        ({"memory": "1GB", "scratch": "nowhere"}, "nowhere is no directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(data, how, words, tmp_path):
    data.write(tmp_path)
    with pytest.raises(InputError, match=words):
        fit(data, **how)
    tables = DataOptions(ratings=tmp_path / "ratings.parquet")
    with pytest.raises(InputError, match=words):
        train(TwoTower(**SMALL), tables, tmp_path / "model", **how)
    assert not (tmp_path / "model").exists()


def test_blocks_cover_all_rows_once(files, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "_ROWS", 2)
    assert [rows for rows in slices(0)] == []
    assert list(slices(17)) == [slice(0, 8), slice(8, 16), slice(16, 17)]
    for array in (files.empty((17, 3)), np.empty((17, 3), np.float32)):
        array[:] = 0

        def add(rows, array=array):
            array[rows] += np.arange(17)[rows, None]

        by_blocks(add, 17, array)
        assert np.array_equal(array[:, 0], np.arange(17))


def test_ranges_of_partners_sum_to_the_whole(files, monkeypatch):
    rng = np.random.default_rng(0)
    R = sparse.random_array((53, 11), density=0.3, rng=rng, dtype=np.float32).tocsr()
    R = sparse.csr_matrix(R)
    table = rng.normal(size=(53, 4)).astype(np.float32)
    for columns, room in ((100, IN_MEMORY), (10, IN_MEMORY), (10, files)):
        monkeypatch.setattr(observed, "_COLUMNS", columns)
        rows = transposed_rows(R, scratch=room)
        assert len(rows.blocks) == -(-53 // columns)
        np.testing.assert_allclose(rows.sum_partners(table), (R != 0).T @ table, atol=1e-5)
        np.testing.assert_allclose(rows.squares(), R.power(2).toarray().sum(0), atol=1e-5)
        assert (rows.matrix() != R.T).nnz == 0
        got = np.empty((11, 8), np.float32)

        def take(part, ones, rated, got=got):
            got[part] = np.hstack([ones, rated])

        rows.sums(lambda part: (table[part], 2 * table[part]), (4, 4), take)
        np.testing.assert_allclose(got[:, 4:], 2 * (R.T @ table), atol=1e-5)
    assert np.array_equal(rating_rows(R).counts, np.diff(R.indptr))


def test_packed_matrices():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(6, 5, 5)).astype(np.float32)
    A = A + A.transpose(0, 2, 1)
    Y, w = rng.normal(size=(6, 5)).astype(np.float32), rng.random(6)
    triangles = packed.pack(A)
    assert triangles.shape == (6, 15)
    assert np.array_equal(packed.unpack(triangles), A)
    assert np.array_equal(packed.diagonals(triangles), np.einsum("nii->ni", A))
    assert np.array_equal(packed.unpack(packed.outer(Y)), Y[:, :, None] * Y[:, None, :])
    np.testing.assert_allclose(packed.products(triangles, Y), np.einsum("nij,nj->ni", A, Y), 1e-5)
    np.testing.assert_allclose(packed.weighted_sum(triangles), A.sum(0), 1e-5)
    np.testing.assert_allclose(
        packed.weighted_sum(triangles, w), np.einsum("n,nij->ij", w, A), 1e-5
    )
    traces = (triangles * triangles) @ packed.trace_weights(5)
    np.testing.assert_allclose(traces, np.einsum("nij,nij->n", A, A), 1e-5)
