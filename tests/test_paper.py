"""The paper's experiments, small: they run, draw and tell what they found."""

import importlib
import json
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[1] / "pipelines" / "paper"


@pytest.fixture
def script(monkeypatch):
    """Import a script as if from its own directory."""
    monkeypatch.syspath_prepend(PAPER)
    return importlib.import_module


@pytest.mark.slow
def test_quick_reproduction_on_small_digits(script, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    script("reproduce").main(["--out", str(tmp_path), "--quick", "--digits", "600"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(results["figures"]) == [f"fig{n}" for n in range(3, 9)]
    for name in results["figures"]:
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
    table = (tmp_path / "results.md").read_text()
    assert table.count("\n| ") > 10 and "kernel PCA" in table
    row = results["figures"]["fig4"]["rows"][-1]
    assert row["with"][0] < 1.1 * row["kernel PCA"][0]
    assert row["with"][0] < row["without"][0]
    half = results["figures"]["fig6"]["rows"][-1]
    assert half["simec"][0] < half["mean-filled"]


def test_context_encoder_example(script, capsys):
    script("context").main()
    assert "for 100% of them" in capsys.readouterr().out
