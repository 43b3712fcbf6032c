"""What content is worth: errors and lists with texts, vectors and tags, without them, with noise.

    python benchmarks/content.py --data DIR [DIR ...]        # ml-1m, frappe, citeulike, ml-100k
    python benchmarks/content.py --data DIR --seeds 10 --tables without with --models simrec
    python benchmarks/content.py --data DIR --speed     # of texts never seen in training

Each data set is measured with several tables of items, by the protocol of `quality.py` and
`lists.py`; one fit answers for errors and lists.

- without: the content is dropped (plots of ml-1m, descriptions of frappe, tags of citeulike);
- with: the table as it is, texts by their words;
- hashed: the words of texts hashed into a vector of 1,024 counts;
- vectors: sentence vectors in place of the text, from DIR-text/items.parquet where it is there;
- both: text and vectors;
- noise-...: `with` and one column that says nothing: a number, a category, tags, a text of 40 of
  100,000 words, a vector of 384 or of 4,096 numbers.

SimRec is measured with every table, peers with the richest: a TF-IDF profile, LightFM, EASE whose
new items take the weights of their neighbours by content, and MARec. Results are kept in --out
(content.jsonl) and used again as long as the model's code is the same; the table, content.md, has
whatever is known. A fit of SimRec takes about 45 CPU seconds on ml-1m, 20 on frappe and 75 on
citeulike: with three seeds 25, 8 and 30 CPU minutes. LightFM on ml-1m takes several more a seed.

--speed gives users texts of their own (the first content of DIR, at random), and scores new users
by texts that nobody had in training: by `simrec score`, and by the user tower as a SavedModel.
"""

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _lists import ListRun, list_quality, make_tasks
from _report import label, machine, markdown
from _runs import Data, Results, errors, fit, tables_in
from peers import peer_class

# Columns that are dropped to have a table without content; ml-100k has none, but shows noise.
CONTENT = {"ml-1m": ["plot"], "frappe": ["description"], "citeulike": ["tags"], "ml-100k": []}
PEERS = ("content", "ease-neighbours", "ease-neighbours-500", "marec", "marec-500", "lightfm")
ERRORS = ("warm", "new_items", "new_users", "new_both")
LISTS = ("known_users", "new_items", "new_users", "few_ratings")
# What a cell may lose by content or by noise, relative to the table without it.
_LOSS, _LOSS_BY_NOISE = 0.002, 0.001
_HASHED = 1024


