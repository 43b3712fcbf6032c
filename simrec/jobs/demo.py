"""First steps: everything once on the sample (`demo`), and a look at the installation."""

import contextlib
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from simrec import console
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.evaluate import records

_PACKAGES = (
    *("simrec", "numpy", "scipy", "pandas", "pyarrow", "tensorflow", "tf-keras"),
    *("tensorflow-recommenders", "ray", "matplotlib"),
)


def demo(
    out: str | os.PathLike = "demo", say: Callable[[str], None] = print, verbose: int = 1
) -> dict[str, Any]:
    """Train on the sample, evaluate the four tasks, score, recommend for new users, and report.

    `say` shows a piece of text.

    Parameters
    ----------
    out : path
        Where outputs go.
    """
    from simrec.data.ratings import Ratings
    from simrec.data.split import cold_start_split
    from simrec.data.synthetic import make_synthetic
    from simrec.evaluation.evaluate import evaluate
    from simrec.evaluation.report import report
    from simrec.evaluation.tasks import TASK_NAMES
    from simrec.jobs.recommend import recommend
    from simrec.jobs.score import score
    from simrec.model.two_tower import TwoTower
    from simrec.scoring.metrics import rmse

    root = Path(out)
    root.mkdir(parents=True, exist_ok=True)
    sample = make_synthetic()
    ratings = Ratings.from_arrow(sample.ratings)
    split = cold_start_split(ratings, random_state=0)
    say(
        f"The sample: {len(ratings):,} ratings of {ratings.n_items:,} items by "
        f"{ratings.n_users:,} users, in half stars.\nA fifth of the items and a fifth of the users "
        "are held out whole, and a tenth of the other ratings.\n"
    )
    say(f"Training on the {len(split.train):,} ratings left ...")
    model = TwoTower(bounds=sample.bounds, random_state=0, verbose=verbose)
    features = {"items": sample.items, "users": sample.users}
    model.fit(split.train, **features).save(root / "model")

    tasks = records(evaluate(model, split))
    say("Training the two SimEcs without refinement, to compare ...")
    bare = TwoTower(refine=False, bounds=sample.bounds).fit(split.train, **features)
    for task, part in zip(tasks, split.tasks().values(), strict=True):
        task["rmse_two_simecs"] = rmse(part.values, bare.predict(part))
    shown = [{**task, "task": TASK_NAMES[task["task"]]} for task in tasks]
    say("\nOne model, four tasks (RMSE; two_simecs: refine=False):\n")
    others = [name for name in tasks[0] if name.startswith("rmse_")]
    say(console.table(shown, ["task", "n", "rmse", *others]))

    outputs = {"model": root / "model", "pairs": root / "pairs.parquet"}
    outputs |= {name: root / f"{name}.parquet" for name in ("scores", "recommendations")}
    outputs["report"] = root / "report.html"
    both = split.new_both.to_arrow().select(["user_id", "item_id", "rating"])
    pq.write_table(both, outputs["pairs"])
    batch = BatchOptions(overwrite=True)
    score(outputs["model"], outputs["pairs"], outputs["scores"], batch=batch)
    scores = pq.read_table(outputs["scores"])
    say("\nPredicted ratings of new items by new users (nobody's rating of either was seen):\n")
    say(console.table(scores.slice(0, 5).to_pylist()))

    newcomers, new_users = split.new_users.users.ids, root / "new_users.parquet"
    users = sample.users.filter(pc.is_in(sample.users["user_id"], value_set=newcomers))
    pq.write_table(users, new_users)
    lists = outputs["recommendations"]
    recommend(outputs["model"], lists, users=new_users, k=5, batch=batch)
    found, titles = pq.read_table(lists).slice(0, 10).to_pylist(), model.titles()
    say(
        f"\nFive items for each of {users.num_rows:,} new users; the first two of them (scores "
        "have\nno unit: compare those of one user):\n"
    )
    say(console.table([{**row, "title": titles.get(row["item_id"])} for row in found]))

    say("\nA page about the model and its quality ...")
    report(model, ratings, outputs["report"], **features)
    written = {name: str(path) for name, path in outputs.items()}
    say("\nOutputs:\n" + console.facts(written))
    words = shlex.join(["--model", written["model"]])
    newcomer = shlex.join(["--user", str(found[0]["user_id"]), "--users", str(new_users)])
    # As it was called: `make demo` calls the command of an environment that is not on the path.
    beside = os.path.basename(sys.argv[0]) == "simrec" and not os.path.isabs(sys.argv[0])
    program = sys.argv[0] if beside else "simrec"
    go_on = [f"{program} recommend {words} {newcomer} --k 5", f"{program} studio {words}"]
    say("\nGo on with (the studio needs pip install 'simrec[serve]'):")
    say("\n".join(f"  {command}" for command in go_on))
    return {"job": "demo", "tasks": tasks, "outputs": written, "go_on": go_on}


def doctor() -> dict[str, Any]:
    """Report versions, threads and memory, and try a small model."""
    from simrec.scoring.threads import processors

    report: dict[str, Any] = {"job": "doctor", "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            report[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            report[package] = "not installed"
    report |= {"platform": platform.platform(), "processors": processors()}
    with contextlib.suppress(AttributeError, OSError, ValueError):
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        report["memory_gb"] = round(pages / 1e9, 1)
    started = time.perf_counter()
    try:
        self_test()
        report["self_test"] = f"passed in {time.perf_counter() - started:.1f} s"
    except Exception as error:  # whatever is wrong is what the doctor is asked for
        report["self_test"] = f"failed: {type(error).__name__}: {error}"
    return {**report, "healthy": report["self_test"].startswith("passed")}


def self_test() -> None:
    """Fit, save, load and score a tiny model."""
    import numpy as np

    from simrec.data.synthetic import make_synthetic
    from simrec.model.two_tower import TwoTower

    data = make_synthetic(n_users=40, n_items=30, n_ratings=300)
    model = TwoTower(embedding_dim=2, bounds=(0.5, 5))
    model.fit(data.ratings, items=data.items, users=data.users)
    expected = model.predict(data.ratings)
    with tempfile.TemporaryDirectory() as directory:
        model.save(Path(directory) / "model")
        loaded = TwoTower.load(Path(directory) / "model")
        if not np.array_equal(loaded.predict(data.ratings), expected):
            raise RuntimeError("a model scores differently after saving and loading")
    if not ((expected >= 0.5) & (expected <= 5)).all():
        raise RuntimeError("predictions leave their bounds")
