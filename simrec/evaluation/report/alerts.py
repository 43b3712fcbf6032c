"""What to look at before trusting the model: leaks, sensitive features, missing rows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from simrec.data.sides import ID_COLUMNS, SIDES, SINGULAR, Side
from simrec.evaluation.report.tested_model import TestedModel, entities

KINDS = {"leak": "Leakage suspect", "sensitive": "Sensitive", "data": "Data"}
# Correlation with the mean rating (or the number of ratings) that is too good to be known before.
_TOO_GOOD = 0.9
# Entities that a comparison needs; ratings an entity needs for its mean to mean something; features
# of a column, such as its words, that are too many for a correlation to be told.
_ENOUGH, _FOR_MEAN, _WIDEST = 20, 5, 300
_SENSITIVE = re.compile(
    r"(?:^|[^a-z])(?:gender|sex|age|birth\w*|race|ethnic\w*|religion|national\w*|citizen\w*|health"
    r"|disab\w*|income|salary|zip\w*|post\w*|orientation|politic\w*|marital|language|email|phone"
    r"|address)(?:$|[^a-z])"
)


@dataclass(frozen=True)
class Alert:
    """Something to look at: of which of `KINDS`, about what, what was found, what to do."""

    kind: str
    about: str
    what: str
    remedy: str


def alerts(tested: TestedModel) -> list[Alert]:
    """Find all there is, the most serious first."""
    found: list[Alert] = []
    for side in SIDES:
        if tested.tables[side] is None or tested.encoder(side) is None:
            what = f"no features of {side}: a new {SINGULAR[side]} gets the answer for an average "
            found.append(Alert("data", side, f"{what}one.", f"Train with --{side}."))
            continue
        found += [*leaks(tested, side), *without_row(tested, side), *sensitive(tested, side)]
    if tested.ratings.n_duplicates:
        what = f"{tested.ratings.n_duplicates:,} rows repeat a pair; the latest, or the mean, "
        found.append(Alert("data", "ratings", f"{what}was kept.", "Make sure you mean this."))
    return sorted(found, key=lambda alert: list(KINDS).index(alert.kind))


def is_sensitive(column: str) -> bool:
    """Tell by its name whether a column is about what people may not be judged by."""
    return _SENSITIVE.search(column.lower()) is not None


def sensitive(tested: TestedModel, side: Side) -> Iterator[Alert]:
    """Find columns of users that may not be allowed to be used."""
    columns = [name for name in tested.encoder(side).columns_ if is_sensitive(name)]
    if columns and side == "users":
        what = "the model uses what people may not be judged by, and its reasons can show it."
        ignore = " ".join(f"{column}=ignore" for column in columns)
        remedy = f"Make sure that it may; if not, --user-columns {ignore}."
        yield Alert("sensitive", f"user: {', '.join(columns)}", what, remedy)


def leaks(tested: TestedModel, side: Side) -> Iterator[Alert]:
    """Find features that identify an entity, or that know what its ratings will be."""
    table, one, (ids, rows) = tested.tables[side], SINGULAR[side], entities(tested.ratings, side)
    assert table is not None
    count = np.bincount(rows, minlength=len(ids))
    mean = np.bincount(rows, tested.ratings.values, minlength=len(ids)) / count
    places = tested.copy.towers_[side].ids.rows(ids.ids)
    steady = (places >= 0) & (count >= _FOR_MEAN)
    targets = {"the mean rating": mean[steady], "the number of ratings": np.log(count[steady])}
    for column, kind in tested.encoder(side).columns_.items():
        if identifies(table[column], kind):
            distinct = pc.count_distinct(table[column]).as_py()
            what = f"{distinct:,} different values for {table.num_rows:,} {side}: it identifies "
            remedy = f"Most new {side} have a value never seen before, so it cannot help there. "
            remedy += f"Leave it out (--{one}-columns {column}=ignore), or give a coarser one."
            yield Alert("leak", f"{one}: {column}", f"{what}them.", remedy)
            continue
        X = sparse.csr_matrix(block(tested, side, column)[1][places[steady]])
        for name, target in targets.items():
            if (strength := correlation(X, target)) > _TOO_GOOD:
                what = f"follows {name} of the {one} closely (correlation {strength:.2f})."
                remedy = "Make sure that it is known before the first rating comes in, and was not "
                yield Alert("leak", f"{one}: {column}", what, f"{remedy}computed from the ratings.")


def without_row(tested: TestedModel, side: Side) -> Iterator[Alert]:
    """Find rated entities without a row of features."""
    ids, table = entities(tested.ratings, side)[0], tested.tables[side]
    assert table is not None
    absent = len(ids) - pc.sum(pc.is_in(ids.ids, table[ID_COLUMNS[side]].cast(ids.type))).as_py()
    if absent:
        what = f"{absent:,} of {len(ids):,} rated {side} are not in the table of {side}."
        yield Alert("data", side, what, "Add their rows.")


def block(tested: TestedModel, side: Side, column: str) -> tuple[list[str], sparse.csr_matrix]:
    """Return the features that a column became: their names, and a row for each entity."""
    tower = tested.copy.towers_[side]
    own = np.flatnonzero(tower.encoder.groups_ == list(tower.encoder.columns_).index(column))
    names = [tower.encoder.feature_names_[place] for place in own]
    return names, sparse.csr_matrix(tower.features[:, own], dtype=np.float64)


def feature_in_words(column: str, feature: str) -> str:
    """Name a feature that a column became: `year~1990` is "year about 1990"."""
    value = feature.removeprefix(column)
    if value == "=<unknown>":
        return f"a rare {column}"
    if value in ("=missing", "=<missing>"):
        return f"no {column}"
    return column + value.replace("~", " about ", 1).replace("=", ": ", 1)


def correlation(X: sparse.csr_matrix, target: np.ndarray) -> float:
    """Return how well a linear function of features follows a target: adjusted multiple R."""
    n, k = X.shape
    total = float(((target - target.mean()) ** 2).sum()) if n else 0.0
    if n < max(_ENOUGH, 3 * k) or k > _WIDEST or not total:
        return 0.0
    inputs = np.hstack([X.toarray(), np.ones((n, 1))])
    left = target - inputs @ np.linalg.lstsq(inputs, target, rcond=None)[0]
    return float(np.sqrt(max(0.0, 1 - (left @ left) / (n - k - 1) * (n - 1) / total)))


def identifies(values: pa.ChunkedArray, kind: str) -> bool:
    """Tell whether most entities have a value of their own."""
    known = len(values) - values.null_count
    measured = kind == "number" and not pa.types.is_integer(values.type)
    if known < _ENOUGH or kind not in ("category", "number") or measured:
        return False  # measurements differ from one another without naming anyone
    # Whole numbers are spread over their range; names of one's own are not shared by half.
    return len(pc.unique(values.drop_null())) > (0.95 if kind == "number" else 0.5) * known
