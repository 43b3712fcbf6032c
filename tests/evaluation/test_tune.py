"""Random search beside the defaults: seeded, resumable, and plain where nothing gains."""

import json

import numpy as np
import pytest

from simrec import InputError, TwoTower, make_synthetic, tune
from simrec.evaluation import tune as module


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=80, n_items=60, n_ratings=900, random_state=0)


@pytest.fixture
def quick(monkeypatch):
    """Fits that cost nothing: what is found depends on the settings and the seed alone."""
    fits = []

    def figures(model, split, asked, items=None, lists=None):
        import pandas as pd

        fits.append((model.knots, model.random_state))
        noise = 0.001 * model.random_state
        return pd.DataFrame({"rmse": [1 + noise - 0.02 * (model.knots == 20), np.nan]})

    monkeypatch.setattr(module, "four_tasks", figures)
    monkeypatch.setattr(TwoTower, "fit", lambda self, *_, **__: self)
    return fits


def test_a_gain_is_found_and_a_search_goes_on(data, quick, tmp_path, monkeypatch):
    monkeypatch.setitem(module.SPACE, "knots", (20,))
    file = tmp_path / "new" / "trials.jsonl"
    search = {"items": data.items, "n_trials": 12, "seeds": (0, 1, 2), "trials": file}
    found = tune(data.ratings, **search)
    assert found.best["knots"] == 20 and "+2.0% with a spread of 0.0%" in found.sentence
    assert found.table["settings"].nunique() == 13 and "defaults" in str(found)
    assert len(quick) == 39
    # Killed in the middle of a line: the rest is done, and the same is found.
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:20]) + "\n" + lines[20][:15])
    again = tune(data.ratings, **search)
    assert len(quick) == 39 + 20 and again.best == found.best
    assert again.table["rmse"].tolist() == found.table["rmse"].tolist()
    assert json.loads(file.read_text().splitlines()[0]) == json.loads(lines[0])
    with pytest.raises(InputError, match="no trials of these ratings"):
        tune(data.ratings, **{**search, "model": TwoTower(folds=3)})


def test_nothing_gains(data, quick, monkeypatch):
    monkeypatch.setitem(module.SPACE, "knots", (10,))
    found = tune(data.ratings, n_trials=4)
    assert found.best == {} and found.sentence.startswith("Nothing gains over the defaults")
    with pytest.raises(InputError, match="two or more"):
        tune(data.ratings, seeds=(0,))


def test_settings_that_data_have_no_use_for_are_not_tried(data, quick):
    times = data.ratings.append_column("timestamp", [np.arange(900) * 86400])
    texts = [" ".join(tune(t, n_trials=15).table["settings"]) for t in (times, data.ratings)]
    assert "half_life" in texts[0] and "half_life" not in texts[1]


def test_the_command(tmp_path, capsys, data):
    from simrec.cli import main

    data.write(tmp_path)
    words = ["tune", "--ratings", tmp_path / "ratings.parquet", "--trials", 1, "--epochs", 1]
    words += ["--embedding-dim", 1, "--out", tmp_path / "t.jsonl", "--json", tmp_path / "t.json"]
    assert main([str(word) for word in words]) == 0
    shown = capsys.readouterr().out
    assert "settings" in shown and "defaults" in shown
    result = json.loads((tmp_path / "t.json").read_text())
    assert len(result["trials"]) == 2 and result["verdict"][0] in shown
