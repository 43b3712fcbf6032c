"""Encoders of new entities that were tried beside the linear one, all on the same statistics.

    python benchmarks/encoders.py --data DIR [DIR ...] [--seeds 10 11 ...] [--kinds ...]
    python benchmarks/encoders.py --data few together       # about ten ratings a user, synthetic

For each split, known entities and the linear encoder are fitted once. Each candidate adds units of
a layer drawn at random to the features and is cross-fitted with a fixed penalty of their weights.
The table has the change of the error on held-out training entities, by which `fit` chooses, and on
the new entities of the split, in per cent of the linear encoder's.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _few_ratings import few_ratings
from _runs import tables_in
from scipy import sparse
from threadpoolctl import threadpool_limits

from simrec import Ratings, cold_start_split
from simrec.data.sides import SIDES, Side, Sides
from simrec.model.new_entities.cross_fit import CrossFit
from simrec.model.new_entities.fit import NewEntities, fit_new, refit_partners
from simrec.model.new_entities.networks import HiddenLayer
from simrec.model.params import Settings
from simrec.model.posterior.observed import Entries, Observed
from simrec.model.posterior.posterior import KnownEntities, statistics
from simrec.model.posterior.problem import Problem
from simrec.model.posterior.sweeps import posteriors
from simrec.model.prepare import Encoding, Prepared, prepare
from simrec.scoring.metrics import rmse

Layer = Callable[[sparse.csr_matrix], np.ndarray]
# Shares of what features say that columns say together.
_SYNTHETIC = {"few": 0.0, "together": 0.6}
_BOUNDS = (1.0, 5.0)


def hidden(X: sparse.csr_matrix, relevance: np.ndarray, rng: np.random.Generator) -> Layer:
    """Draw rectified units: what `fit` tries."""
    return HiddenLayer.drawn(X, relevance, rng)


def waves(X: sparse.csr_matrix, relevance: np.ndarray, rng: np.random.Generator) -> Layer:
    """Draw cosines: in the limit the neighbours that a Gaussian kernel gives."""
    layer = HiddenLayer.drawn(X, relevance, rng)
    phase = rng.uniform(0, 2 * np.pi, layer.width)
    return _standardised(lambda Z: np.cos(Z @ layer.kernel + phase), X)


def products(X: sparse.csr_matrix, relevance: np.ndarray, rng: np.random.Generator) -> Layer:
    """Draw products of two sums of features: interactions."""
    one, two = (HiddenLayer.drawn(X, relevance, rng).kernel for _ in range(2))
    means = [np.asarray(X.mean(0)).ravel() @ kernel for kernel in (one, two)]
    return _standardised(lambda Z: (Z @ one - means[0]) * (Z @ two - means[1]), X)


KINDS = {"hidden": hidden, "waves": waves, "products": products}


def _standardised(units: Layer, X: sparse.csr_matrix) -> Layer:
    rows = units(X)
    mean, scale = rows.mean(0), 1 / (np.sqrt(rows.shape[1]) * np.maximum(rows.std(0), 0.01))
    return lambda Z: ((units(Z) - mean) * scale).astype(np.float32)


@dataclass(eq=False)
class Case:
    """A split, with what all candidates share."""

    problem: Problem
    known: Sides[KnownEntities]
    entries: Entries
    data: Prepared
    new: Sides[Ratings]
    rng: np.random.Generator

    def task_error(self, side: Side, encoded: np.ndarray, partners: np.ndarray) -> float:
        """Return the error for the new entities of a side, given vectors of all of its tower."""
        ratings, other = self.new[side], "users" if side == "items" else "items"
        rows = {"items": (ratings.items, ratings.item_rows)}
        rows["users"] = (ratings.users, ratings.user_rows)
        ids, at = rows[side]
        mine = self.data.sides[side].tower.ids.rows(ids.ids)[at]
        ids, at = rows[other]
        rated = self.data.ratings.users if other == "users" else self.data.ratings.items
        theirs = rated.rows(ids.ids)[at]
        both = (mine >= 0) & (theirs >= 0)
        z, w = encoded[mine[both]], partners[theirs[both]]
        score = np.einsum("nd,nd->n", z[:, :-1], w[:, :-1]) + z[:, -1] + w[:, -1]
        observed = self.problem.observed
        predicted = np.clip(observed.mean + observed.scale * score, *_BOUNDS)
        return rmse(ratings.values[both], predicted)


def make_case(tables: tuple[Ratings, pa.Table | None, pa.Table | None], seed: int) -> Case:
    """Split, encode features and fit known entities."""
    ratings, items, users = tables
    split = cold_start_split(ratings, random_state=seed)
    encoding = Encoding(Sides(None, None), min_count=2, knots=10)
    data = prepare(split.train, _BOUNDS, Sides(items, users), encoding)
    features = data.sides.map(lambda side: side.X)
    groups = data.sides.map(lambda side: side.groups)
    problem = Problem(Observed.of(data.ratings), features, groups)
    rng = np.random.default_rng(seed)
    known = posteriors(problem, Settings(16, 16), rng, lambda _: None)
    entries = problem.observed.sample(100_000, rng)
    return Case(problem, known, entries, data, Sides(split.new_items, split.new_users), rng)


def candidates(
    case: Case, side: Side, kinds: list[str], penalties: list[float]
) -> dict[tuple[str, float], np.ndarray]:
    """Return the changes of the held-out and of the test error, in per cent."""
    problem, known = case.problem, case.known
    linear = fit_new(problem, known, side, Settings(), case.entries, case.rng, lambda _: None)
    assert linear.penalty is not None
    penalty = replace(linear.penalty, hidden=None)
    inputs = problem.inputs(side, history=False)
    X, everyone = inputs.X[:, :-1], case.data.sides[side].tower.features
    stats = statistics(problem.observed.rows[side], known.other(side).posterior)
    fold = problem.folds(side, 5, case.rng)
    relevance = 1 / np.sqrt(penalty.columns[inputs.groups[:-1]])

    def errors(layer: Layer | None, value: float | None) -> np.ndarray:
        units = None if layer is None else layer(X)
        given = replace(inputs, units=units)
        of_weights = replace(penalty, hidden=value).of_weights(given, stats.h.shape[1])
        encoders = CrossFit(given, stats.unpacked(), fold, 5).fitted(of_weights)
        weights, held_out = encoders.weights, encoders.held_out()
        new: NewEntities = refit_partners(problem, known, side, case.entries, held_out)
        n = everyone.shape[1]
        encoded = everyone @ weights[:n] + weights[n]
        if layer is not None:
            encoded = encoded + layer(everyone) @ weights[n + 1 :]
        return np.array([new.error, case.task_error(side, encoded, new.partners.mean)])

    base = errors(None, None)
    found = {}
    for kind in kinds:
        layer = KINDS[kind](X, relevance, np.random.default_rng(7))
        for value in penalties:
            found[kind, value] = 100 * (errors(layer, value) / base - 1)
    return found


def read(name: str, seed: int) -> tuple[Ratings, pa.Table | None, pa.Table | None]:
    """Read a data set, or make one; each seed makes another."""
    if name in _SYNTHETIC:
        ratings, items, users = few_ratings(interaction=_SYNTHETIC[name], seed=seed)
        return Ratings.from_table(ratings), items, users
    found = tables_in(Path(name))
    if found["ratings"] is None:
        sys.exit(f"{name}: no ratings.parquet there. Or give one of {', '.join(_SYNTHETIC)}.")
    tables = [pq.read_table(found[side]) if found[side] else None for side in SIDES]
    return Ratings.from_parquet(found["ratings"]), tables[0], tables[1]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True, help="directories, few, together")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10, 18)))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--penalties", type=float, nargs="+", default=[300.0, 30.0])
    options = parser.parse_args(arguments)
    print("| data | side | units | penalty | held out % | new entities % | splits |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.data:
        found: dict[tuple[str, str, float], list[np.ndarray]] = {}
        for seed in options.seeds:
            with threadpool_limits(1, "blas"):
                case = make_case(read(name, seed), seed)
                for side in SIDES:
                    if case.problem.features[side].shape[1] == 1:
                        continue
                    changes = candidates(case, side, options.kinds, options.penalties)
                    for key, change in changes.items():
                        found.setdefault((side, *key), []).append(change)
        for (side, kind, value), changes_of_key in found.items():
            rows = np.array(changes_of_key)
            held_out, test = rows.mean(0)
            error = rows[:, 1].std(ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.nan
            cells = [Path(name).name, side, kind, f"{value:g}", f"{held_out:+.2f}"]
            cells += [f"{test:+.2f} (se {error:.2f})", str(len(rows))]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
