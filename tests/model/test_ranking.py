import numpy as np
import pytest
from scipy import sparse

from simrec.errors import InputError
from simrec.model.fit.ranking import fit_ranking
from simrec.model.fit.ranking_network import ColumnSample, RankingTower, Stage
from simrec.simec.keras import tf

N_ITEMS, N_USERS, GROUPS = 120, 90, 3
QUICK = {"embedding_dim": 4, "epochs": 12, "learning_rate": 0.05, "l2": 10.0, "l2_user": 10.0}


def planted(seed=0):
    """Users like items of their own group, and some items are liked more; features tell both."""
    rng = np.random.default_rng(seed)
    item_group, user_group = rng.integers(GROUPS, size=N_ITEMS), rng.integers(GROUPS, size=N_USERS)
    known = rng.random(N_ITEMS) < 0.5
    chance = np.where(item_group[:, None] == user_group, 0.35, 0.03)
    chance = chance * np.where(known, 1.5, 0.5)[:, None]
    liked = sparse.csr_matrix((rng.random(chance.shape) < chance).astype(np.float32))
    items = sparse.csr_matrix(
        np.column_stack([np.eye(GROUPS)[item_group], known]), dtype=np.float32
    )
    users = sparse.csr_matrix(np.eye(GROUPS)[user_group], dtype=np.float32)
    return liked, items, users, chance


def encode(features, weights):
    return np.column_stack([features.toarray(), np.ones(features.shape[0])]) @ weights


def agreement(scores, chance):
    """Share of pairs of items, over users, that are ranked as their chances say."""
    order = np.sign(chance[:, None] - chance[None])
    return (np.sign(scores[:, None] - scores[None]) == order)[order != 0].mean()


@pytest.fixture(scope="module")
def fitted():
    liked, items, users, chance = planted()
    warm_items, warm_users = np.arange(N_ITEMS) < 90, np.arange(N_USERS) < 70
    towers = fit_ranking(
        liked[warm_items][:, warm_users], items[warm_items], users[warm_users], **QUICK
    )
    return towers, items, users, chance, warm_items, warm_users


def test_ranks_known_and_new_items_for_known_and_new_users(fitted):
    towers, items, users, chance, warm_items, warm_users = fitted
    new_items = encode(items[~warm_items], towers.item_weights)
    new_users = encode(users[~warm_users], towers.user_weights)
    for item_vectors, user_vectors, rows, columns in [
        (towers.item_vectors, towers.user_vectors, warm_items, warm_users),
        (new_items, towers.user_vectors, ~warm_items, warm_users),
        (towers.item_vectors, new_users, warm_items, ~warm_users),
        (new_items, new_users, ~warm_items, ~warm_users),
    ]:
        assert agreement(item_vectors @ user_vectors.T, chance[rows][:, columns]) > 0.8


def test_probabilities_add_up_to_what_is_liked(fitted):
    towers, *_, warm_items, warm_users = fitted
    liked = planted()[0][warm_items][:, warm_users]
    p = 1 / (1 + np.exp(-towers.item_vectors @ towers.user_vectors.T))
    assert p.sum() == pytest.approx(liked.nnz, rel=0.1)


def test_biases_are_coordinates(fitted):
    towers, items, users, *_ = fitted
    assert towers.item_vectors.dtype == towers.user_vectors.dtype == np.float32
    assert towers.item_weights.dtype == towers.user_weights.dtype == np.float32
    assert (towers.item_vectors[:, -1] == 1).all()
    assert (towers.user_vectors[:, -2] == 1).all()
    assert (encode(items, towers.item_weights)[:, -1] == 1).all()
    assert (encode(users, towers.user_weights)[:, -2] == 1).all()


def test_history_tells_every_epoch_as_it_happens():
    liked, items, users, _ = planted()
    told = []
    towers = fit_ranking(liked, items, users, embedding_dim=2, epochs=8, on_epoch=told.append)
    assert told == towers.history
    assert ["loss" in entry for entry in told] == [True] * 8 + [False] * 2
    assert all("user_loss" in entry for entry in told[8:])
    assert told[7]["loss"] < told[0]["loss"]


