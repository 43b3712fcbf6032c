"""Errors on warm ratings, new items, new users and both new: SimRec beside other models.

    python benchmarks/quality.py --data DIR                  # ratings, items, users (.parquet)
    python benchmarks/quality.py --data DIR --seeds 0 1 2 --models simrec myfm lightgbm
    python benchmarks/quality.py --train u1_base.parquet --test u1_test.parquet --items ...

Every model is fitted once to a `cold_start_split` and answers all four tasks. Each fit is a
process of its own, so that its peak memory is its own and its failure fails nothing else. Results
are kept in --out, one JSON object a line, and used again as long as the model's code is the same:
a run that was killed goes on where it was. Without --data, synthetic data is made.

Fit time has no imports and no reading of files in it, but has encoding features and all
validation a model does inside. Choose nothing by the seeds you report.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from _report import error_table, incomplete, machine, paired_table, picture, seed_table
from _runs import Data, Results, Run, synthetic_in, tables_in
from peers import PEERS, RATING


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="directory with ratings, items, users .parquet")
    for name in ("ratings", "items", "users"):
        parser.add_argument(f"--{name}", type=Path, help=f"the {name}, instead of --data's")
    parser.add_argument("--train", type=Path, help="training ratings of a given split")
    parser.add_argument("--test", type=Path, help="test ratings of a given split")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", choices=list(PEERS), metavar="MODEL")
    parser.add_argument("--liked", type=float, default=4.0, help="rating from which on it is a hit")
    parser.add_argument("--bounds", type=float, nargs=2, help="lowest and highest possible rating")
    parser.add_argument("--name", help="what to call the data; default: the directory's name")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--threads", type=int, help="threads a model may use")
    parser.add_argument("--again", action="store_true", help="measure even what is known")
    parser.add_argument("--report", action="store_true", help="only write what is known")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.test is None):
        parser.error("--train and --test go together")
    if options.models is None:
        options.models = list(RATING)
    return options


def find_data(options: argparse.Namespace) -> Data:
    """Find the tables, or make them."""
    directory = options.data
    given = options.ratings or options.train
    if directory is None and given is None:
        directory = synthetic_in(options.out)
    tables = tables_in(directory) if directory is not None else {}
    for name in ("ratings", "items", "users"):
        path = getattr(options, name)
        tables[name] = tables.get(name) if path is None else str(path)
    if tables["ratings"] is None and options.train is None:
        sys.exit(f"{directory}: no ratings.parquet. Give --ratings FILE.")
    name = options.name or (directory or given).stem
    if options.train and not options.name:
        name += f"-{options.train.stem}"
    return Data(
        name=name,
        **tables,
        train=str(options.train) if options.train else None,
        test=str(options.test) if options.test else None,
        bounds=tuple(options.bounds) if options.bounds else None,
        liked=options.liked,
    )


def run_all(options: argparse.Namespace, data: Data, results: Results) -> list[dict[str, Any]]:
    """Measure what is not known yet, and say so; give all results."""
    lines, failed = [], []
    for model in options.models:
        for seed in options.seeds:
            run = Run(data, model, seed)
            found = None if options.again else results.find(run)
            if found is None and not options.report:
                print(f"{data.name}, seed {seed}: {model} ...", end=" ", flush=True)
                found = results.measure(run, options.threads)
                print(found.get("error") or _short(found), flush=True)
            if found is not None:
                (failed if "error" in found else lines).append(found)
    if failed:
        print("\nThe first failure in full:\n", failed[0]["log"], file=sys.stderr)
    return lines


def _short(line: dict[str, Any]) -> str:
    parts = [f"{value:.4f}" for value in line.get("rmse", {}).values()]
    if "ndcg@10" in line:
        parts.append(f"NDCG {line['ndcg@10']:.4f}")
    return f"{' / '.join(parts)}  ({line['fit_s']:.1f} s)"


def report(lines: list[dict[str, Any]], data: Data, out: Path) -> str:
    """Write the tables and the picture of the results; give the tables."""
    seeds = sorted({line["key"]["seed"] for line in lines})
    n_train = lines[0]["n_train"]
    parts = [
        f"### {data.name}",
        f"{n_train:,} training ratings, seeds {', '.join(map(str, seeds))}. "
        f"Fit and CPU seconds are medians, peak memory is the highest. {machine()}.",
    ]
    if any("rmse" in line for line in lines):
        parts.append(error_table(lines))
        paired = paired_table(lines)
        if paired:
            parts += ["SimRec against the best peer, paired over the seeds:", paired]
        parts += ["Each seed:", seed_table(lines)]
        title = f"{data.name}: error against number of ratings"
        picture(lines, out / f"{_file_name(data)}.png", title)
    parts += incomplete(lines)
    return "\n\n".join(parts) + "\n"


def _file_name(data: Data) -> str:
    return "quality-" + re.sub(r"[^\w-]+", "_", data.name)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    options = parse(arguments)
    data = find_data(options)
    lines = run_all(options, data, Results(options.out, "quality"))
    if not lines:
        print("No results.", file=sys.stderr)
        return 1
    text = report(lines, data, options.out)
    file = options.out / f"{_file_name(data)}.md"
    file.write_text(text, encoding="utf-8")
    print(f"\n{text}\nWritten to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
