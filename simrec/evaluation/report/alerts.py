"""What to look at before trusting the model: leaks, drift, sensitive and useless features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import chi2, rankdata

from simrec.data.features import family
from simrec.data.ids import IdMap
from simrec.evaluation.report.tested_model import SIDES, TestedModel, entity

if TYPE_CHECKING:
    import pandas as pd

MISSING, OTHER = "(missing)", "(other)"
# A shuffled feature that raises the error by less than this share of it does not help.
NO_HELP = 0.0005
# Correlation with the mean rating (or the number of ratings) that is too good to be known before.
_TOO_GOOD = 0.9
# Population stability index from which a shift is called one, how often chance alone may reach
# what is called a shift, and how many entities a comparison needs.
_SHIFTED, _CHANCE, _ENOUGH = 0.25, 0.001, 20
# Ratings an entity needs for its mean to mean something.
_FOR_MEAN = 5
_SENSITIVE = re.compile(
    r"(?:^|[^a-z])(?:gender|sex|age|birth\w*|race|ethnic\w*|religion|national\w*|citizen\w*|health"
    r"|disab\w*|income|salary|zip\w*|post\w*|orientation|politic\w*|marital|language|email|phone"
    r"|address)(?:$|[^a-z])"
)


@dataclass(frozen=True)
class Alert:
    """Something to look at.

    Attributes
    ----------
    kind : str
        ``"leak"``, ``"drift"``, ``"sensitive"``, ``"data"`` or ``"unused"``.
    about : str
        The column or table.
    what : str
        What was found.
    remedy : str
        What to do about it.
    """

    kind: str
    about: str
    what: str
    remedy: str


def alerts(tested: TestedModel, importance: Mapping[str, pd.DataFrame]) -> list[Alert]:
    """Find all there is, the most serious first."""
    found: list[Alert] = []
    for side in SIDES:
        found += [*leaks(tested, side), *drift(tested, side), *sensitive(tested, side)]
    found += data_problems(tested)
    for side in SIDES:
        found += unused(tested, side, importance[side])
    order = ("leak", "drift", "sensitive", "data", "unused")
    return sorted(found, key=lambda alert: order.index(alert.kind))


def is_sensitive(column: str) -> bool:
    """Tell by its name whether a column is about what people may not be judged by."""
    return _SENSITIVE.search(column.lower()) is not None


def sensitive(tested: TestedModel, side: str) -> list[Alert]:
    """Find columns of users that may not be allowed to be used."""
    encoder = tested.encoder(side)
    if encoder is None or side == "item":
        return []
    columns = [name for name in encoder.columns_ if is_sensitive(name)]
    if not columns:
        return []
    what = "the model uses what people may not be judged by, and its reasons can show it."
    ignore = " ".join(f"{column}=ignore" for column in columns)
    remedy = f"Make sure that it may; if not, --{side}-columns {ignore}."
    return [Alert("sensitive", f"{side}: {', '.join(columns)}", what, remedy)]


def unused(tested: TestedModel, side: str, importance: pd.DataFrame) -> list[Alert]:
    """Find columns that are left out, have one value only, or do not help."""
    table, encoder = tested.table(side), tested.encoder(side)
    if table is None or encoder is None:
        return []
    found = []
    for column, reason in encoder.ignored_.items():
        if reason in ("the id", "as asked") or (column == tested.item_name and side == "item"):
            continue
        remedy = f"Drop it, or say how to encode it (--{side}-columns {column}=...)."
        found.append(Alert("unused", f"{side}: {column}", f"not used: {reason}.", remedy))
    constant = {column for column in encoder.columns_ if _constant(table[column])}
    for column in sorted(constant):
        what = "the same value in every row."
        found.append(Alert("unused", f"{side}: {column}", what, "Drop the column."))
    for row in importance.iloc[:-1].to_dict("records") if len(importance) else ():
        small = row["share"] < NO_HELP or row["rise"] < row["spread"]
        if small and row["column"] not in constant:
            what = f"shuffled among new {side}s, it does not raise the error."
            remedy = "It costs little, but whoever maintains it may stop."
            found.append(Alert("unused", f"{side}: {row['column']}", what, remedy))
    return found


def leaks(tested: TestedModel, side: str) -> list[Alert]:
    """Find features that identify an entity, or that know what its ratings will be."""
    table, encoder = tested.table(side), tested.encoder(side)
    if table is None or encoder is None:
        return []
    ids, rows = entity(tested.ratings, side)
    count = np.bincount(rows, minlength=len(ids))
    mean = np.bincount(rows, tested.ratings.values, minlength=len(ids)) / count
    known = IdMap.from_values(table[f"{side}_id"])
    places, order = known.rows(ids.ids), np.argsort(known.rows(table[f"{side}_id"]))
    steady = (places >= 0) & (count >= _FOR_MEAN)
    found = []
    for column, kind in encoder.columns_.items():
        values, about = table[column], f"{side}: {column}"
        if identifies(values, kind):
            distinct = pc.count_distinct(values).as_py()
            what = f"{distinct:,} different values for {len(values):,} {side}s: it identifies them."
            remedy = (
                f"Most new {side}s have a value never seen before, so it cannot help there. "
                f"Leave it out (--{side}-columns {column}=ignore), or give a coarser one."
            )
            found.append(Alert("leak", about, what, remedy))
            continue
        if steady.sum() < _ENOUGH:
            continue
        taken = values.take(pa.array(order[places[steady]]))
        targets = {"the mean rating": mean, "the number of ratings": np.log(count)}
        for name, target in targets.items():
            strength = _association(taken, kind, target[steady])
            if strength > _TOO_GOOD:
                what = f"follows {name} of the {side} closely (correlation {strength:.2f})."
                remedy = (
                    "Make sure that it is known before the first rating comes in, "
                    "and was not computed from the ratings."
                )
                found.append(Alert("leak", about, what, remedy))
    return found


def drift(tested: TestedModel, side: str) -> list[Alert]:
    """Compare features of new entities with those of entities that have ratings.

    New are those that came since the parent; without one, those without any rating; if there are
    fewer than 20 of them, those held out of the split.
    """
    table, encoder = tested.table(side), tested.encoder(side)
    if table is None or encoder is None:
        return []
    ids = table[f"{side}_id"]
    old, new, which = _old_and_new(tested, side, ids)
    if new.sum() < _ENOUGH or old.sum() < _ENOUGH:
        return []
    found = []
    for column, kind in encoder.columns_.items():
        if identifies(table[column], kind):
            continue  # new ones have new values by nature
        index, groups, tests = stability(table[column], kind, old, new)
        if groups < 2:
            continue
        # Without drift the index is about a chi-square over the harmonic size of the two.
        quantile = float(chi2.ppf(1 - _CHANCE / tests, groups - 1))
        chance = quantile * (1 / old.sum() + 1 / new.sum())
        unknown = _unknown(table[column], kind, old, new)
        if index > max(_SHIFTED, chance) or unknown > 0.2:
            also = f", {unknown:.0%} with values never seen before" if unknown > 0.01 else ""
            what = (
                f"{int(new.sum()):,} {which} {side}s have other values (index {index:.2f}{also})."
            )
            remedy = "Check how the new values are made; train again once some of them are rated."
            found.append(Alert("drift", f"{side}: {column}", what, remedy))
    return found


def _old_and_new(
    tested: TestedModel, side: str, ids: pa.ChunkedArray
) -> tuple[np.ndarray, np.ndarray, str]:
    rated = entity(tested.ratings, side)[0].contains(ids)
    if tested.parent is not None:
        known = tested.parent.items_ if side == "item" else tested.parent.users_
        counts = (
            tested.parent.towers_.items.counts
            if side == "item"
            else tested.parent.towers_.users.counts
        )
        rows = known.rows(ids)
        old = (rows >= 0) & (np.asarray(counts)[rows] > 0)
        return old, rated & ~old, "newly rated"
    if (~rated).sum() >= _ENOUGH:
        return rated, ~rated, "unrated"
    held_out = entity(tested.new(side), side)[0].contains(ids)
    return entity(tested.split.train, side)[0].contains(ids), held_out, "held-out"


def data_problems(tested: TestedModel) -> list[Alert]:
    """Find sides without features, rated entities without a row, and repeated pairs."""
    found = []
    ratings = tested.ratings
    if ratings.n_duplicates:
        what = f"{ratings.n_duplicates:,} rows repeat a pair; the latest, or the mean, was kept."
        found.append(Alert("data", "ratings", what, "Make sure that this is what you mean."))
    for side in SIDES:
        table, encoder = tested.table(side), tested.encoder(side)
        if table is None or encoder is None:
            what = f"no features of {side}s: a new {side} gets the answer for an average one."
            found.append(Alert("data", f"{side}s", what, f"Train with --{side}s."))
            continue
        ids = entity(ratings, side)[0]
        absent = int((~IdMap.from_values(table[f"{side}_id"]).contains(ids.ids)).sum())
        if absent:
            what = f"{absent:,} of {len(ids):,} rated {side}s are not in the table of {side}s."
            found.append(Alert("data", f"{side}s", what, "Add their rows."))
    return found


def levels(
    values: pa.ChunkedArray, kind: str, bins: int = 4, most: int = 8
) -> dict[str, np.ndarray]:
    """Say which entities have which value: a mask for each.

    Categories give their most frequent values and one for all others, numbers give bins with
    about equally many entities, lists give their most frequent elements (an entity can be in
    several); vectors and text give nothing.
    """
    found: dict[str, np.ndarray] = {}
    if kind == "number":
        numbers = _numbers(values)
        known = np.isfinite(numbers)
        edges = (
            np.unique(np.quantile(numbers[known], np.linspace(0, 1, bins + 1)))
            if known.any()
            else [0.0]
        )
        places = np.clip(
            np.searchsorted(edges, numbers, side="right") - 1, 0, max(len(edges) - 2, 0)
        )
        dates = family(values.type) == "time" and not pa.types.is_duration(values.type)
        for place in range(max(len(edges) - 1, 1)):
            mask = (places == place) & known
            if mask.any():
                ends = [_written(end, dates) for end in (numbers[mask].min(), numbers[mask].max())]
                found[ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"] = mask
        return {**found, MISSING: ~known} if (~known).any() else found
    if kind == "category":
        words = _words(values)
        names, counts = np.unique(words, return_counts=True)
        kept = names[np.argsort(-counts, kind="stable")][:most]
        rest = ~np.isin(words, kept)
        found = {str(name): words == name for name in kept}
        return {**found, OTHER: rest} if rest.any() else found
    if kind == "list":
        flat = [(row, str(e)) for row, each in enumerate(values.to_pylist()) for e in each or ()]
        if flat:
            rows, words = np.array([row for row, _ in flat]), np.array([word for _, word in flat])
            names, counts = np.unique(words, return_counts=True)
            for name in names[np.argsort(-counts, kind="stable")][:most]:
                found[str(name)] = np.isin(np.arange(len(values)), rows[words == name])
    return found


def stability(
    values: pa.ChunkedArray, kind: str, old: np.ndarray, new: np.ndarray
) -> tuple[float, int, int]:
    """Return the population stability index of a feature, its number of groups, and of attempts.

    Elements of lists and coordinates of vectors are attempts: the largest index counts.
    """
    if kind == "vector":
        rows = [v if v is not None else [] for v in values.to_pylist()]
        width = max(map(len, rows), default=0)
        wide = np.array([list(v) if len(v) == width else [np.nan] * width for v in rows], float)
        each = [stability(pa.chunked_array([pa.array(c)]), "number", old, new) for c in wide.T]
        return (*max(each)[:2], len(each)) if each else (0.0, 0, 1)
    masks = levels(values, kind, bins=10, most=20)
    if kind == "list":
        indices = [_index(np.array([m, ~m]), old, new) for m in masks.values()]
        return (max(indices), 2, len(indices)) if indices else (0.0, 0, 1)
    if len(masks) < 2:
        return 0.0, 0, 1
    return _index(np.array(list(masks.values())), old, new), len(masks), 1


def _index(masks: np.ndarray, old: np.ndarray, new: np.ndarray) -> float:
    # Half a case more in each group: an empty one does not make the index infinite.
    shares = []
    for whose in (old, new):
        counts = masks[:, whose].sum(axis=1) + 0.5
        shares.append(counts / counts.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _unknown(values: pa.ChunkedArray, kind: str, old: np.ndarray, new: np.ndarray) -> float:
    if kind != "category":
        return 0.0
    words = _words(values)
    return float(np.mean(~np.isin(words[new], words[old])))


def _constant(values: pa.ChunkedArray) -> bool:
    if family(values.type).startswith("list"):
        return len({str(v) for v in values.to_pylist()}) < 2
    return len(pc.unique(values)) < 2


def identifies(values: pa.ChunkedArray, kind: str) -> bool:
    """Tell whether most entities have a value of their own."""
    known = len(values) - values.null_count
    if known < _ENOUGH or kind in ("vector", "text", "list"):
        return False
    if kind == "number" and not pa.types.is_integer(values.type):
        return False  # measurements differ from one another without naming anyone
    # Whole numbers are spread over their range; names of one's own are not shared by half.
    return len(pc.unique(values.drop_null())) > (0.95 if kind == "number" else 0.5) * known


def _association(values: pa.ChunkedArray, kind: str, target: np.ndarray) -> float:
    """Return the strength of the link between a feature and a target, between 0 and 1."""
    if target.std() == 0:
        return 0.0
    if kind == "number":
        numbers = _numbers(values)
        known = np.isfinite(numbers)
        if known.sum() < _ENOUGH or numbers[known].std() == 0:
            return 0.0
        pearson = np.corrcoef(numbers[known], target[known])[0, 1]
        ranks = rankdata(np.stack([numbers[known], target[known]]), axis=1)
        return float(max(abs(pearson), abs(np.corrcoef(ranks)[0, 1])))
    if kind != "category":
        return 0.0
    _, groups = np.unique(_words(values), return_inverse=True)
    n, k = len(target), groups.max() + 1
    if k < 2 or n <= k + 1:
        return 0.0
    means = np.bincount(groups, target) / np.bincount(groups)
    within = ((target - means[groups]) ** 2).sum() / (n - k)
    return float(np.sqrt(max(0.0, 1 - within / target.var(ddof=1))))


def _numbers(values: pa.ChunkedArray) -> np.ndarray:
    """Return a column as floats, dates and times as days; NaN where missing."""
    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if family(flat.type) == "time":
        made = flat.to_numpy(zero_copy_only=False)
        step = "timedelta64[s]" if pa.types.is_duration(flat.type) else "datetime64[s]"
        return np.where(np.isnat(made), np.nan, made.astype(step).astype(np.float64) / 86400)
    if family(flat.type) == "string":
        flat = flat.cast(pa.string())
    return pc.cast(flat, pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _words(values: pa.ChunkedArray) -> np.ndarray:
    return np.array([MISSING if v is None else str(v) for v in values.to_pylist()], dtype=str)


def _written(value: float, date: bool) -> str:
    if date:
        return str(np.datetime64(int(value), "D"))
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.3g}"
