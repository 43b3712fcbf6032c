"""Synthetic ratings of known true parameters, and the lowest error that a model can reach."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.seeds import generator
from simrec.data.synthetic.generate import (
    draw_pairs,
    draw_ratings,
    draw_truth,
    make_items,
    make_users,
)
from simrec.data.synthetic.truth import BOUNDS, Parameters, Truth
from simrec.errors import InputError

if TYPE_CHECKING:
    from simrec.data.split import ColdStartSplit

logger = logging.getLogger(__name__)

_SAMPLE = Path(__file__).resolve().parents[3] / "data" / "sample"
_TABLES = ("ratings", "items", "users")
# What is known of a pair in each task: the user's own offset, the item's own offset.
_KNOWN = {
    "warm": (True, True),
    "new_items": (True, False),
    "new_users": (False, True),
    "new_both": (False, False),
}


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Ratings with features and their truth. Made by `make_synthetic`.

    Attributes
    ----------
    ratings : pyarrow.Table
        user_id, item_id, rating: half stars within the bounds; each pair once.
    items : pyarrow.Table
        item_id, title, genres (list), year (some missing), studio, mood (vector).
    users : pyarrow.Table
        user_id, age (some missing), gender, occupation, region.
    truth : Truth
        The true parameters; rows as in `users` and `items`.
    bounds : (float, float)
        Lowest and highest possible rating.
    """

    ratings: pa.Table
    items: pa.Table
    users: pa.Table
    truth: Truth
    bounds: tuple[float, float] = BOUNDS

    def best_predictions(self, pairs: Ratings, task: str) -> np.ndarray:
        """Return the best prediction for each pair, float64; its ratings are not looked at.

        The mean of the rating's distribution, given that the pair was observed and

        - warm: all true parameters of user and item. Only the noise of the rating is left, so this
          is a floor that no model can reach from finitely many ratings;
        - new_items: the features of the item, how often it is come across, and all true parameters
          of the user;
        - new_users: the same with user and item exchanged;
        - new_both: the features of both, and how often they come up.

        Parameters
        ----------
        pairs : Ratings
            Users and items of this data.
        task : {"warm", "new_items", "new_users", "new_both"}
            What is known.
        """
        if task not in _KNOWN:
            raise InputError(f"task must be one of {', '.join(_KNOWN)}, got {task!r}")
        rows = []
        for name, table, ids, at in (
            ("user_id", self.users, pairs.users, pairs.user_rows),
            ("item_id", self.items, pairs.items, pairs.item_rows),
        ):
            found = IdMap(table.column(name)).rows(ids.ids)
            if (found < 0).any():
                raise InputError(
                    f"{int((found < 0).sum())} values of {name} are not of this synthetic data, "
                    f"for example {ids.take(np.flatnonzero(found < 0)[:1])[0].as_py()!r}: "
                    "the truth about them is not known"
                )
            rows.append(found[at])
        know_user, know_item = _KNOWN[task]
        return self.truth.best(*rows, know_user=know_user, know_item=know_item)

    def best_rmse(self, split: "ColdStartSplit") -> dict[str, float]:
        """Return the error of the best predictions on each task of a split of these ratings.

        See `best_predictions` for what they know. It is measured on the ratings of the split, so
        that it compares with a model's error on the same ratings; where these are few, a model may
        by chance come out slightly below. NaN where a task has no ratings.
        """
        best = {}
        for task, ratings in split.tasks().items():
            error = ratings.values - self.best_predictions(ratings, task)
            best[task] = float(np.sqrt(np.mean(error**2))) if len(error) else float("nan")
        return best

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write ratings, items and users, and their truth, as Parquet files.

        `read_synthetic` reads them back.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name in _TABLES:
            pq.write_table(getattr(self, name), path / f"{name}.parquet", compression="zstd")
        facts = {
            "noise": self.truth.noise,
            "selectivity": self.truth.selectivity,
            "numpy": np.__version__,
        }
        for name in ("users", "items"):
            side: Parameters = getattr(self.truth, name)
            facts[name] = {"factor_sd": side.factor_sd, "bias_sd": side.bias_sd}
            columns = {"prior": _vectors(side.prior), "offset": _vectors(side.offset)}
            table = pa.table({**columns, "exposure": side.exposure})
            pq.write_table(table, path / f"truth_{name}.parquet", compression="zstd")
        (path / "truth.json").write_text(json.dumps(facts, indent=2) + "\n")


