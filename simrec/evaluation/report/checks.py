"""What to look at before trusting the model: features that say nothing, leaks, drift."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import chi2, rankdata

from simrec.data.features import family
from simrec.data.ids import IdMap
from simrec.evaluation.report.cold import ALL
from simrec.evaluation.report.levels import as_numbers, as_words, levels
from simrec.evaluation.report.subject import Subject

if TYPE_CHECKING:
    import pandas as pd

# A shuffled feature that raises the error by less than this share of it says nothing.
_NOTHING = 0.0005
# Correlation with the mean rating (or the number of ratings) that is too good to be known before.
_TOO_GOOD = 0.9
# Share of entities with a value of their own that makes a feature an identifier.
_OWN_VALUE = 0.5
# Population stability index from which a shift is called one, how often chance alone may reach
# what is called a shift, and how many entities a comparison needs.
_SHIFTED, _CHANCE, _ENOUGH = 0.25, 0.001, 20
# Ratings an entity needs for its mean to mean something.
_FOR_MEAN = 5


@dataclass(frozen=True)
class Warning:
    """Something to look at.

    Attributes
    ----------
    kind : str
        ``"nothing"``, ``"leak"``, ``"drift"``, ``"error"`` or ``"data"``.
    about : str
        The column, task or table.
    what : str
        What was found.
    remedy : str
        What to do about it.
    """

    kind: str
    about: str
    what: str
    remedy: str


def says_nothing(
    subject: Subject, side: str, importance: "pd.DataFrame | None" = None
) -> list[Warning]:
    """Find columns with one value only, columns left out, and those that do not help."""
    table, encoder = subject.table(side), subject.encoder(side)
    if table is None or encoder is None:
        return []
    found = []
    for column, reason in encoder.ignored_.items():
        if reason in ("the id", "as asked") or (column == subject.item_name and side == "item"):
            continue
        remedy = f"Drop it, or say how to encode it (--{side}-columns {column}=...)."
        found.append(Warning("nothing", f"{side}: {column}", f"not used: {reason}.", remedy))
    constant = {column for column in encoder.columns_ if _constant(table[column])}
    for column in sorted(constant):
        what = "the same value in every row."
        found.append(Warning("nothing", f"{side}: {column}", what, "Drop the column."))
    for row in [] if importance is None or not len(importance) else importance.to_dict("records"):
        column = row["column"]
        if column == ALL or column in constant:
            continue
        if row["share"] < _NOTHING or row["rise"] < row["spread"]:
            what = f"shuffled among new {side}s, it does not raise the error."
            remedy = "It costs little, but whoever maintains it may stop; or give better values."
            found.append(Warning("nothing", f"{side}: {column}", what, remedy))
    return found


def leaks(subject: Subject, side: str) -> list[Warning]:
    """Find features that identify an entity, or that know what its ratings will be."""
    table, encoder = subject.table(side), subject.encoder(side)
    if table is None or encoder is None:
        return []
    ids, mean, count = entity_means(subject, side)
    rows = IdMap.from_values(table[f"{side}_id"]).rows(ids.ids)
    order = np.argsort(IdMap.from_values(table[f"{side}_id"]).rows(table[f"{side}_id"]))
    rated = rows >= 0
    places, mean, count = order[rows[rated]], mean[rated], count[rated]
    steady = count >= _FOR_MEAN
    found = []
    for column, kind in encoder.columns_.items():
        values, about = table[column], f"{side}: {column}"
        if _identifies(values, kind):
            distinct = pc.count_distinct(values).as_py()
            what = f"{distinct:,} different values for {len(values):,} {side}s: it identifies them."
            remedy = (
                f"Most new {side}s have a value never seen before, so it cannot help there. "
                f"Leave it out (--{side}-columns {column}=ignore), or give a coarser one."
            )
            found.append(Warning("leak", about, what, remedy))
            continue
        if steady.sum() < _ENOUGH:
            continue
        taken = values.take(pa.array(places[steady]))
        targets = {
            "the mean rating": mean[steady],
            "the number of ratings": np.log(count[steady]),
        }
        for name, target in targets.items():
            strength = _association(taken, kind, target)
            if strength > _TOO_GOOD:
                what = f"follows {name} of the {side} closely (correlation {strength:.2f})."
                remedy = (
                    "Make sure that it is known before the first rating comes in, "
                    "and was not computed from the ratings."
                )
                found.append(Warning("leak", about, what, remedy))
    return found


def drift(subject: Subject, side: str) -> "pd.DataFrame":
    """Compare features of new entities with those of the entities trained on.

    New are those of the table without any rating; if there are fewer than 20 of them, those held
    out of the split.

    Returns
    -------
    pandas.DataFrame
        column, psi (population stability index), unknown (share of the new with a category that
        training did not have), chance (the index that is hardly exceeded without any drift),
        shifted, new, which ("unrated" or "held out").
    """
    import pandas as pd

    table, encoder = subject.table(side), subject.encoder(side)
    if table is None or encoder is None:
        return pd.DataFrame()
    ids = table[f"{side}_id"]
    own = (lambda r: r.items) if side == "item" else (lambda r: r.users)
    trained = own(subject.split.train).rows(ids) >= 0
    new, which = own(subject.ratings).rows(ids) < 0, "unrated"
    if new.sum() < _ENOUGH:
        new, which = own(subject.new(side)).rows(ids) >= 0, "held out"
    else:
        trained = ~new
    if new.sum() < _ENOUGH or trained.sum() < _ENOUGH:
        return pd.DataFrame()
    rows = []
    for column, kind in encoder.columns_.items():
        if _identifies(table[column], kind):
            continue  # new ones have new values by nature
        psi, groups, tests = _stability(table[column], kind, trained, new)
        if groups < 2:
            continue
        # Without drift the index is about a chi-square over the harmonic size of the two.
        quantile = float(chi2.ppf(1 - _CHANCE / tests, groups - 1))
        chance = quantile * (1 / trained.sum() + 1 / new.sum())
        unknown = _unknown(table[column], kind, trained, new)
        shifted = psi > max(_SHIFTED, chance) or unknown > 0.2
        row = {"column": column, "psi": psi, "unknown": unknown, "chance": chance}
        rows.append({**row, "shifted": shifted, "new": int(new.sum()), "which": which})
    return pd.DataFrame(rows)


def drifted(subject: Subject, side: str) -> list[Warning]:
    """Turn drift into warnings."""
    found = []
    for row in drift(subject, side).to_dict("records"):
        if row["shifted"]:
            unknown = row["unknown"]
            also = f", {unknown:.0%} with values training never saw" if unknown > 0.01 else ""
            whose = f"{row['new']:,} {row['which']} {side}s"
            what = f"other values among {whose} than in training (index {row['psi']:.2f}{also})."
            remedy = "Check how the new values are made; train again once some of them are rated."
            found.append(Warning("drift", f"{side}: {row['column']}", what, remedy))
    return found


def data_problems(subject: Subject) -> list[Warning]:
    """Find rated entities without features, and entities with hardly any rating."""
    found = []
    ratings = subject.ratings
    if ratings.n_duplicates:
        what = f"{ratings.n_duplicates:,} rows repeat a pair; the latest, or the mean, was kept."
        found.append(Warning("data", "ratings", what, "Make sure that this is what you mean."))
    for side in ("item", "user"):
        table, encoder = subject.table(side), subject.encoder(side)
        ids = ratings.items if side == "item" else ratings.users
        if table is None or encoder is None:
            what = f"no features of {side}s: a new {side} gets the answer for an average one."
            found.append(Warning("data", f"{side}s", what, f"Train with --{side}s."))
            continue
        absent = int((IdMap.from_values(table[f"{side}_id"]).rows(ids.ids) < 0).sum())
        if absent:
            what = f"{absent:,} of {len(ids):,} rated {side}s are not in the table of {side}s."
            found.append(Warning("data", f"{side}s", what, "Add their rows."))
    return found


def entity_means(subject: Subject, side: str) -> tuple[IdMap, np.ndarray, np.ndarray]:
    """Give ids, mean ratings and numbers of ratings of all rated entities."""
    ratings = subject.ratings
    ids, rows = (
        (ratings.items, ratings.item_rows) if side == "item" else (ratings.users, ratings.user_rows)
    )
    count = np.bincount(rows, minlength=len(ids))
    return ids, np.bincount(rows, ratings.values, minlength=len(ids)) / count, count


def _constant(values: pa.ChunkedArray) -> bool:
    if family(values.type).startswith("list"):
        return len({str(v) for v in values.to_pylist()}) < 2
    return len(pc.unique(values)) < 2


def _identifies(values: pa.ChunkedArray, kind: str) -> bool:
    known = len(values) - values.null_count
    if known < _ENOUGH or kind in ("vector", "text", "list"):
        return False
    if kind == "number" and not pa.types.is_integer(values.type):
        return False  # measurements differ from one another without naming anyone
    # Whole numbers are spread over their range; names of one's own are not shared by half.
    limit = 0.95 if kind == "number" else _OWN_VALUE
    return len(pc.unique(values.drop_null())) > limit * known


def _association(values: pa.ChunkedArray, kind: str, target: np.ndarray) -> float:
    """Give the strength of the link between a feature and a target, between 0 and 1."""
    if target.std() == 0:
        return 0.0
    if kind == "number":
        numbers = as_numbers(values)
        known = np.isfinite(numbers)
        if known.sum() < _ENOUGH or numbers[known].std() == 0:
            return 0.0
        pearson = np.corrcoef(numbers[known], target[known])[0, 1]
        ranks = rankdata(np.stack([numbers[known], target[known]]), axis=1)
        return float(max(abs(pearson), abs(np.corrcoef(ranks)[0, 1])))
    if kind != "category":
        return 0.0
    _, groups = np.unique(as_words(values).astype(str), return_inverse=True)
    n, k = len(target), groups.max() + 1
    if k < 2 or n <= k + 1:
        return 0.0
    means = np.bincount(groups, target) / np.bincount(groups)
    within = ((target - means[groups]) ** 2).sum() / (n - k)
    return float(np.sqrt(max(0.0, 1 - within / target.var(ddof=1))))


def _stability(
    values: pa.ChunkedArray, kind: str, trained: np.ndarray, new: np.ndarray
) -> tuple[float, int, int]:
    """Give the population stability index of a feature, its number of groups, and of attempts.

    Elements of lists and coordinates of vectors are attempts: the largest index counts.
    """
    if kind == "vector":
        lists = np.array([v if v is not None else [] for v in values.to_pylist()], dtype=object)
        known = np.array([len(v) > 0 for v in lists])
        if not known.any():
            return 0.0, 0, 1
        wide = np.zeros((len(lists), max(map(len, lists))))
        wide[known] = np.array([list(v) for v in lists[known]], dtype=float)
        each = [_stability(pa.chunked_array([pa.array(c)]), "number", trained, new) for c in wide.T]
        return (*max(each)[:2], len(each))
    masks = levels(values, kind, bins=10, most=20)
    if kind == "list":
        indices = [_index(np.array([m, ~m]), trained, new) for m in masks.values()]
        return (max(indices), 2, len(indices)) if indices else (0.0, 0, 1)
    if len(masks) < 2:
        return 0.0, 0, 1
    return _index(np.array(list(masks.values())), trained, new), len(masks), 1


def _index(masks: np.ndarray, trained: np.ndarray, new: np.ndarray) -> float:
    # Half a case more in each group: an empty one does not make the index infinite.
    shares = []
    for whose in (trained, new):
        counts = masks[:, whose].sum(axis=1) + 0.5
        shares.append(counts / counts.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _unknown(values: pa.ChunkedArray, kind: str, trained: np.ndarray, new: np.ndarray) -> float:
    if kind != "category":
        return 0.0
    words: Any = as_words(values).astype(str)
    return float(np.mean(~np.isin(words[new], words[trained])))
