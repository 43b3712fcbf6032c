"""Replay: what each policy has learned when it answers, what it costs, the command."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError, Ratings, TwoTower, make_synthetic, replay
from simrec.cli import main
from simrec.evaluation.baselines import PopularityBaseline
from simrec.evaluation.replay import POLICIES

DAY = 86400


@pytest.fixture(scope="module")
def history():
    data = make_synthetic(n_users=150, n_items=90, n_ratings=3000, random_state=0)
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 60 * DAY, data.ratings.num_rows)) + 1_000_000_000
    return data, data.ratings.append_column("timestamp", pa.array(times))


class Counting:
    """A model that knows how many ratings it has learned, and how: popular items for everyone."""

    log = []

    def __init__(self, name="x"):
        self.name = name

    def get_params(self):
        return {"name": self.name}

    def fit(self, ratings, items=None, users=None):
        self.seen, self.popular = len(ratings), PopularityBaseline.fit(ratings)
        self.log.append(("fit", len(ratings)))
        return self

    def update(self, ratings, items=None, users=None):
        self.seen += len(ratings)
        self.log.append(("update", len(ratings)))

    def predict(self, pairs):
        return np.full(len(pairs), self.seen, np.float32)

    def recommend(self, users, k, items, exclude=None):
        return self.popular.recommend(users, k, items, exclude)


def test_policies_answer_before_they_learn(history):
    _, ratings = history
    Counting.log = []
    policies = ("stand still", "update", "refit", "refit + update", "baseline")
    found = replay(Counting(), ratings, every="5d", refit="10d", policies=policies)
    frame = found.periods
    assert set(frame["policy"]) == set(policies)
    first = frame["n"].iloc[0]
    n = frame[frame["policy"] == "update"]["n"].to_numpy()
    assert n.sum() == 1500 and frame.groupby("policy")["n"].sum().nunique() == 1
    # The error shows how many ratings a model had learned when it answered (ratings are small).
    seen = frame.assign(seen=(frame["rmse"]).round(-1)).set_index("policy")["seen"]
    before = 1500 + np.concatenate([[0], np.cumsum(n)[:-1]])
    np.testing.assert_allclose(seen.loc["update"], before, atol=10)
    np.testing.assert_allclose(seen.loc["stand still"], 1500, atol=10)
    np.testing.assert_allclose(seen.loc["refit + update"], before, atol=10)
    refit = seen.loc["refit"].to_numpy()
    np.testing.assert_allclose(refit[[0, 1]], 1500, atol=10)
    np.testing.assert_allclose(refit[2], 1500 + first + n[1], atol=10)
    summary = found.policies.set_index("policy")
    assert summary.loc["stand still", "fits"] == 1 and summary.loc["stand still", "updates"] == 0
    assert summary.loc["update", "updates"] == len(n) - 1
    assert summary.loc["refit", "fits"] == 1 + (len(n) - 1) // 2
    ages = frame[frame["policy"] == "refit"]["age_days"].to_list()
    assert ages[:4] == [0, 5, 0, 5]
    # The first fit is shared.
    assert [entry for entry in Counting.log if entry == ("fit", 1500)] == [("fit", 1500)]


@pytest.mark.slow
def test_two_tower_with_all_policies(history, caplog):
    data, ratings = history
    model = TwoTower(embedding_dim=2, epochs=2)
    found = replay(model, ratings, items=data.items, users=data.users, every="10", refit="2w")
    assert not hasattr(model, "user_tower_")  # it stays as it was
    assert list(found.policies["policy"]) == list(POLICIES)
    assert found.periods[["rmse", "ndcg@10"]].notna().all(axis=None)
    assert (found.policies["seconds"] >= 0).all() and found.sentence in str(found)
    assert "is best" in found.sentence or "is enough" in found.sentence
    # Folding in is asked for newcomers alone: no word about ratings that change nothing.
    assert not [r for r in caplog.records if r.levelname == "WARNING" and "fold_in" in r.message]


def test_refusals(history):
    _, ratings = history
    with pytest.raises(InputError, match="every must be a length of time"):
        replay(Counting(), ratings, every="soon")
    with pytest.raises(InputError, match="unknown \\['hope'\\]"):
        replay(Counting(), ratings, policies=["hope"])
    with pytest.raises(InputError, match="needs a model with fold_in"):
        replay(Counting(), ratings, policies=["fold in"])
    with pytest.raises(InputError, match="no timestamps"):
        replay(Counting(), Ratings.from_arrow(ratings.drop_columns(["timestamp"])))


def test_command_line_json(history, tmp_path, capsys):
    _, ratings = history
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    words = ["replay", "--ratings", str(tmp_path / "ratings.parquet"), "--every", "15d"]
    assert main([*words, "--epochs", "1", "--embedding-dim", "1", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"policies", "periods", "verdict"} <= set(found)
