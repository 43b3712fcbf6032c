"""The README's Python code runs as it stands."""

import re

import pytest


def run_code(path, namespace):
    """Run the Python blocks of a page one after the other."""
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, path.name, "exec"), namespace)


def test_the_quickstart_runs(repository, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Tests draw once, users more often.
    monkeypatch.setattr("simrec.model.lists.fit.LEAST_DRAWS", 2)
    monkeypatch.setattr("simrec.model.lists.fit.MOST_DRAWS", 8)
    namespace = {}
    run_code(repository / "README.md", namespace)
    shown = capsys.readouterr().out
    run_code(repository / "docs" / "life.md", namespace)
    for word in ("warm", "new_items", "new_users", "new_both", "rmse"):
        assert word in shown
    assert (tmp_path / "model" / "manifest.json").exists()
    text = (repository / "README.md").read_text(encoding="utf-8")
    promised = re.search(r"^```text\n(.*?)^```", text, re.M | re.S).group(1).splitlines()
    printed = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    figures = [line.split() for line in promised if re.match(r"(rmse|ndcg)", line)]
    assert len(figures) == 6
    for name, *values in figures:  # other processors round otherwise
        for value, found in zip(values, printed[name][1:], strict=True):
            assert (value == found == "-") or float(found) == pytest.approx(float(value), abs=0.01)


def test_the_file_tree_is_true(repository):
    text = (repository / "README.md").read_text(encoding="utf-8")
    tree = text.split("## What is where")[1]
    inside = ""
    for line in tree.splitlines():
        match = re.match(r"^    (  )?([\w./]+)", line)
        if match:
            indented, name = match.groups()
            path = repository / (inside if indented else "") / name
            assert path.exists(), f"README names {name}, which is not there"
            inside = inside if indented else name


def test_commands_named_exist(repository):
    from simrec.jobs.commands import COMMANDS

    text = (repository / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^    simrec (\w+)", text, re.M):
        assert command in COMMANDS
