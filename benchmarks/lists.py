"""Quality of lists for known users, new items and new users: SimRec beside other models.

    python benchmarks/lists.py --data DIR                    # ratings, items, users (.parquet)
    python benchmarks/lists.py --data DIR DIR --seeds 0 1 2 --models simrec ease-500 content
    python benchmarks/lists.py --data DIR --epochs 5         # LightFM in a sixth of the time

Every model is fitted once to a `cold_start_split` and answers up to four tasks, all candidates
ranked. A hit is a held-out rating of at least --liked; where there are no ratings, every held-out
pair is one.

- known users: candidates are the known items without those the user has in training;
- new items: candidates are all new items, for known users;
- new users, nothing: held-out users with more than five ratings of known items; five at random
  are no candidates, the others are to be found from the user's features alone;
- new users, five ratings: the same, and the five are folded in.

NDCG@10 is relative to the best list of min(10, hits), Recall@20 to min(20, hits); both are means
over users with a hit. Each fit is a process of its own. Results are kept in --out (lists.jsonl)
and used again as long as the model's code is the same; the table has whatever is known, also of
models that are not among --models. Without --data, synthetic data is made.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from _lists import ListRun
from _report import incomplete, list_seed_table, list_table, machine
from _runs import Data, Results, synthetic_in, tables_in
from peers import LISTS, PEERS, peer_class


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", help="directories with .parquet tables")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2; 0 of synthetic data")
    parser.add_argument("--models", nargs="+", choices=list(PEERS), default=LISTS, metavar="MODEL")
    parser.add_argument("--liked", type=float, default=4.0, help="rating from which on it is a hit")
    parser.add_argument("--epochs", type=int, help="epochs of LightFM; default: 30")
    parser.add_argument("--name", help="what to call the data; default: the directory's name")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--threads", type=int, help="threads a model may use")
    parser.add_argument("--again", action="store_true", help="measure even what is known")
    parser.add_argument("--report", action="store_true", help="only write what is known")
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = [0, 1, 2] if options.data else [0]
    for model in options.models:
        if not peer_class(model).answers:
            parser.error(f"{model} makes no lists")
    if options.name and len(options.data or ()) > 1:
        parser.error("--name is for one directory of --data")
    return options


def find_data(options: argparse.Namespace) -> list[Data]:
    """Find the tables of every data set, or make one."""
    found = []
    for directory in options.data or [synthetic_in(options.out)]:
        tables = tables_in(directory)
        if tables["ratings"] is None:
            sys.exit(f"{directory}: no ratings.parquet")
        found.append(Data(options.name or directory.stem, **tables, liked=options.liked))
    return found


def run_all(options: argparse.Namespace, data: Data, results: Results) -> list[dict[str, Any]]:
    """Measure what is not known yet of the models asked for, and say so; give all results."""
    lines = []
    others = [m for m in LISTS if m not in options.models and peer_class(m).installed()]
    for model in sorted([*options.models, *others], key=_place):
        asked = model in options.models
        for seed in options.seeds:
            epochs = options.epochs if model == "lightfm" else None
            run = ListRun(data, model, seed, epochs=epochs)
            found = None if asked and options.again else results.find(run)
            if found is None and asked and not options.report:
                print(f"{data.name}, seed {seed}: {model} ...", end=" ", flush=True)
                found = results.measure(run, options.threads)
                print(found.get("error") or _short(found), flush=True)
            if found is not None and "error" in found:
                print(found["log"], file=sys.stderr)
            elif found is not None:
                lines.append(found)
    return lines


def _place(model: str) -> int:
    return LISTS.index(model) if model in LISTS else len(LISTS)


def _short(line: dict[str, Any]) -> str:
    parts = [f"{task} {value:.4f}" for task, value in line["ndcg@10"].items()]
    return f"{', '.join(parts)}  ({line['fit_s']:.1f} s)"


def report(lines: list[dict[str, Any]], data: Data) -> str:
    """Write the results of one data set as Markdown."""
    seeds = sorted({line["key"]["seed"] for line in lines})
    parts = [
        f"### Lists: {data.name}",
        f"{lines[0]['n_train']:,} training ratings, seeds {', '.join(map(str, seeds))}. A hit is "
        + (f"a held-out rating of {data.liked:g} or more. " if data.rated else "a held-out pair. ")
        + 'Fit and CPU seconds are medians, peak memory is the highest; "-" where a model has no '
        f"answer. {machine()}.",
        list_table(lines),
        "Each setting and seed, tasks in the same order:",
        list_seed_table(lines),
        *incomplete(lines),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    options = parse(arguments)
    results = Results(options.out, "lists")
    failed = False
    for data in find_data(options):
        lines = run_all(options, data, results)
        if not lines:
            print(f"{data.name}: no results.", file=sys.stderr)
            failed = True
            continue
        text = report(lines, data)
        file = options.out / "lists-{}.md".format(re.sub(r"[^\w-]+", "_", data.name))
        file.write_text(text, encoding="utf-8")
        print(f"\n{text}\nWritten to {file}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
