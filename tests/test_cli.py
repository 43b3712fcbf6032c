import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import __version__, console
from simrec.cli import main
from simrec.jobs.io import parts


@pytest.fixture
def run(capsys):
    """Run a command; give its exit code, standard output and standard error."""

    def command(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def data(tables):
    names = ("ratings", "items", "users")
    return [w for name in names for w in (f"--{name}", tables / f"{name}.parquet")]


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("demo", "train", "evaluate", "score", "recommend", "run", "doctor"):
        assert f"    {command}" in out
    assert run("--version")[1].strip() == f"simrec {__version__}"
    assert run()[0] == 0


@pytest.mark.parametrize(
    "command",
    ["train", "evaluate", "compare", "replay", "score", "recommend", "report", "run"],
)
def test_each_command_has_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0 and f"simrec {command}" in out and "--json" in out


def test_model_options_are_those_of_the_constructor(run):
    import inspect

    from simrec import TwoTower

    _, out, _ = run("train", "--help")
    for name in inspect.signature(TwoTower).parameters:
        # A network cannot be given on a command line.
        if name not in ("verbose", "item_encoder", "user_encoder"):
            assert "--" + name.replace("_", "-") in out, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "invalid choice: 'trian'"),
        (["score", "--pairs", "x"], "required: --model, --out"),
        (["score", "--model", "m", "--pairs", "p", "--out", "o", "--onknown", "x"], "--unknown?"),
        (["train", "--ratings", "r", "--out", "o", "--embedding-dim", "big"], "an integer"),
        (["score", "--model", "m", "--pairs", "p", "--out", "o", "--unknown", "x"], "one of error"),
        (["run"], "required: FILE"),
    ],
)
def test_bad_usage(run, words, message):
    code, _, err = run(*words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_train_score_recommend(run, data, tables, tmp_path):
    model = tmp_path / "model"
    words = ["--bounds", 1, 5, "--embedding-dim", 3, "--quiet"]
    code, out, err = run("train", *data, *words, "--out", model)
    assert code == 0, err
    assert "model id" in out and err == ""
    code, out, _ = run(
        *("score", "--model", model, "--pairs", tables / "pairs.parquet"),
        *("--out", tmp_path / "scores", "--json"),
    )
    assert code == 0
    assert json.loads(out)["rows_out"] == 4000
    scores = pq.read_table(tmp_path / "scores")["score"].to_numpy()
    assert scores.min() >= 1 and scores.max() <= 5
    code, out, _ = run(
        *("recommend", "--model", model, "--k", 3, "--exclude", tables / "ratings.parquet"),
        *("--out", tmp_path / "top.parquet", "--json", tmp_path / "summary.json"),
    )
    assert code == 0 and "rows out" in out
    assert json.loads((tmp_path / "summary.json").read_text())["rows_out"] == 180


def test_evaluate_prints_four_tasks(run, data, tmp_path):
    code, out, err = run("evaluate", *data, "--bounds", 1, 5, "--json", tmp_path / "e.json")
    assert code == 0, err
    tasks = json.loads((tmp_path / "e.json").read_text())["tasks"]
    assert [task["task"] for task in tasks] == ["warm", "new_items", "new_users", "new_both"]
    assert all(task["task"] in out for task in tasks)
    assert all(0 < task["rmse"] < 3 for task in tasks if task["n"])


def test_evaluate_has_one_seed_option_and_gives_the_spread(run, data, tmp_path):
    _, out, _ = run("evaluate", "--help")
    assert "--seeds" in out and "--random-state" not in out and "--seed " not in out
    code, out, err = run(
        *("evaluate", *data, "--seeds", 0, 1, "--embedding-dim", 1, "--epochs", 1),
        *("--json", tmp_path / "e.json"),
    )
    assert code == 0, err
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["seeds"] == [0, 1] and "rmse_std" in found["tasks"][0]
    assert " ± " in out and "ndcg@10_popular" in out and found["verdict"]


def test_evaluate_by_time(run, data, tables, tmp_path):
    import numpy as np

    rows = pq.read_table(tables / "ratings.parquet")
    times = np.arange(rows.num_rows) * 3600 + 1_400_000_000
    pq.write_table(rows.append_column("timestamp", [times]), tmp_path / "ratings.parquet")
    words = ("evaluate", "--ratings", tmp_path / "ratings.parquet", "--epochs", 1)
    code, out, err = run(*words, "--split", "time", "--test", 0.3, "--json", tmp_path / "e.json")
    assert code == 0 and "age_days" in out, err
    tasks = json.loads((tmp_path / "e.json").read_text())["tasks"]
    assert sum(task["n"] for task in tasks) == 270
    code, _, err = run(*words, "--split", "time", "--at", "2030-01-01")
    assert code == 2 and "no rating is left to answer" in err
    code, _, err = run(*words, "--at", "2014-06-01")
    assert code == 2 and "--split time" in err
    code, _, err = run("evaluate", *data, "--split", "time")
    assert code == 2 and "no timestamps" in err


def ratings_with(**changes):
    columns = {"user_id": [1, 1, 2, 3], "item_id": ["a", "b", "a", "b"], "rating": [1.0, 2, 3, 4]}
    columns |= changes
    return pa.table({name: column for name, column in columns.items() if column is not None})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (ratings_with(user_id=[1, None, 2, 3]), ["user_id", "1"]),
        (ratings_with(item_id=["a", None, "a", "b"]), ["item_id"]),
        (ratings_with(rating=[1.0, None, 3, 4]), ["rating"]),
        (ratings_with(rating=[1.0, float("nan"), 3, 4]), ["rating"]),
        (ratings_with(rating=[1.0, 9.0, 3, 4]), ["rating", "9", "bounds"]),
        (ratings_with(rating=["x", "y", "z", "w"]), ["rating"]),
        (ratings_with(rating=None, stars=[1.0, 2, 3, 4]), ["rating", "stars"]),
        (ratings_with(user_id=[1.5, 2.5, 3.5, 4.5]), ["user_id"]),
        (ratings_with().slice(0, 0), ["empty"]),
    ],
    ids=[
        *("null user", "null item", "null rating", "NaN rating", "out of bounds", "text rating"),
        *("missing column", "float ids", "empty"),
    ],
)
def test_bad_ratings(run, tmp_path, table, words):
    path = tmp_path / "ratings.parquet"
    pq.write_table(table, path)
    code, out, err = run("train", "--ratings", path, "--bounds", 1, 5, "--out", tmp_path / "model")
    assert code == 2, err
    assert out == "" and "Traceback" not in err
    for word in ["ratings.parquet", *words]:
        assert word in err
    assert [p.name for p in tmp_path.iterdir()] == ["ratings.parquet"]