def make_synthetic(
    n_users: int = 600,
    n_items: int = 400,
    n_ratings: int = 25_000,
    *,
    rank: int = 4,
    feature_share: float = 0.75,
    selectivity: float = 1.5,
    noise: float = 0.6,
    skew: float = 0.8,
    id_type: Literal["integer", "string"] = "integer",
    random_state: int = 0,
) -> Synthetic:
    """Make ratings of known truth: low-rank preferences that features explain in part.

    The defaults make the sample that comes with the project. Time and memory grow with the number
    of ratings, not of pairs: 25 million take about half a minute and 1 GB.

    Parameters
    ----------
    n_users, n_items, n_ratings : int
        Sizes. A user or an item may end up without ratings. At most a quarter of all pairs can be
        rated.
    rank : int
        Number of factors of the preferences, without the biases.
    feature_share : float
        Share of the variance of users' and items' parameters that their features explain, 0 to 1.
    selectivity : float
        How much more likely users rate what they like; 0: not at all.
    noise : float
        Standard deviation of what is left to chance when a preference becomes a rating.
    skew : float
        Exponent of the popularity of items (Zipf's law); 0: all alike.
    id_type : {"integer", "string"}
        Type of the ids.
    random_state : int
        Seed.

    Returns
    -------
    Synthetic

    Examples
    --------
    >>> data = make_synthetic(n_users=50, n_items=40, n_ratings=300)
    >>> data.ratings.num_rows
    300
    """
    counts = {"n_users": n_users, "n_items": n_items, "n_ratings": n_ratings, "rank": rank}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} must be positive, got {count}")
    for name, size in {"selectivity": selectivity, "noise": noise, "skew": skew}.items():
        if not 0 <= size < np.inf:
            raise InputError(f"{name} must be at least 0, got {size}")
    if n_ratings > n_users * n_items // 4:
        raise InputError(
            f"{n_ratings} ratings do not fit: at most a quarter of the {n_users} x {n_items} "
            f"pairs can be rated, {n_users * n_items // 4}. Ask for fewer, or for more entities."
        )
    if not 0 <= feature_share <= 1:
        raise InputError(f"feature_share must be between 0 and 1, got {feature_share}")
    if id_type not in ("integer", "string"):
        raise InputError(f'id_type must be "integer" or "string", got {id_type!r}')
    rng = generator(random_state)
    user_ids, item_ids = _ids("u", n_users, id_type), _ids("i", n_items, id_type)
    items, item_features = make_items(n_items, item_ids, rng)
    users, user_features = make_users(n_users, user_ids, rng)
    truth = draw_truth(
        user_features, item_features, rank, feature_share, skew, noise, selectivity, rng
    )
    pairs, truth = draw_pairs(truth, n_ratings, rng)
    user, item, values = draw_ratings(pairs, truth, rng)
    ratings = pa.table(
        {
            "user_id": user_ids.take(pa.array(user)),
            "item_id": item_ids.take(pa.array(item)),
            "rating": values,
        }
    )
    return Synthetic(ratings, items, users, truth)


def read_synthetic(directory: str | os.PathLike[str]) -> Synthetic:
    """Read what `Synthetic.write` wrote."""
    path = Path(directory)
    if not (path / "truth.json").is_file():
        raise InputError(f"{path}: no truth.json; give a directory that Synthetic.write wrote")
    facts = json.loads((path / "truth.json").read_text())
    sides = []
    for name in ("users", "items"):
        table = pq.read_table(path / f"truth_{name}.parquet")
        prior, offset = (
            np.stack(table.column(c).to_numpy()).astype(np.float32) for c in ("prior", "offset")
        )
        exposure = table.column("exposure").to_numpy()
        sides.append(Parameters(prior, offset, exposure, **facts[name]))
    truth = Truth(sides[0], sides[1], facts["noise"], facts["selectivity"])
    ratings, items, users = (pq.read_table(path / f"{name}.parquet") for name in _TABLES)
    return Synthetic(ratings, items, users, truth)


def load_sample() -> Synthetic:
    """Return the sample of the project: 25,000 ratings of 400 items by 600 users.

    Read from ``data/sample`` in a checkout; elsewhere made anew, which gives the same.
    """
    if (_SAMPLE / "truth.json").is_file():
        return read_synthetic(_SAMPLE)
    return make_synthetic()


def _ids(prefix: str, n: int, id_type: str) -> pa.Array:
    numbers = np.arange(1, n + 1, dtype=np.int32)
    if id_type == "integer":
        return pa.array(numbers)
    # Padded, so that they sort as their numbers do.
    return pa.array(np.char.add(prefix, np.char.zfill(numbers.astype("U"), len(str(n)))))


def _vectors(matrix: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(matrix).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
