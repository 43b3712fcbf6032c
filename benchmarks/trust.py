"""Set what SimRec expects beside what it reaches, and see whether chance or a constant decides it.

    python benchmarks/trust.py --data DIR [DIR ...]                  # expected / reached
    python benchmarks/trust.py --data DIR --random-states 0 1 2 3    # and the spread over them
    python benchmarks/trust.py --data DIR --constants                # each constant halved, doubled

Expected figures are those of `chosen_`, from pairs held out within the training pairs; reached are
those of the tasks of lists.py (NDCG@20) and of quality.py (error) on the same split. Bars: rating
errors within 3%, lists within 10%; over random states no NDCG@10 moves by more than 3% of its mean.
A constant is changed in the source as it is read, in a process of its own. Writes trust-NAME.md
and keeps single figures in trust.jsonl.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from _lists import make_tasks
from _report import machine
from _runs import Data, Results, Run, tables_in
from peers import peer_class

from simrec.scoring.metrics import hits, ndcg_at_k, rmse

# Tasks of lists.py, and what `chosen_` calls them.
LISTS = {
    "known_users": "known_users",
    "new_items": "new_items",
    "new_users": "new_users",
    "few_ratings": "few_pairs",
}
_LISTS = "simrec.model.lists"
# What is tried of constants: label, module, its source and what stands in its place.
CONSTANTS = (
    ("POWER .25 -> .125", f"{_LISTS}.axes", "POWER = 0.25", "POWER = 0.125"),
    ("POWER .25 -> .5", f"{_LISTS}.axes", "POWER = 0.25", "POWER = 0.5"),
    ("_GOOD .8 -> .4", f"{_LISTS}.blend", "_GOOD = 0.8", "_GOOD = 0.4"),
    ("_GOOD .8 -> 1", f"{_LISTS}.blend", "_GOOD = 0.8", "_GOOD = 1.0"),
    ("RIDGE known 5 -> 2.5", f"{_LISTS}.user_encoder", '"known": 5.0', '"known": 2.5'),
    ("RIDGE known 5 -> 10", f"{_LISTS}.user_encoder", '"known": 5.0', '"known": 10.0'),
    ("RIDGE few 1 -> .5", f"{_LISTS}.user_encoder", '"few": 1.0', '"few": 0.5'),
    ("RIDGE few 1 -> 2", f"{_LISTS}.user_encoder", '"few": 1.0', '"few": 2.0'),
    (
        "_FEATURE_RIDGE 100 -> 50",
        f"{_LISTS}.user_encoder",
        "_FEATURE_RIDGE = 100.0",
        "_FEATURE_RIDGE = 50.0",
    ),
    (
        "_FEATURE_RIDGE 100 -> 200",
        f"{_LISTS}.user_encoder",
        "_FEATURE_RIDGE = 100.0",
        "_FEATURE_RIDGE = 200.0",
    ),
    ("_SHARE .5 -> .25", f"{_LISTS}.user_encoder", "_SHARE = 0.5", "_SHARE = 0.25"),
    ("_SHARE .5 -> .75", f"{_LISTS}.user_encoder", "_SHARE = 0.5", "_SHARE = 0.75"),
    ("_SLOPE .25 -> .125", f"{_LISTS}.pair_weight", "_SLOPE = 0.25", "_SLOPE = 0.125"),
    ("_SLOPE .25 -> .5", f"{_LISTS}.pair_weight", "_SLOPE = 0.25", "_SLOPE = 0.5"),
    ("_ALIKE 3 -> 1.5", f"{_LISTS}.uptake_model", "_ALIKE = 3.0", "_ALIKE = 1.5"),
    ("_ALIKE 3 -> 6", f"{_LISTS}.uptake_model", "_ALIKE = 3.0", "_ALIKE = 6.0"),
    ("clear_gain 1 -> .5 errors", f"{_LISTS}.blend", "mean() - error", "mean() - 0.5 * error"),
    ("clear_gain 1 -> 2 errors", f"{_LISTS}.blend", "mean() - error", "mean() - 2.0 * error"),
    ("GIVEN 5 -> 3", f"{_LISTS}.user_encoder", "\nGIVEN = 5", "\nGIVEN = 3"),
    ("GIVEN 5 -> 10", f"{_LISTS}.user_encoder", "\nGIVEN = 5", "\nGIVEN = 10"),
    ("K 20 -> 10", f"{_LISTS}.blend", "\nK = 20", "\nK = 10"),
    ("K 20 -> 40", f"{_LISTS}.blend", "\nK = 20", "\nK = 40"),
    ("_WORTH 1.05 -> 1.02", f"{_LISTS}.choices", "1024, 1.05", "1024, 1.02"),
    ("_WORTH 1.05 -> 1.1", f"{_LISTS}.choices", "1024, 1.05", "1024, 1.1"),
)


@dataclass(frozen=True)
class TrustRun(Run):
    """SimRec on one split, with a random state and perhaps another constant."""

    script: ClassVar[str] = __file__

    random_state: int = 0
    constant: str | None = None

    def key(self) -> dict[str, Any]:
        key = {**super().key(), "random_state": self.random_state}
        return key | ({"constant": self.constant} if self.constant else {})


def change(label: str) -> None:
    """Let the source of a constant read otherwise; its module must not be imported yet."""
    _, module, old, new = next(one for one in CONSTANTS if one[0] == label)
    if module in sys.modules:
        raise RuntimeError(f"{module} is imported already")
    plain = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if name != module:
            return plain(loader, name)
        source = loader.get_source(name)
        if source is None or source.count(old) != 1:
            raise RuntimeError(f"{old!r} is not in {module} once")
        return loader.source_to_code(source.replace(old, new), loader.path)

    SourceFileLoader.get_code = get_code


def measure(run: TrustRun) -> dict[str, Any]:
    """Fit, make lists and predict, here and now."""
    if run.constant:
        change(run.constant)
    split, liked = run.data.split(run.seed), run.data.liked if run.data.rated else 1.0
    values = split.train.values
    peer = peer_class("simrec")((float(values.min()), float(values.max())), liked, run.random_state)
    peer.fit(split.train, *run.data.features())
    chosen = peer.model_.chosen_
    plain = {k: v for k, v in chosen.items() if isinstance(v, int | float | str | dict)}
    result: dict[str, Any] = {"chosen": plain, "ndcg@10": {}, "ndcg@20": {}, "rmse": {}}
    for name, task in make_tasks(split, liked, run.seed).items():
        if len(task.users):
            answering = peer if task.given is None else peer.fold_in(task.given)
            hit = hits(answering.lists(task.users, task.items, 20, task.exclude), task.relevant)
            n = np.diff(task.relevant.indptr)
            result["ndcg@10"][name] = float(ndcg_at_k(hit[:, :10], n).mean())
            result["ndcg@20"][name] = float(ndcg_at_k(hit, n).mean())
    if run.data.rated:
        for name, ratings in split.tasks().items():
            if len(ratings):
                result["rmse"][name] = rmse(ratings.values, peer.predict(ratings.to_arrow()))
    return result


def expected_table(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Set what each fit expected beside what it reached."""
    rows = [["expected / reached", "expected", "reached", "ratio", "within"], ["---"] * 5]
    names = [(f"expected_rmse_{task}", task, "rmse", 0.03) for task in ("new_items", "new_users")]
    names += [(f"held_out_ndcg@20_{own}", task, "ndcg@20", 0.10) for task, own in LISTS.items()]
    for key, task, metric, bar in names:
        there = [one for one in lines if key in one["chosen"] and task in one[metric]]
        if there:
            expected = float(np.mean([one["chosen"][key] for one in there]))
            reached = float(np.mean([one[metric][task] for one in there]))
            ratio = expected / reached
            verdict = f"{'yes' if abs(ratio - 1) <= bar else '**no**'} ({bar:.0%})"
            what = f"{'error' if metric == 'rmse' else 'NDCG@20'}, {task.replace('_', ' ')}"
            rows.append([what, f"{expected:.4f}", f"{reached:.4f}", f"{ratio:.3f}", verdict])
    return rows