def test_other_bad_input(run, data, tables, model_directory, tmp_path):
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 no table")
    out = ("--out", tmp_path / "out")
    pairs = ("--pairs", tables / "pairs.parquet")
    changed = tmp_path / "changed"
    shutil.copytree(model_directory, changed)
    array = changed / "rating_items_vectors.npy"
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    other = tmp_path / "other"
    shutil.copytree(model_directory, other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    before = {p.name for p in tmp_path.iterdir()}
    cases = [
        (("train", "--ratings", path, *out), "bad.parquet"),
        (("train", "--ratings", tmp_path / "absent.parquet", *out), "absent.parquet"),
        (("train", *data[:2], "--items", path, *out), "bad.parquet"),
        (("train", *data, "--bounds", 5, 1, *out), "bounds"),
        (("score", "--model", model_directory, "--pairs", path, *out), "bad.parquet"),
        (("score", "--model", tmp_path / "absent", *pairs, *out), "absent: does not exist"),
        (("score", "--model", changed, *pairs, *out), f"{array.name}: its content does not match"),
        (("score", "--model", other, *pairs, *out), "format version 99"),
        (("recommend", "--model", model_directory, "--k", 0, *out), "at least 1"),
        (("run", tmp_path / "absent.toml"), "absent.toml"),
    ]
    for words, message in cases:
        code, _, err = run(*words)
        assert (code, message in err, "Traceback" in err) == (2, True, False), (words, err)
        assert {p.name for p in tmp_path.iterdir()} == before


def test_failures_show_where_on_request(run, data, tmp_path, monkeypatch):
    from simrec.jobs import train as module

    def fail(*_, **__):
        raise RuntimeError("the disk caught fire")

    monkeypatch.setattr(module.DataOptions, "load_ratings", fail)
    code, _, err = run("train", *data, "--out", tmp_path / "m")
    assert code == 1
    assert err == "simrec: failed: RuntimeError: the disk caught fire\n(--verbose shows where)\n"
    for words in (["train", *data, "--out", "m", "--verbose"], ["--verbose", "train", *data]):
        code, _, err = run(*words, *([] if "--out" in words else ["--out", tmp_path / "m"]))
        assert code == 1 and "Traceback" in err and "the disk caught fire" in err


def test_interrupts_and_closed_pipes(run, data, tables, tmp_path, monkeypatch):
    from simrec.jobs import train as module

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.DataOptions, "load_ratings", interrupt)
    code, _, err = run("train", *data, "--out", tmp_path / "m")
    assert code == 130 and "interrupted" in err
    command = f"{sys.executable} -m simrec.cli --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("usage: simrec") and done.stderr == ""