def test_same_seed_same_vectors_and_input_untouched():
    liked, items, users, _ = planted()
    before = [matrix.copy() for matrix in (liked, items, users)]
    first, second, third = (
        fit_ranking(liked, items, users, embedding_dim=2, epochs=2, random_state=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first.item_vectors, second.item_vectors)
    assert np.array_equal(first.user_weights, second.user_weights)
    assert not np.array_equal(first.item_vectors, third.item_vectors)
    for matrix, copy in zip((liked, items, users), before, strict=True):
        assert np.array_equal(matrix.toarray(), copy.toarray())


def test_stored_is_liked_whatever_the_value():
    liked, items, users, _ = planted()
    other = liked.copy()
    other.data[:] = np.arange(other.nnz) % 5
    first, second = (
        fit_ranking(m, items, users, embedding_dim=2, epochs=1) for m in (liked, other)
    )
    assert np.array_equal(first.user_vectors, second.user_vectors)


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize("has_users", [True, False])
def test_sides_without_features_give_the_average_entity(has_items, has_users):
    liked, items, users, chance = planted()
    towers = fit_ranking(liked, items if has_items else None, users if has_users else None, **QUICK)
    assert agreement(towers.item_vectors @ towers.user_vectors.T, chance) > 0.75
    assert towers.item_weights.shape == (5 if has_items else 1, 6)
    assert towers.user_weights.shape == (4 if has_users else 1, 6)
    if not has_users:
        popularity = towers.item_vectors @ towers.user_weights[0]
        assert np.corrcoef(popularity, np.log(np.diff(liked.indptr) + 1.0))[0, 1] > 0.8


def test_many_noisy_features_are_shrunk():
    liked, items, _, chance = planted()
    rng = np.random.default_rng(5)
    noise = sparse.csr_matrix((rng.random((N_ITEMS, 2000)) < 0.01).astype(np.float32))
    rich = sparse.hstack([items, noise], format="csr")
    warm = np.arange(N_ITEMS) < 90
    towers = fit_ranking(liked[warm], rich[warm], **QUICK)
    new = encode(rich[~warm], towers.item_weights)
    assert agreement(new @ towers.user_vectors.T, chance[~warm]) > 0.75


def test_rows_and_columns_where_nothing_is_liked():
    liked = sparse.lil_matrix((20, 15), dtype=np.float32)
    liked[2:, 3:] = 1
    towers = fit_ranking(liked.tocsr(), embedding_dim=2, epochs=5)
    assert np.isfinite(towers.item_vectors).all() and np.isfinite(towers.user_vectors).all()
    scores = towers.item_vectors @ towers.user_vectors.T
    assert scores[2:].min(0).mean() > scores[:2].max(0).mean()


def test_sampled_zeros_rank_as_all_zeros_do(monkeypatch):
    monkeypatch.setattr("simrec.model.fit.ranking_network._FEWEST_COLUMNS", 20)
    liked, items, users, chance = planted()
    warm = np.arange(N_ITEMS) < 90
    towers = fit_ranking(liked[warm], items[warm], users, max_cells=1, **QUICK)
    new = encode(items[~warm], towers.item_weights)
    assert agreement(new @ towers.user_vectors.T, chance[~warm]) > 0.8
    p = 1 / (1 + np.exp(-towers.item_vectors @ towers.user_vectors.T))
    assert p.sum() == pytest.approx(liked[warm].nnz, rel=0.15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"liked": sparse.csr_matrix((5, 4), dtype=np.float32)}, "nothing is liked"),
        ({"liked": np.ones((5, 4))}, "sparse matrix"),
        ({"item_features": sparse.csr_matrix(np.ones((4, 2)))}, "item_features has 4 rows.* 5"),
        (
            {"user_features": sparse.csr_matrix([[1.0], [0.0], [np.nan], [1.0]])},
            "user_features .* not finite, the first in row 2",
        ),
        ({"embedding_dim": 0}, "embedding_dim"),
    ],
)
def test_bad_input_is_refused_by_name(change, message):
    given = {"liked": sparse.csr_matrix(np.eye(5, 4)), "epochs": 1} | change
    with pytest.raises(InputError, match=message):
        fit_ranking(**given)


# One tower.