def spread_table(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Set the NDCG@10 of random states side by side."""
    states = [line["key"]["random_state"] for line in lines]
    rows = [["NDCG@10, `random_state`", *map(str, states), "largest - mean, within 3%"]]
    rows.append(["---"] * len(rows[0]))
    for task in LISTS:
        values = np.array([line["ndcg@10"][task] for line in lines if task in line["ndcg@10"]])
        if len(values):
            far = float(np.abs(values / values.mean() - 1).max())
            verdict = f"{far:.1%} {'yes' if far <= 0.03 else '**no**'}"
            rows.append([task.replace("_", " "), *(f"{v:.4f}" for v in values), verdict])
    return rows


def constant_table(plain: dict[str, Any], changed: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Set the NDCG@10 with other constants beside that of the fit as it is."""
    rows = [["NDCG@10", *(task.replace("_", " ") for task in LISTS)], ["---"] * (len(LISTS) + 1)]
    here = plain["ndcg@10"]
    rows.append(["as it is", *(f"{here[t]:.4f}" if t in here else "-" for t in LISTS)])
    for line in changed:
        cells = [
            f"{line['ndcg@10'][t]:.4f} ({line['ndcg@10'][t] / here[t] - 1:+.1%})"
            if t in here
            else "-"
            for t in LISTS
        ]
        rows.append([f"`{line['key']['constant']}`", *cells])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=10, help="of the split")
    parser.add_argument("--random-states", type=int, nargs="+", default=[0])
    parser.add_argument("--constants", nargs="*", help="labels start so; without one, all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--threads", type=int, help="threads a model may use")
    options = parser.parse_args(arguments)
    results, failed = Results(options.out, "trust"), False

    def line_of(run: TrustRun) -> dict[str, Any] | None:
        line = results.find(run) or results.measure(run, options.threads)
        name = f"{run.data.name}, random_state {run.random_state}, {run.constant or 'as it is'}"
        if "error" in line:
            print(f"{name}: {line['error']}\n{line['log']}", file=sys.stderr)
            return None
        print(f"{name}: {json.dumps(line['ndcg@10'])}", flush=True)
        return line

    for directory in options.data:
        data = Data(directory.stem, **tables_in(directory))
        first = TrustRun(data, "simrec", options.seed)
        runs = [line_of(replace(first, random_state=s)) for s in options.random_states]
        lines = [line for line in runs if line is not None]
        if not lines:
            failed = True
            continue
        tables = [expected_table(lines)]
        if len(lines) > 1:
            tables.append(spread_table(lines))
        if options.constants is not None:
            starts = tuple(options.constants or ("",))
            labels = [label for label, *_ in CONSTANTS if label.startswith(starts)]
            found = [line_of(replace(first, constant=label)) for label in labels]
            tables.append(constant_table(lines[0], filter(None, found)))
        texts = ["\n".join(f"| {' | '.join(row)} |" for row in rows) for rows in tables]
        head = f"### Expected, chance and constants: {data.name}\n\nSplit of seed {options.seed}. "
        text = "\n\n".join([f"{head}{machine()}.", *texts]) + "\n"
        name = re.sub(r"[^\w-]+", "_", data.name)
        (options.out / f"trust-{name}.md").write_text(text, encoding="utf-8")
        print(f"\n{text}")
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(measure(TrustRun.from_json(sys.argv[1]))))
    else:
        sys.exit(main())