def test_doctor(run):
    code, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and report["healthy"]
    assert report["simrec"] in (__version__, "not installed")
    assert report["self_test"].startswith("passed")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, run once: the directory, what was shown, and the result."""
    directory = tmp_path_factory.mktemp("my demo") / "here"
    words = ["demo", "--out", str(directory), "--quiet", "--json", f"{directory}.json"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return directory, out.getvalue(), json.loads((directory.parent / "here.json").read_text())


@pytest.mark.slow
def test_demo(demo):
    directory, out, outcome = demo
    assert "rmse_two_simecs" in out and "new items" in out
    for name in (
        *("model/manifest.json", "scores.parquet", "recommendations.parquet"),
        "report.html",
    ):
        assert (directory / name).exists() and name.split("/")[0] in out
    assert len(outcome["tasks"]) == 4


@pytest.mark.slow
def test_demo_commands_to_go_on_with(run, demo):
    _, _, outcome = demo
    recommend, studio = (shlex.split(command) for command in outcome["go_on"])
    assert recommend[0] == studio[0] == "simrec" and studio[1] == "studio"
    code, out, err = run(*recommend[1:], "--quiet")
    assert code == 0 and out, err


def test_a_command_that_was_meant(run):
    code, _, err = run("traim")
    assert code == 2 and "invalid choice: 'traim'; did you mean 'train'?" in err


def test_sigterm_is_handled_like_an_interrupt(run, tables, model_directory, tmp_path, monkeypatch):
    words = ("score", "--model", model_directory, "--pairs", tables / "pairs.parquet")
    options = ("--part-rows", 400, "--workers", 1, "--quiet")
    write, calls = parts.PartWriter.write, []

    def terminate(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return write(self, *arguments)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(parts.PartWriter, "write", terminate)
    code, out, err = run(*words, "--out", tmp_path / "out", *options)
    assert (code, out) == (143, "") and err.startswith("simrec: terminated; ")
    assert signal.getsignal(signal.SIGTERM) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    code, out, _ = run(*words, "--out", tmp_path / "out", *options, "--json")
    assert code == 0 and json.loads(out)["parts_from_earlier_run"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_sigterm_from_outside(data, tmp_path):
    code = (
        "import sys, time; from simrec.cli import main; from simrec.jobs.train import DataOptions\n"
        "def wait(*_): print('ready', flush=True); time.sleep(60)\n"
        "DataOptions.load_ratings = wait; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "train", *map(str, data), "--out", str(tmp_path / "m")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 143 and b"simrec: terminated" in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_from_data_steers_the_terminal(run, model_directory, tmp_path, monkeypatch):
    nasty = "\x1b[2J\x9b31m\u202e"
    pairs = pa.table({"user_id": [100], "item_id": [nasty]})
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    words = ("score", "--model", model_directory, "--pairs", tmp_path / "pairs.parquet")
    code, out, err = run(*words, "--out", tmp_path / f"o{nasty}")
    assert code == 2 and "x1b[2J" in err
    _, shown, _ = run(*words, "--out", tmp_path / f"o{nasty}", "--unknown", "skip", "--verbose")
    assert "x1b[2J" in shown
    text = console.table([{nasty: f"{nasty}\nx", "ok": 1.0}]) + console.facts({nasty: [nasty]})
    _, _, usage = run(f"train{nasty}")
    _, _, option = run("train", f"--{nasty}")
    for seen in (out, err, shown, text, usage, option):
        assert not re.search("[\x1b\x9b\u202e]", seen)


def test_a_lone_surrogate_can_be_shown():
    assert console.plain("a\udc80b") == "a\\udc80b"


def test_a_full_disk_is_said_in_those_words(run, data, tmp_path, monkeypatch):
    from simrec.jobs.train import DataOptions

    for error in (
        OSError(28, "No space left on device", "model/x.npy"),
        OSError("1048576 requested and 0 written"),
    ):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(DataOptions, "load_ratings", fail)
        code, _, err = run("train", *data, "--out", tmp_path / "m")
        assert code == 1 and "the disk is full" in err


def test_a_row_is_shown_with_its_error(run, tmp_path):
    bad = pa.table({"user_id": [1], "item_id": ["a"], "rating": [None]}).cast(
        pa.schema({"user_id": pa.int64(), "item_id": pa.string(), "rating": pa.float32()})
    )
    pq.write_table(bad, tmp_path / "r.parquet")
    _, _, err = run("train", "--ratings", tmp_path / "r.parquet", "--out", tmp_path / "m")
    assert "user_id=1, item_id='a', rating=None" in err


def test_figures_are_rounded_to_what_they_mean():
    rows = [{"rating": 3.5, "score": 3.4187654}, {"rating": 4.0, "score": 0.012345679012345678}]
    assert console.table(rows).splitlines()[2:] == ["   3.5  3.4188", "   4.0  0.0123"]
    assert console.facts({"share": 0.012345679012345678}) == "share  0.0123"
    assert console.facts({"seeds": [0, 1], "none": []}) == "seeds  0, 1\nnone   -"
    assert max(map(len, console.table([{"text": "word " * 99}]).splitlines())) == 60
