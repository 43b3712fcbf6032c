"""Lists of new items by the protocol of published work, with its figures beside ours.

    python benchmarks/published.py --data DIR [DIR]           # citeulike, ml-1m
    python benchmarks/published.py --data DIR --seeds 0 --models simrec content

The protocol is that of ALDI's and ColdRec's code. A fifth of the items is cold; half of the cold
items is for validation, half for testing. The pairs of the other items are divided 8:1:1; what is
held out of users or items that have nothing left in training goes back there. Cold pairs of users
without training pairs are left out. Candidates are all cold items, those for validation too, but
for those that the user has there. NDCG@20 is relative to the best list of min(20, hits), Recall@20
to all hits; both are means over the users with a test pair (the authors' code takes 2,000 of them).
All pairs count alike, whatever the rating. Validation pairs serve nothing here: SimRec and the
peers choose on training pairs.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from _lists import Task
from _report import label, machine
from _runs import Data, Results, Run, fit, tables_in
from peers import FAMILIES, PEERS, peer_class

from simrec import Ratings
from simrec.scoring.metrics import hits, ndcg_at_k

MODELS = ("simrec", "popularity-1", "popularity", "popularity-100", "content")
MODELS += ("content-popularity", "content-popularity-2", "marec", "marec-500", "content-network")
_TEXT = "300 numbers of the texts"
_FILM = "206 columns"
# NDCG@20 and Recall@20 as cited, not checked against the papers' tables. Features are those of
# ColdRec's data (data/README.md there has the widths), which the papers may not have used as such.
PUBLISHED = {
    "citeulike": {
        "LLM-InS": (0.213, 0.360, f"{_TEXT}, and the texts read by a language model"),
        "ALDI": (0.154, 0.269, _TEXT),
        "CLCRec": (0.143, 0.244, _TEXT),
    },
    "ml-1m": {
        "LLM-InS": (0.176, 0.176, f"{_FILM}, and texts read by a language model"),
        "ALDI": (0.130, 0.123, _FILM),
    },
}
PROTOCOL = 1


@dataclass(frozen=True)
class PublishedRun(Run):
    """One model on one split."""

    script: ClassVar[str] = __file__

    def key(self) -> dict[str, Any]:
        return {**super().key(), "protocol": PROTOCOL}


def published_split(ratings: Ratings, seed: int) -> tuple[Ratings, Task]:
    """Give training pairs and the task of the cold items for testing."""
    rng = np.random.default_rng(seed)
    u, i = ratings.user_rows, ratings.item_rows
    place = np.argsort(rng.permutation(ratings.n_items)) / ratings.n_items
    cold, tested = place < 0.2, place < 0.1
    train = ~cold[i] & (rng.random(len(u)) < 0.8)
    for rows in (u, i):  # what has nothing in training goes back there
        there = np.bincount(rows, train, minlength=rows.max() + 1) > 0
        train |= ~cold[i] & ~there[rows]
    known = np.bincount(u, train, minlength=ratings.n_users) > 0
    test = ratings.select(tested[i] & known[u])
    validation = ratings.select(cold[i] & ~tested[i] & known[u])
    candidates = ratings.select(cold[i] & known[u]).items
    trained = ratings.select(train)
    return trained, Task.of(test, trained.users, candidates, exclude=validation)


def measure(run: PublishedRun) -> dict[str, Any]:
    """Fit and make lists, here and now."""
    ratings = Ratings.from_parquet(run.data.ratings, rating=None)
    train, task = published_split(ratings, run.seed)
    kind = peer_class(run.model)
    kind.load()
    peer = kind((1.0, 1.0), 1.0, run.seed)
    result = fit(peer, train, *run.data.features())
    best = peer.lists(task.users, task.items, 20, task.exclude)
    hit, n = hits(best, task.relevant), np.diff(task.relevant.indptr)
    result["ndcg@20"] = float(ndcg_at_k(hit, n).mean())
    result["recall@20"] = float((hit.sum(axis=1) / n).mean())
    result |= {"n_users": len(task.users), "n_items": len(task.items), "n_test": int(n.sum())}
    return result


def report(data: Data, found: dict[str, list[dict[str, Any]]]) -> str:
    """Write the table of one data set."""
    ours = sorted({line["key"]["seed"] for lines in found.values() for line in lines})
    first = next(iter(found.values()))[0]
    columns = ", ".join(data.features()[0].column_names[1:])
    rows = [
        "| | NDCG@20 | Recall@20 | seeds | features of items |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (ndcg, recall, features) in PUBLISHED.get(data.name, {}).items():
        rows.append(f"| {name}, published | {ndcg:.3f} | {recall:.3f} | 5 | {features} |")
    shown: set[str] = set()
    for model in found:
        family = FAMILIES.get(model, model)
        settings = [m for m in found if FAMILIES.get(m, m) == family]
        if family in shown:
            continue
        shown.add(family)
        best = max(settings, key=lambda m: np.mean([line["ndcg@20"] for line in found[m]]))
        name = f"{family}, best of {len(settings)}" if len(settings) > 1 else label(model)
        cells = []
        for metric in ("ndcg@20", "recall@20"):
            values = [line[metric] for line in found[best]]
            cells.append(f"{np.mean(values):.4f} ± {np.std(values):.4f}")
        rows.append(f"| {name} | {' | '.join(cells)} | {len(found[best])} | {columns} |")
    head = (
        f"### Published protocol: {data.name}\n\nSeeds {', '.join(map(str, ours))}; "
        f"{first['n_train']:,} training pairs, {first['n_users']:,} users with {first['n_test']:,} "
        f"test pairs, {first['n_items']:,} candidates (first seed); ± is the standard deviation "
        f"over seeds. Splits are not the authors' own, but drawn in the same way. {machine()}."
    )
    return f"{head}\n\n" + "\n".join(rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--models", nargs="+", choices=list(PEERS), default=MODELS, metavar="MODEL")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--threads", type=int, help="threads a model may use")
    options = parser.parse_args(arguments)
    results = Results(options.out, "published")
    texts = []
    for directory in options.data:
        data = Data(directory.stem, **tables_in(directory))
        found: dict[str, list[dict[str, Any]]] = {}
        for model in options.models:
            for seed in options.seeds:
                run = PublishedRun(data, model, seed)
                line = results.find(run) or results.measure(run, options.threads)
                if "error" in line:
                    print(line["log"], file=sys.stderr)
                    continue
                found.setdefault(model, []).append(line)
                print(
                    f"{data.name}, seed {seed}: {model} NDCG@20 {line['ndcg@20']:.4f}, "
                    f"Recall@20 {line['recall@20']:.4f} ({line['fit_cpu_s']:.1f} CPU s)",
                    flush=True,
                )
        if found:
            texts.append(report(data, found))
    (options.out / "published.md").write_text("\n".join(texts), encoding="utf-8")
    print("\n".join(texts))
    return int(len(texts) < len(options.data))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(measure(PublishedRun.from_json(sys.argv[1]))))
    else:
        sys.exit(main())
