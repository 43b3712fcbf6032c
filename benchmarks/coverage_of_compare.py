"""Coverage of the intervals of `simrec.compare`, on synthetic comparisons whose truth is known.

    python benchmarks/coverage_of_compare.py [--comparisons 200] [--users 400]

Each comparison draws users from a population in which two models err in known ways: users have
very different numbers of ratings, both models share part of their error, and one is better for
some users and worse for others. Writes benchmarks/results/coverage.md.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa

from simrec import Ratings, compare
from simrec.data.split import ColdStartSplit

N_ITEMS, K = 60, 5


class Told:
    """A model whose predictions and lists are given."""

    def __init__(self, predictions: np.ndarray, lists: np.ndarray | None = None) -> None:
        self.predictions, self.lists = predictions, lists

    def predict(self, pairs: pa.Table) -> np.ndarray:
        return self.predictions

    def recommend(self, users, k, items, exclude=None) -> pa.Table:
        rows = self.lists[users.to_numpy()]
        n = len(users)
        return pa.table(
            {
                "user_id": np.repeat(users.to_numpy(), k),
                "item_id": rows.ravel(),
                "rank": np.tile(np.arange(1, k + 1), n),
            }
        )


def draw(rng: np.random.Generator, n_users: int):
    """Draw users with their ratings, and what two models predict and recommend."""
    counts = np.clip(rng.lognormal(2.0, 0.6, n_users).astype(int), 2, 50)
    user = np.repeat(np.arange(n_users), counts)
    item = np.concatenate([rng.permutation(N_ITEMS)[:c] for c in counts])
    shared = rng.normal(0, 0.8, len(user)) + rng.normal(0, 0.4, n_users)[user]
    gain = rng.choice([0.6, 1.15], n_users)[user]
    rating = rng.integers(1, 6, len(user)).astype(np.float32)
    errors = (shared, gain * shared + rng.normal(0, 0.2, len(user)))
    # Lists hold each of a user's liked items with a probability of the user's, one model's higher.
    luck = rng.beta(0.8, 3, n_users)
    ndcg = [rng.random((n_users, K)) < (share * luck)[:, None] for share in (1.0, 0.85)]
    return user, item, rating, errors, ndcg


def models_and_split(user, item, rating, errors, hits):
    """Make of a draw what `compare` takes; a hit is an item from the user's liked ones."""
    rating = rating.copy()
    first = np.unique(user, return_index=True)[1]
    rating[first] = 5.0  # everyone likes something
    test = Ratings.from_arrow(pa.table({"user_id": user, "item_id": item, "rating": rating}))
    known = pa.table({"user_id": [-1, -1], "item_id": [-1, -2], "rating": [1.0, 5.0]})
    train = Ratings.from_arrow(known)
    empty = test.select(np.zeros(len(test), bool))
    split = ColdStartSplit(train, empty, empty, empty, test)
    models, every = {}, np.arange(N_ITEMS)
    for name, error, hit in zip("ab", errors, hits, strict=True):
        lists = np.empty((len(first), K), np.int64)
        for u, start in enumerate(first):
            end = first[u + 1] if u + 1 < len(first) else len(user)
            mine = rating[start:end] >= 4
            liked, rest = item[start:end][mine], np.setdiff1d(every, item[start:end])
            take = liked[: int(hit[u].sum())]
            listed = np.full(K, -1)
            places = np.flatnonzero(hit[u])[: len(take)]
            listed[places] = take
            listed[listed < 0] = rest[: K - len(take)]
            lists[u] = listed
        models[name] = Told((rating + error).astype(np.float32), lists)
    return models, split


def coverage(n_comparisons: int, n_users: int, seed: int = 0, n_truth: int = 60_000):
    """Return the share of intervals that hold the truth, by metric, and the number of them."""
    rng = np.random.default_rng(seed)
    big = models_and_split(*draw(rng, n_truth))
    options = {"k": K, "threshold": 4, "max_users": 10**9}
    truth = compare(*big, **options).set_index("metric")["difference"]
    held = {metric: [] for metric in truth.index}
    for number in range(n_comparisons):
        found = compare(
            *models_and_split(*draw(rng, n_users)),
            random_state=number,
            **options,
        ).set_index("metric")
        for metric in held:
            row = found.loc[metric]
            held[metric].append(row["low"] <= truth[metric] <= row["high"])
    return {metric: float(np.mean(values)) for metric, values in held.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = coverage(options.comparisons, options.users, options.seed)
    lines = [
        "# Coverage of the 95% intervals of `simrec compare`",
        "",
        f"{options.comparisons} synthetic comparisons of {options.users} users each "
        f"(seed {options.seed}); the truth is that of 60,000 users.",
        "",
        "| figure | intervals that hold the truth |",
        "| --- | --- |",
        *(f"| {metric} | {share:.1%} |" for metric, share in found.items()),
        f"| both | {np.mean(list(found.values())):.1%} |",
    ]
    text = "\n".join(lines) + "\n"
    Path(__file__).with_name("results").joinpath("coverage.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
