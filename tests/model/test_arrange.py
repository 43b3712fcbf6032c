"""Ratings as matrices that are made in pieces: the same as in one go."""

import numpy as np
import pytest
from scipy import sparse

from simrec.model.run import arrange
from simrec.model.run.scratch import IN_MEMORY, Scratch


@pytest.fixture
def entries():
    """Return rows, columns and values of a matrix with an empty row, in no order."""
    rng = np.random.default_rng(0)
    places = rng.permutation(40 * 30)[:500]
    places = places[places // 30 != 7]
    return (places // 30).astype(np.int32), (places % 30).astype(np.int32), rng.random(len(places))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(arrange, "PIECE", 37)


def in_files(tmp_path):
    return Scratch(1, tmp_path)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("room", [lambda path: IN_MEMORY, in_files])
def test_a_matrix_made_in_pieces_is_the_same(entries, tmp_path, room):
    rows, columns, values = entries
    values = values.astype(np.float32)
    expected = sparse.csr_matrix((values, (rows, columns)), shape=(40, 30))
    expected.sort_indices()
    made = arrange.arranged(rows, columns, lambda at: values[at], (40, 30), room(tmp_path))
    for matrix, other in [
        (made, expected),
        (arrange.transposed(made, room(tmp_path)), expected.T.tocsr()),
    ]:
        assert matrix.shape == other.shape
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
        for name in ("data", "indices", "indptr"):
            assert np.array_equal(getattr(matrix, name), getattr(other, name))


@pytest.mark.usefixtures("small_pieces")
def test_counts_are_those_of_all_pieces(entries):
    rows, _, values = entries
    assert np.array_equal(arrange.counted(rows, 41), np.bincount(rows, minlength=41))
    found = arrange.counted(rows, 41, values)
    assert np.allclose(found, np.bincount(rows, values, minlength=41), rtol=1e-12)
