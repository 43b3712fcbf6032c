"""What a fit shows while it runs, and what it says of itself afterwards."""

import logging
import subprocess
import sys

import pytest

from simrec import InputError, SimEc, TwoTower, cold_start_split, make_synthetic
from simrec.model.run.progress import Progress, Stage


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=60, n_items=40, n_ratings=500, random_state=1)


class Bar:
    """Stands for tqdm's."""

    def __init__(self, total, **_):
        self.total, self.n, self.shown = total, 0.0, []
        Bar.last = self

    def update(self, n):
        assert n >= 0
        self.n += n
        self.shown.append(self.n)

    def set_description_str(self, text, refresh):
        self.said = text

    def set_postfix_str(self, text, refresh):
        pass

    def close(self):
        self.closed = True


@pytest.mark.parametrize("kind", ["default", "two SimEcs", "interactions"])
def test_the_bar_counts_all_of_the_work(data, monkeypatch, kind):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    stages = []
    step = Progress.step
    monkeypatch.setattr(
        Progress, "step", lambda self, stage: (stages.append(stage), step(self, stage))
    )
    ratings = data.ratings
    if kind == "interactions":
        ratings = ratings.drop_columns(["rating"])
    TwoTower(embedding_dim=3, epochs=3, refine=kind == "default", verbose=1).fit(
        ratings, items=data.items
    )
    bar = Bar.last
    assert bar.closed and bar.n == pytest.approx(bar.total)
    # Every stage moves it, and none but the end of the fit fills it.
    assert all(done < bar.total for done in bar.shown[:-1])
    expected = {
        "default": ["ratings", "new items", "new users", "lists"],
        "two SimEcs": ["ratings", "new items", "new users"],
        "interactions": ["lists"],
    }
    assert list(dict.fromkeys(stages)) == expected[kind]


def test_a_stage_with_more_steps_than_expected_stays_a_stage(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    with Progress([Stage("a", 1, 2), Stage("b", 3, 2)], verbose=1) as progress:
        for _ in range(10):
            progress.step("a")
        assert 20 < Bar.last.n < 25
        progress.step("b")
        assert Bar.last.n == pytest.approx(25 + 75 / 2)
    assert Bar.last.n == 100


def test_a_fit_that_fails_does_not_fill_the_bar(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    with pytest.raises(KeyboardInterrupt), Progress([Stage("a", 1, 2)], verbose=1) as progress:
        progress.step("a")
        raise KeyboardInterrupt
    assert Bar.last.n == 50 and Bar.last.closed


CODE = """
from simrec import TwoTower, make_synthetic
data = make_synthetic(n_users=40, n_items=30, n_ratings=250)
TwoTower(lists=False, embedding_dim=2, epochs=2, verbose={verbose}).fit(data.ratings)
import logging
assert not logging.getLogger("simrec.model.run.progress").handlers
"""


@pytest.mark.parametrize("verbose", [0, 2])
def test_lines_are_seen_where_logging_is_not_configured(verbose):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(verbose=verbose)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert ("epoch 1: loss" in done.stderr) == ("epoch 2: loss" in done.stderr) == (verbose == 2)


def test_lines_go_where_logging_was_configured_to(data, caplog, capsys):
    TwoTower(lists=False, embedding_dim=2, epochs=2, verbose=2).fit(data.ratings)
    assert sum(r.getMessage().startswith("epoch") for r in caplog.records) >= 2
    assert logging.getLogger("simrec.model.run.progress").level == logging.NOTSET
    assert "epoch" not in capsys.readouterr().err


def test_repr_says_what_a_model_was_fitted_to(data, tmp_path):
    model = TwoTower(embedding_dim=2, epochs=2)
    assert repr(model) == "TwoTower(embedding_dim=2, epochs=2)"
    model.fit(data.ratings, items=data.items)
    n_items = len(data.ratings["item_id"].unique())
    n_users = len(data.ratings["user_id"].unique())
    said = f"fitted to 500 ratings of {n_items} items by {n_users} users>"
    assert repr(model) == f"<TwoTower(embedding_dim=2, epochs=2) {said}"
    model.save(tmp_path / "model")
    assert repr(TwoTower.load(tmp_path / "model")).endswith(said)
    pairs = TwoTower(embedding_dim=2).fit(data.ratings.drop_columns(["rating"]))
    assert "fitted to 500 interactions of" in repr(pairs)
    simec = SimEc(2, epochs=1).fit([[1.0, 2.0, 3.0]] * 4, [[1.0, 2.0]] * 4)
    assert repr(simec).endswith("fitted to 3 features of each row and 2 targets>")


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True, None])
def test_seeds_are_whole_numbers(data, seed):
    for attempt in (
        lambda: TwoTower(random_state=seed).fit(data.ratings),
        lambda: SimEc(random_state=seed).fit([[1.0]], [[1.0]]),
        lambda: cold_start_split(data.ratings, random_state=seed),
        lambda: make_synthetic(random_state=seed),
    ):
        with pytest.raises(InputError, match="random_state: expected a whole number from 0 on"):
            attempt()
