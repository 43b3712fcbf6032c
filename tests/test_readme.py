"""The README's Python code runs as it stands."""

import re


def run_code(path, namespace):
    """Run the Python blocks of a page one after the other."""
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, path.name, "exec"), namespace)


def test_the_quickstart_runs(repository, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    run_code(repository / "README.md", namespace)
    run_code(repository / "docs" / "life.md", namespace)
    shown = capsys.readouterr().out
    for word in ("warm", "new_items", "new_users", "new_both", "rmse"):
        assert word in shown
    assert (tmp_path / "model" / "manifest.json").exists()


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