RNG = np.random.default_rng(3)
LIKED = sparse.csr_matrix((RNG.random((7, 11)) < 0.3).astype(np.float32))
FEATURES = sparse.csr_matrix(np.column_stack([RNG.random((7, 2)), np.ones(7)]), dtype=np.float32)
WEIGHTS, OFFSETS, LAST = (
    RNG.normal(size=(n, 4)).astype(np.float32) for n in (3, LIKED.shape[0], LIKED.shape[1])
)
WEIGHTS[:-1, 3] = OFFSETS[:, 3] = 0.0  # the coordinate that is always one
WEIGHTS[-1, 3] = 1.0


def tower(one_last, max_cells=10**9, dropout=0.0):
    made = RankingTower(WEIGHTS, OFFSETS, LAST, 3, one_last, Stage(2.0, 3.0, 5.0, dropout))
    made.prepare(LIKED, FEATURES, max_cells)
    return made


def test_written_gradient_is_that_of_the_objective():
    made = tower(one_last=2)
    loss = made.step(np.arange(7), 0.01, np.random.default_rng(0))
    variables = [tf.Variable(a) for a in (WEIGHTS, OFFSETS, LAST)]
    with tf.GradientTape() as tape:
        weights, offsets, last = variables
        z = tf.matmul(FEATURES.toarray() @ weights + offsets, last, transpose_b=True)
        entropy = tf.reduce_sum(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=LIKED.toarray(), logits=z)
        )
        total = entropy + 0.5 * (
            2.0 * tf.reduce_sum(weights[:-1] ** 2)
            + 3.0 * tf.reduce_sum(offsets**2)
            + 5.0 * tf.reduce_sum(last**2)
        )
    assert loss == pytest.approx(float(entropy), rel=1e-5)
    grads = tape.gradient(total, variables)
    fixed = (3, 3, 2)  # coordinates that stay as they are
    for moments, grad, column in zip(made._moments, grads, fixed, strict=True):
        free = np.arange(4) != column
        found = 7 * moments[0].numpy() / 0.1
        assert np.allclose(found[:, free], grad.numpy()[:, free], atol=1e-3)
    for after, before, column in zip(made.arrays(), (WEIGHTS, OFFSETS, LAST), fixed, strict=True):
        assert np.array_equal(after[:, column], before[:, column])


def test_frozen_last_layer_is_bit_identical():
    made = tower(one_last=None)
    for _ in range(5):
        made.step(np.arange(7), 0.1, np.random.default_rng(0))
    weights, _, last = made.arrays()
    assert last.tobytes() == LAST.tobytes()
    assert not np.allclose(weights, WEIGHTS)


def test_dropped_offsets_leave_the_encoder_alone():
    made = tower(one_last=None, dropout=1.0)
    loss = made.step(np.arange(7), 0.1, np.random.default_rng(0))
    z = FEATURES.toarray() @ WEIGHTS @ LAST.T
    assert loss == pytest.approx(float((np.logaddexp(0, z) - LIKED.toarray() * z).sum()), rel=1e-4)


@pytest.mark.parametrize("one_last", [2, None])
def test_sample_of_every_column_is_the_full_step(monkeypatch, one_last):
    full = tower(one_last)
    monkeypatch.setattr("simrec.model.fit.ranking_network._FEWEST_COLUMNS", 10)
    sampled = tower(one_last, max_cells=1)
    sampled._sample.chance = np.ones(LIKED.shape[1])
    rows = np.array([5, 0, 3])
    losses = [made.step(rows, 0.01, np.random.default_rng(0)) for made in (full, sampled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(full.arrays(), sampled.arrays(), strict=True):
        assert np.allclose(one, other, atol=1e-5)


def test_sample_has_the_right_sum_on_average(monkeypatch):
    monkeypatch.setattr("simrec.model.fit.ranking_network._FEWEST_COLUMNS", 1)
    rng = np.random.default_rng(0)
    liked = sparse.csr_matrix(rng.random((50, 40)) < np.linspace(0, 0.9, 40) ** 4)
    sample = ColumnSample(liked, max_cells=50 * 10)
    values = rng.random(40)
    draws = [sample.draw(rng) for _ in range(3000)]
    assert all(len(np.unique(columns)) == len(columns) for columns, _ in draws)
    assert {len(columns) for columns, _ in draws} <= {9, 10, 11}
    sums = [values[columns] @ weights for columns, weights in draws]
    assert np.mean(sums) == pytest.approx(values.sum(), rel=0.02)
    assert ColumnSample(liked, max_cells=50 * 40).everything
