"""Lists on data sets of other shapes, made of those at hand.

    python benchmarks/shapes.py --data ROOT [--seeds 0 1 2] [--models simrec ease-100 content]

ROOT has the directories amazon, citeulike, frappe, ml-1m and movietweetings. Each shape keeps some
pairs and some columns of one of them: texts alone, a category alone, few pairs a user, no ratings.
Tasks and peers are those of `lists.py`; one table has the best peer of each cell beside SimRec.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from _report import machine
from _runs import Data, Results, tables_in
from lists import run_all

MODELS = (
    *("simrec", "popularity", "content", "content-popularity"),
    *("ease-30", "ease-100", "ease-500", "ease-2000", "marec"),
)
TASKS = ("known_users", "new_items", "new_users", "few_ratings")
PAIR = ["user_id", "item_id"]


def at_most(pairs: pd.DataFrame, n: int) -> pd.DataFrame:
    """Keep at most n pairs of each user, drawn at random."""
    pairs = pairs.sample(frac=1, random_state=5)
    return pairs[pairs.groupby("user_id").cumcount() < n].sort_values(PAIR)


def tail(pairs: pd.DataFrame, share: float, least: int) -> pd.DataFrame:
    """Drop a share of the items, the most popular ones, then items and users with few pairs."""
    rank = pairs["item_id"].map(pairs["item_id"].value_counts().rank(ascending=False, pct=True))
    pairs = pairs[rank > share]
    pairs = pairs[pairs.groupby("item_id")["user_id"].transform("size") >= least]
    return pairs[pairs.groupby("user_id")["item_id"].transform("size") >= 5]


def make_shapes(root: Path) -> dict[str, tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Make the data sets: what each is, pairs, and items."""
    names = ("amazon", "citeulike", "frappe", "ml-1m", "movietweetings")
    pairs, items = (
        {name: pd.read_parquet(root / name / f"{table}.parquet") for name in names}
        for table in ("ratings", "items")
    )
    films, tags = items["ml-1m"], items["citeulike"]["tags"]
    words = tags.map(lambda one: " ".join(one).replace("_", " ").replace("-", " ") or None)
    some = pairs["citeulike"]["user_id"].drop_duplicates().sample(2_500, random_state=77)
    library = pairs["citeulike"][pairs["citeulike"]["user_id"].isin(some)]
    liked, rated = pairs["ml-1m"].query("rating >= 4"), pairs["ml-1m"]
    books = films[["item_id", "title", "year", "certificate"]].assign(
        author=films["directors"].map(lambda one: one[0] if len(one) else None)
    )
    loved = pairs["movietweetings"].query("rating >= 8")
    of_films = ["item_id", "genres", "year", "title"]
    return {
        "articles": (
            "half of CiteULike's users; the words of the tags as one text",
            library[PAIR],
            items["citeulike"][["item_id"]].assign(abstract=words),
        ),
        "apps": (
            "Frappe; description and category alone",
            pairs["frappe"][PAIR],
            items["frappe"][["item_id", "description", "category"]],
        ),
        "books": (
            "ML-1M, at most 25 ratings a user; first director, certificate, year",
            at_most(rated, 25),
            books,
        ),
        "businesses": (
            "Amazon, at most 12 ratings a user; category alone",
            at_most(pairs["amazon"][[*PAIR, "rating"]], 12),
            items["amazon"][["item_id", "category"]],
        ),
        "plots": (
            "ML-1M without ratings, at most 60 pairs a user; plot alone",
            at_most(rated[PAIR], 60),
            films[["item_id", "plot"]],
        ),
        "songs": (
            "ML-1M, at most 40 liked films a user, no ratings; actors and genres",
            at_most(liked[PAIR], 40),
            films[["item_id", "actors", "genres"]],
        ),
        "tweets": (
            "MovieTweetings, ratings of 8 and more as pairs",
            loved[PAIR],
            items["movietweetings"][of_films],
        ),
        "fans": (
            "ML-1M, the 700 users with most ratings; genres and year",
            rated[rated["user_id"].isin(rated["user_id"].value_counts().index[:700])],
            films[["item_id", "genres", "year"]],
        ),
        "rare films": (
            "ML-1M without the quarter of most rated films; directors, actors, plot",
            tail(rated, 0.25, 5),
            films[["item_id", "directors", "actors", "plot"]],
        ),
        "rare apps": (
            "Frappe without the 5% of most used apps; all columns",
            tail(pairs["frappe"][PAIR], 0.05, 3),
            items["frappe"],
        ),
        "rare tweets": (
            "MovieTweetings without the tenth of most rated films; genres and year",
            tail(pairs["movietweetings"][[*PAIR, "rating"]], 0.1, 4),
            items["movietweetings"][["item_id", "genres", "year"]],
        ),
    }


def table(found: dict[str, tuple[str, list[dict[str, Any]]]]) -> str:
    """Write SimRec / best peer of each cell, as Markdown."""
    rows = ["| NDCG@10, SimRec / best peer | " + " | ".join(t.replace("_", " ") for t in TASKS)]
    rows = [f"{rows[0]} | CPU s |", "| --- " * (len(TASKS) + 2) + "|"]
    for name, (what, lines) in found.items():
        means: dict[str, dict[str, float]] = {}
        for line in lines:
            own = means.setdefault(line["key"]["model"], dict.fromkeys(TASKS, 0.0))
            for task, value in line["ndcg@10"].items():
                own[task] += value / len({one["key"]["seed"] for one in lines})
        ours = means.pop("simrec")
        cells = []
        for task in TASKS:
            best = max(means, key=lambda model, task=task: means[model][task])
            cells.append(f"{ours[task]:.4f} / {means[best][task]:.4f} {best}")
        cpu = [line["fit_cpu_s"] for line in lines if line["key"]["model"] == "simrec"]
        cells.append(f"{sorted(cpu)[len(cpu) // 2]:.0f}")
        rows.append(f"| {name}: {what} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the directory of the data sets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    if options.data is None:
        print("shapes.py: nothing to do without --data")
        return 0
    options.again, options.report, options.threads, options.epochs = False, False, 1, None
    found = {}
    with tempfile.TemporaryDirectory() as work:
        for name, (what, pairs, items) in make_shapes(options.data).items():
            directory = Path(work) / name
            directory.mkdir()
            pairs.to_parquet(directory / "ratings.parquet", index=False)
            items.to_parquet(directory / "items.parquet", index=False)
            data = Data(name, **tables_in(directory))
            found[name] = what, run_all(options, data, Results(options.out, "shapes"))
    seeds = ", ".join(map(str, options.seeds))
    head = f"# Lists on other shapes of data\n\nMeans of seeds {seeds}. {machine()}."
    text = f"{head}\n\n{table(found)}\n"
    (options.out / "shapes.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