def _number(n: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(rng.normal(size=n))


def _category(n: int, rng: np.random.Generator) -> pa.Array:
    return pa.array([f"c{k}" for k in rng.integers(0, 100, n)])


def _tags(n: int, rng: np.random.Generator) -> pa.Array:
    return pa.array([[f"t{k}" for k in row] for row in rng.integers(0, 1_000, (n, 5))])


def _text(n: int, rng: np.random.Generator) -> pa.Array:
    words = np.minimum(rng.zipf(1.2, (n, 40)), 100_000)
    return pa.array([" ".join(f"w{k}" for k in row) for row in words])


def _vector(size: int) -> Callable[[int, np.random.Generator], pa.Array]:
    return lambda n, rng: fixed(rng.normal(size=(n, size)))


NOISE: dict[str, Callable[[int, np.random.Generator], pa.Array]] = {
    "noise-number": _number,
    "noise-category": _category,
    "noise-tags": _tags,
    "noise-text": _text,
    "noise-vector-384": _vector(384),
    "noise-vector-4096": _vector(4096),
}
TABLES = ("without", "with", "hashed", "vectors", "both", *NOISE)


def fixed(rows: np.ndarray) -> pa.Array:
    flat = pa.array(rows.astype(np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _hashed(texts: pa.ChunkedArray) -> pa.Array:
    rows = np.zeros((len(texts), _HASHED), np.float32)
    for row, text in enumerate(pc.fill_null(texts, "").to_pylist()):
        for word in text.lower().split():
            rows[row, zlib.crc32(word.encode()) % _HASHED] += 1
    return fixed(rows)


def _vectors(data: Data) -> Path:
    directory = Path(str(data.items)).parent
    return directory.with_name(f"{directory.name}-text") / "items.parquet"


def tables_of(data: Data) -> list[str]:
    """Give the tables that a data set has."""
    schema, content = pq.read_schema(data.items), CONTENT[data.name]
    found = [*["without"] * bool(content), "with"]
    if content and all(pa.types.is_large_string(schema.field(c).type) for c in content):
        found.append("hashed")
    return found + ["vectors", "both"] * _vectors(data).exists() + list(NOISE)


def richest(data: Data) -> str:
    """Give the table that peers get."""
    return "both" if "both" in tables_of(data) else "with"


def item_table(data: Data, table: str, seed: int) -> pa.Table:
    """Make the table of items."""
    items, content = pq.read_table(data.items), CONTENT[data.name]
    if table in ("without", "vectors"):
        items = items.drop_columns(content)
    if table in ("vectors", "both"):
        more = pq.read_table(_vectors(data))
        rows = pc.index_in(items.column("item_id"), value_set=more.column("item_id"))
        for column in more.column_names[1:]:
            items = items.append_column(column, more.column(column).take(rows))
    if table == "hashed":
        for column in content:
            at = items.column_names.index(column)
            items = items.set_column(at, column, _hashed(items.column(column)))
    if table in NOISE:
        values = NOISE[table](items.num_rows, np.random.default_rng([seed, 99]))
        items = items.append_column("noise", values)
    return items


@dataclass(frozen=True)
class ContentRun(ListRun):
    """One model with one table of items on one split."""

    script: ClassVar[str] = __file__

    table: str = "with"

    def key(self) -> dict[str, Any]:
        return {**super().key(), "table": self.table}


def measure(run: ContentRun) -> dict[str, Any]:
    """Fit once; predict and make lists, here and now."""
    data, split = run.data, run.data.split(run.seed)
    values, liked = split.train.values, data.liked if data.rated else 1.0
    kind = peer_class(run.model)
    kind.load()
    peer = kind((float(values.min()), float(values.max())), liked, run.seed)
    if run.epochs:
        peer.epochs = run.epochs
    items = item_table(data, run.table, run.seed)
    result = fit(peer, split.train, items, data.features()[1])
    if data.rated and run.model == "simrec":
        result |= errors(peer, split.train, split.tasks())
    return result | list_quality(peer, make_tasks(split, liked, run.seed))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", default=[], help=f"of {list(CONTENT)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, metavar="TABLE")
    models = ("simrec", *PEERS)
    parser.add_argument("--models", nargs="+", choices=models, default=models, metavar="MODEL")
    parser.add_argument("--epochs", type=int, help="epochs of LightFM; default: 30")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--threads", type=int, help="threads a model may use")
    parser.add_argument("--again", action="store_true", help="measure even what is known")
    parser.add_argument("--report", action="store_true", help="only write what is known")
    parser.add_argument("--speed", action="store_true", help="only measure how fast texts are")
    options = parser.parse_args(arguments)
    for directory in options.data:
        if directory.name not in CONTENT:
            parser.error(f"{directory}: expected a directory named {', '.join(CONTENT)}")
    return options


def runs_of(options: argparse.Namespace, data: Data) -> list[ContentRun]:
    """List what is to be measured, cheap data and SimRec first."""
    found = []
    for model in options.models:
        own = tables_of(data) if model == "simrec" else [richest(data)]
        epochs = options.epochs if model == "lightfm" else None
        for table in own:
            if table in options.tables or model != "simrec":
                found += [
                    ContentRun(data, model, seed, epochs=epochs, table=table)
                    for seed in options.seeds
                ]
    return found


def run_all(options: argparse.Namespace, data: Data, results: Results) -> list[dict[str, Any]]:
    """Measure what is not known yet, and say so; give all results."""
    lines = []
    for run in runs_of(options, data):
        found = None if options.again else results.find(run)
        if found is None and not options.report:
            print(f"{data.name}, seed {run.seed}: {run.model}, {run.table} ...", end=" ")
            sys.stdout.flush()
            found = results.measure(run, options.threads)
            if "error" in found:
                print(found["error"], "\n", found["log"], file=sys.stderr)
                continue
            cells = [*found.get("rmse", {}).values(), *found["ndcg@10"].values()]
            print(" ".join(f"{cell:.4f}" for cell in cells), f"({found['fit_cpu_s']:.0f} CPU s)")
        if found is not None:
            lines.append(found)
    return lines


def _mean(lines: list[dict[str, Any]], measure: str, task: str) -> float | None:
    found = [line[measure][task] for line in lines if task in line.get(measure, {})]
    return float(np.mean(found)) if found else None


def report(lines: list[dict[str, Any]], data: Data) -> str:
    """Write the tables of one data set as Markdown."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["key"]["model"], line["key"]["table"]), []).append(line)
    seeds = sorted({line["key"]["seed"] for line in lines})
    cells = [("ndcg@10", task) for task in LISTS]
    if data.rated:
        cells = [("rmse", task) for task in ERRORS] + cells
    names = [f"{'RMSE' if m == 'rmse' else 'NDCG'} {t.replace('_', ' ')}" for m, t in cells]
    head = ["model", "items table", *names, "fit, CPU s"]
    rows = [head, ["---"] * len(head)]
    for (model, table), group in groups.items():
        means = (_mean(group, measure, task) for measure, task in cells)
        shown = ["-" if mean is None else f"{mean:.4f}" for mean in means]
        cpu = f"{np.median([line['fit_cpu_s'] for line in group]):.1f}"
        few = "" if len(group) == len(seeds) else f" ({len(group)} of {len(seeds)} seeds)"
        rows.append([label(model), table + few, *shown, cpu])
    parts = [
        f"### Content: {data.name}",
        f"{lines[0]['n_train']:,} training ratings, seeds {', '.join(map(str, seeds))}. "
        f"CPU seconds are medians. {machine()}.",
        markdown(rows),
        *_changes(groups, cells, names),
    ]
    return "\n\n".join(parts) + "\n"


def _changes(
    groups: dict[tuple[str, str], list[dict[str, Any]]],
    cells: list[tuple[str, str]],
    names: list[str],
) -> list[str]:
    """Say what each table changes, in per cent, on the seeds that both have; gains are positive.

    Content against the table without it, noise against the table that it was added to.
    """
    found = {table: group for (model, table), group in groups.items() if model == "simrec"}
    head = ["SimRec, gain in %", *names, "fit, CPU"]
    rows = [head, ["---"] * len(head)]
    for table, group in found.items():
        other = found.get("with" if table in NOISE else "without", [])
        seeds = {line["key"]["seed"] for line in group} & {line["key"]["seed"] for line in other}
        if table == "without" or not seeds:
            continue
        pair = [[one for one in g if one["key"]["seed"] in seeds] for g in (group, other)]
        shown, worst = [], _LOSS_BY_NOISE if table in NOISE else _LOSS
        for measure, task in cells:
            new, old = (_mean(g, measure, task) for g in pair)
            if new is None or old is None:
                shown.append("-")
                continue
            gain = 1 - new / old if measure == "rmse" else new / old - 1
            shown.append(f"{100 * gain:+.2f}" + " (!)" * (gain < -worst))
        cpu = [np.median([line["fit_cpu_s"] for line in g]) for g in pair]
        rows.append([table, *shown, f"{cpu[0] / cpu[1]:.2f}x"])
    if len(rows) == 2:
        return []
    loss = f"(!): a loss of more than {_LOSS:.1%} by content, of {_LOSS_BY_NOISE:.1%} by noise."
    said = "Content against `without`, noise against `with`, on the same seeds:"
    return [said, markdown(rows), loss]


def text_speed(data: Data, n: int = 20_000, repeats: int = 3) -> str:
    """Score new users by texts never seen in training, both ways in turn; give a table."""
    import tensorflow as tf

    from simrec import Ratings, TwoTower
    from simrec.jobs.score import score

    rng = np.random.default_rng(0)
    texts = pq.read_table(data.items).column(CONTENT[data.name][0]).drop_null().to_pylist()
    ratings = Ratings.from_parquet(data.ratings)
    ratings = ratings.select(rng.permutation(len(ratings)) < 100_000)
    about = [texts[k] for k in rng.integers(0, len(texts), ratings.n_users)]
    model = TwoTower(epochs=2, user_columns={"about": "text"}, random_state=0)
    model.fit(ratings, users=pa.table({"user_id": ratings.users.ids, "about": about}))
    halves = [text.split()[: len(text.split()) // 2] for text in texts]
    pairs = rng.integers(0, len(halves), (n, 2))
    new = [" ".join(halves[one] + halves[other]) for one, other in pairs]
    ids, rows = 10**9 + np.arange(n), rng.integers(0, len(model.items_), n)
    output, seconds = model.predictor().output, {"`simrec score`": [], "SavedModel": []}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        model.save(root / "model")
        model.export(root / "tower", "tower", side="user", rank_by="rating")
        model.export(root / "vectors", "parquet", side="item", rank_by="rating")
        vectors = pq.read_table(root / "vectors" / "items.parquet")["vector"].to_pylist()
        items = np.array(vectors, np.float32)
        asked, told = root / "pairs.parquet", root / "users.parquet"
        pq.write_table(pa.table({"user_id": ids, "item_id": model.items_.take(rows)}), asked)
        pq.write_table(pa.table({"user_id": ids, "about": new}), told)
        encode = tf.saved_model.load(str(root / "tower")).signatures["serving_default"]
        for repeat in range(repeats + 1):
            start = time.process_time()
            score(root / "model", asked, root / f"{repeat}.parquet", users=told)
            seconds["`simrec score`"].append(time.process_time() - start)
            start = time.process_time()
            given, z = pq.read_table(told)["about"], np.empty(n, np.float32)
            for at in range(0, n, 1000):
                here = slice(at, at + 1000)
                found = encode(about=tf.constant(given[here].to_pylist()))["vector"].numpy()
                z[here] = np.einsum("nd,nd->n", found, items[rows[here]])
            scores = output(z - np.float32(output.shift))
            seconds["SavedModel"].append(time.process_time() - start)
        expected = pq.read_table(root / "0.parquet")["score"].to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-3)
    table = [["way", "CPU s", "texts a CPU second"], ["---"] * 3]
    for way, all_ in seconds.items():
        median = float(np.median(all_[1:]))  # the first one warms up
        table.append([way, f"{median:.2f}", f"{n / median:,.0f}"])
    words = np.mean([len(text.split()) for text in new])
    said = f"{n:,} new users with texts of {words:.0f} words on average, one item each; "
    said += f"medians of {repeats} runs, ways in turn. {machine()}."
    return "\n\n".join([f"### Texts never seen in training: {data.name}", said, markdown(table)])


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    options = parse(arguments)
    if options.speed:
        data = [Data(one.name, **tables_in(one)) for one in options.data]
        text = "\n\n".join(map(text_speed, data)) + "\n"
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "content-speed.md").write_text(text, encoding="utf-8")
        print(text)
        return 0
    results, texts = Results(options.out, "content"), []
    for directory in options.data:
        data = Data(directory.name, **tables_in(directory))
        lines = run_all(options, data, results)
        if lines:
            texts.append(report(lines, data))
    if not texts:
        print("No results.", file=sys.stderr)
        return 1
    file = options.out / "content.md"
    file.write_text("\n".join(texts), encoding="utf-8")
    print("\n".join(["", *texts, f"Written to {file}"]))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        print(json.dumps(measure(ContentRun.from_json(sys.argv[1]))))
    else:
        sys.exit(main())
