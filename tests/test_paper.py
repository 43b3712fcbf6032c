"""The paper's experiments, small: they run, draw and tell what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[1] / "pipelines" / "paper"


def run(script, *arguments):
    env = {**os.environ, "PYTHONPATH": str(PAPER.parents[1])}
    command = [sys.executable, str(PAPER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def test_quick_reproduction_on_small_digits(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    done = run("reproduce.py", "--out", tmp_path, "--quick", "--digits", 600)
    assert done.returncode == 0, done.stderr
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


def test_context_encoder_example():
    done = run("context.py")
    assert done.returncode == 0, done.stderr
    assert "for 100% of them" in done.stdout
