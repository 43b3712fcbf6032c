"""What a model keeps to learn, to explain and to give intervals later, and a model without it."""

import numpy as np
import pytest

from simrec import InputError, TwoTower, make_synthetic
from simrec.evaluation.tasks import unfitted_copy
from simrec.model.posterior import packed
from simrec.model.posterior.evidence import EVIDENCE

SMALL = {"embedding_dim": 3, "epochs": 2, "random_state": 1}


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=150, n_items=80, n_ratings=2500)


@pytest.fixture(scope="module")
def models(data):
    def fit(**settings):
        model = TwoTower(**SMALL, **settings)
        return model.fit(data.ratings, items=data.items, users=data.users)

    return fit(), fit(keep_evidence=False)


def test_a_model_without_evidence_scores_the_same(models, data):
    whole, scores = models
    pairs = data.ratings.slice(0, 500)
    assert np.array_equal(whole.predict(pairs), scores.predict(pairs))
    lists = [m.recommend([1, 2, 3], k=5, output="arrow") for m in models]
    assert lists[0].equals(lists[1])
    assert scores.parts_["rating"].evidence is None


def test_a_model_without_evidence_saves_none_and_loads(models, data, tmp_path):
    for model, name in zip(models, ("whole", "scores"), strict=True):
        model.save(tmp_path / name)
    names = {path.name for path in (tmp_path / "scores").iterdir()}
    assert not [name for name in names if EVIDENCE in name]
    left_out = {path.name for path in (tmp_path / "whole").iterdir()} - names
    assert left_out
    assert all(EVIDENCE in name for name in left_out)
    loaded = TwoTower.load(tmp_path / "scores")
    assert not loaded.keep_evidence
    pairs = data.ratings.slice(0, 500)
    assert np.array_equal(loaded.predict(pairs), models[0].predict(pairs))


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, few: model.update(few),
        lambda model, few: model.fold_in(few),
        lambda model, few: model.predict(few.select(["user_id", "item_id"]), return_std=True),
        lambda model, few: model.recommend([1], explore=1.0),
        lambda model, few: model.explain(1, 1),
        lambda model, few: model.item_simec_,
    ],
    ids=["update", "fold_in", "return_std", "explore", "explain", "item_simec_"],
)
def test_what_needs_evidence_says_so(models, data, ask):
    with pytest.raises(InputError, match="keep_evidence=True"):
        ask(models[1], data.ratings.slice(0, 5))


def test_a_model_without_evidence_forgets_users(models):
    before = models[1].predict(2, 1)
    model = unfitted_copy(models[1])
    model.__dict__.update(models[1].__dict__)
    model.forget([1])
    assert len(model.users_) == len(models[1].users_) - 1
    assert np.array_equal(model.predict(2, 1), before)


def test_two_simecs_without_evidence(data):
    model = TwoTower(embedding_dim=3, epochs=1, refine=False, keep_evidence=False)
    model.fit(data.ratings)
    assert np.isfinite(model.predict(data.ratings.slice(0, 50))).all()
    with pytest.raises(InputError, match="keep_evidence=True"):
        model.update(data.ratings.slice(0, 5))


def test_copies_for_evaluation_keep_evidence(models):
    assert unfitted_copy(models[1]).keep_evidence


def test_covariances_are_kept_as_factors_to_a_thousandth():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 17, 17)) * rng.uniform(0.01, 1, (50, 17, 1))
    covariances = packed.pack(A @ A.transpose(0, 2, 1) + 1e-4 * np.eye(17))
    kept = packed.to_factors(covariances)
    assert kept.dtype == np.float16
    assert kept.nbytes == 50 * 306
    found, whole = packed.unpack(packed.of_factors(kept)), packed.unpack(covariances)
    scale = np.sqrt(np.einsum("nii,njj->nij", whole, whole))
    assert (np.abs(found - whole) / scale).max() < 2e-3
    assert np.linalg.eigvalsh(found.astype(np.float64)).min() > 0


def test_a_covariance_that_rounding_made_indefinite_is_kept_as_the_nearest():
    almost = np.eye(3, dtype=np.float32)
    almost[0, 1] = almost[1, 0] = 1 + 1e-6
    kept = packed.to_factors(packed.pack(np.stack([np.eye(3, dtype=np.float32), almost])))
    found = packed.unpack(packed.of_factors(kept))
    assert np.allclose(found, [np.eye(3), almost], atol=2e-3)
