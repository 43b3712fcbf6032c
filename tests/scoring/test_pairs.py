"""Pair scores: the plain definition, independence of the batch, refusals."""

import numpy as np
import pytest

from simrec.errors import InputError
from simrec.scoring import pairs
from simrec.scoring.output import Output
from simrec.scoring.pairs import score_pairs


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((50, 13)).astype(np.float32),
        rng.standard_normal((70, 13)).astype(np.float32),
    )


@pytest.fixture
def rows():
    rng = np.random.default_rng(1)
    return rng.integers(0, 50, 3000), rng.integers(0, 70, 3000)


def test_scores_are_scalar_products(vectors, rows):
    users, items = vectors
    exact = (users[rows[0]].astype(np.float64) * items[rows[1]]).sum(axis=1)
    scores = score_pairs(users, items, *rows)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, exact, atol=1e-5)


def test_output_is_applied(vectors, rows):
    output = Output.fit((1, 5), 3.5)
    np.testing.assert_array_equal(
        score_pairs(*vectors, *rows, output=output), output(score_pairs(*vectors, *rows))
    )


@pytest.mark.parametrize("block", [1, 13 * 7, 13 * 1000])
def test_blocks_do_not_change_a_bit(vectors, rows, block, monkeypatch):
    whole = score_pairs(*vectors, *rows)
    monkeypatch.setattr(pairs, "BLOCK_FLOATS", block)
    np.testing.assert_array_equal(score_pairs(*vectors, *rows), whole)


def test_batch_equals_single(vectors, rows):
    batch = score_pairs(*vectors, *rows)
    single = [score_pairs(*vectors, rows[0][i : i + 1], rows[1][i : i + 1])[0] for i in range(50)]
    np.testing.assert_array_equal(batch[:50], single)


def test_no_pairs_give_no_scores(vectors):
    assert score_pairs(*vectors, np.empty(0, int), np.empty(0, int)).shape == (0,)


@pytest.mark.parametrize(
    ("user_rows", "item_rows", "message"),
    [
        ([0, -1], [0, 0], r"user_rows: 1 of 2 rows are outside 0..49 \(first: -1 at position 1\)"),
        ([0], [70], "item_rows: 1 of 1 rows"),
        ([0, 1], [0], "a pair needs one of each"),
        ([0.5], [0], "integers"),
        ([[0]], [0], "row of integers"),
    ],
)
def test_bad_rows_are_refused(vectors, user_rows, item_rows, message):
    with pytest.raises(InputError, match=message):
        score_pairs(*vectors, np.array(user_rows), np.array(item_rows))


def test_vectors_must_agree(vectors, rows):
    users, items = vectors
    with pytest.raises(InputError, match="13 coordinates and item_vectors 12"):
        score_pairs(users, items[:, :12], *rows)
    with pytest.raises(InputError, match="two dimensions"):
        score_pairs(users[0], items, *rows)


def test_scores_beyond_float32_are_refused(vectors):
    users, items = vectors
    users[:3] = 1e25
    items[0] = 1e25
    rows = np.arange(4), np.zeros(4, np.int64)
    with np.errstate(over="ignore"), pytest.raises(InputError, match="3 of 4 scores are no finite"):
        score_pairs(users, items, *rows)
