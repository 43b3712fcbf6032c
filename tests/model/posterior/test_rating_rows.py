"""Rows worked on in blocks, ratings in ranges of partners, symmetric matrices as triangles."""

import numpy as np
from scipy import sparse

from simrec.model.posterior import observed, packed
from simrec.model.posterior.observed import rating_rows, transposed_rows
from simrec.scoring import threads
from simrec.scoring.threads import by_blocks, row_blocks


def test_blocks_cover_all_rows_once(monkeypatch):
    monkeypatch.setattr(threads, "BLOCK", 8)
    monkeypatch.setattr(threads, "ROWS", 2)
    assert list(row_blocks(0)) == []
    assert list(row_blocks(17)) == [slice(0, 8), slice(8, 16), slice(16, 17)]
    array = np.zeros((17, 3), np.float32)

    def add(rows):
        array[rows] += np.arange(17)[rows, None]

    by_blocks(add, 17)
    assert np.array_equal(array[:, 0], np.arange(17))


def test_ranges_of_partners_sum_to_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    R = sparse.random_array((53, 11), density=0.3, rng=rng, dtype=np.float32).tocsr()
    R = sparse.csr_matrix(R)
    table = rng.normal(size=(53, 4)).astype(np.float32)
    for columns in (100, 10):
        monkeypatch.setattr(observed, "_COLUMNS", columns)
        rows = transposed_rows(R)
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
