"""Splits into one set of ratings to train on and four to answer: by chance, or by time."""

import contextlib
import datetime
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError, check_seed

logger = logging.getLogger(__name__)

_TASKS = ("warm", "new_items", "new_users", "new_both")


@dataclass(frozen=True)
class ColdStartSplit:
    """One set of ratings to train on and four to answer.

    Made by `cold_start_split`, `time_split` or `split_by_known`.

    Attributes
    ----------
    train, warm : Ratings
        Kept items by kept users.
    new_items, new_users, new_both : Ratings
        Held-out items by kept users, kept items by held-out users, and held-out items by held-out
        users.
    """

    train: Ratings
    warm: Ratings
    new_items: Ratings
    new_users: Ratings
    new_both: Ratings

    def tasks(self) -> dict[str, Ratings]:
        """Give the four sets to answer, by name."""
        return {task: getattr(self, task) for task in _TASKS}


def cold_start_split(
    ratings: "Ratings | TableLike",
    cold_items: float = 0.2,
    cold_users: float = 0.2,
    warm: float = 0.1,
    random_state: int = 0,
) -> ColdStartSplit:
    """Hold out whole items, whole users, and a share of the remaining ratings.

    Anyone can repeat it, in any program that has NumPy's generator::

        rng = numpy.random.default_rng(random_state)
        new_items = rng.choice(items, int(cold_items * len(items)), replace=False)
        new_users = rng.choice(users, int(cold_users * len(users)), replace=False)
        held_out = rng.random(n_ratings) < warm

    where `items` and `users` are the distinct ids in ascending order, and `held_out` goes by the
    order of the ratings' rows and counts where neither item nor user is held out.

    Parameters
    ----------
    ratings : Ratings or table-like
        All ratings.
    cold_items, cold_users : float
        Share of the items and of the users to hold out, at least 0 and below 1.
    warm : float
        Share of the remaining ratings to hold out, at least 0 and below 1.
    random_state : int
        Seed.

    Returns
    -------
    ColdStartSplit
        Five sets that together are all ratings, each in the order of the rows. A set to answer
        may be empty.

    Examples
    --------
    >>> from simrec import make_synthetic
    >>> data = make_synthetic(n_users=200, n_items=100, n_ratings=4000)
    >>> split = cold_start_split(data.ratings, random_state=0)
    >>> split.train
    Ratings(2,314 of 160 users on 80 items)
    >>> split.new_both
    Ratings(155 of 35 users on 20 items)
    """
    for name, share in (("cold_items", cold_items), ("cold_users", cold_users), ("warm", warm)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be a share, at least 0 and below 1; got {share!r}.")
    ratings = Ratings.from_table(ratings)
    rng = np.random.default_rng(check_seed(random_state))
    item_is_new = _choose(rng, ratings.n_items, cold_items)[ratings.item_rows]
    user_is_new = _choose(rng, ratings.n_users, cold_users)[ratings.user_rows]
    held_out = rng.random(len(ratings)) < warm
    known = ~item_is_new & ~user_is_new
    if not (known & ~held_out).any():
        raise InputError(
            f"no rating is left to train on: of {len(ratings):,} ratings all belong to a held-out "
            "item or user, or are held out themselves. Hold out smaller shares, or give more data."
        )
    train = ratings.select(known & ~held_out)
    split = ColdStartSplit(train, *_parts(ratings, item_is_new, user_is_new, held_out))
    _log_sizes(split)
    return split


@dataclass(frozen=True)
class TimeSplit(ColdStartSplit):
    """What was known at a moment, and what came from then on. Made by `time_split`.

    Attributes
    ----------
    at : int, float or numpy.datetime64
        The moment, in the unit of the ratings' timestamps: the first time that is not trained on.
    """

    at: "int | float | np.datetime64"


Moment = str | int | float | datetime.date | np.datetime64


def time_split(
    ratings: "Ratings | TableLike", *, at: Moment | None = None, test: float = 0.2
) -> TimeSplit:
    """Train on what was known at a moment, answer for what came from then on.

    Items and users whose first rating came after the moment are the new ones.

    Parameters
    ----------
    ratings : Ratings or table-like
        All ratings, with a column `timestamp`: seconds since 1970, dates or datetimes.
    at : str, date, datetime, numpy.datetime64 or number, optional
        The moment, in UTC where it names no zone: a date such as "2014-06-01", a datetime, or
        seconds since 1970. Ratings of exactly this moment are answered, not trained on.
    test : float
        Without `at`: the share of the ratings, the latest ones, to answer. Ratings of the same
        moment stay together, so the share can be larger.

    Returns
    -------
    TimeSplit
        Five sets that together are all ratings. A set to answer may be empty.

    Examples
    --------
    >>> import pyarrow as pa
    >>> days = ["2024-01-01", "2024-01-02", "2024-02-01"]
    >>> table = {"user_id": [1, 2, 2], "item_id": [1, 1, 3], "rating": [4.0, 3.0, 5.0]}
    >>> table["timestamp"] = pa.array(days).cast(pa.timestamp("s"))
    >>> split = time_split(pa.table(table), at="2024-01-15")
    >>> len(split.train), len(split.new_items)
    (2, 1)
    """
    ratings = Ratings.from_table(ratings)
    times = ratings.timestamps
    if times is None:
        raise InputError(
            "the ratings have no timestamps: a split by time needs a column 'timestamp' (seconds "
            "since 1970, dates or datetimes); name another one with timestamp=..."
        )
    if at is None:
        if not 0 < test < 1:
            raise InputError(f"test must be a share, above 0 and below 1; got {test!r}.")
        moment = np.sort(times)[int((1 - test) * len(times))]
    else:
        moment = as_moment(at, times.dtype)
    early = times < moment
    if early.all() or not early.any():
        missing = "to answer" if early.all() else "to train on"
        raise InputError(
            f"no rating is left {missing}: the ratings go from {show_moment(times.min())} to "
            f"{show_moment(times.max())}, and the split is at {show_moment(moment)}. Give a moment "
            "between the two, or another share of test ratings."
        )
    parts = split_by_known(ratings.select(early), ratings.select(~early))
    logger.info("split at %s", show_moment(moment))
    _log_sizes(parts)
    return TimeSplit(parts.train, **parts.tasks(), at=moment)


def split_by_known(train: Ratings, test: Ratings) -> ColdStartSplit:
    """Divide test ratings by whether `train` has their user and their item."""
    item_is_new = ~train.items.contains(test.items.ids)[test.item_rows]
    user_is_new = ~train.users.contains(test.users.ids)[test.user_rows]
    return ColdStartSplit(train, *_parts(test, item_is_new, user_is_new))


def _parts(
    ratings: Ratings, item_is_new: np.ndarray, user_is_new: np.ndarray, held_out: Any = True
) -> list[Ratings]:
    """Divide ratings into those of the four tasks; of the warm ones, those that are held out."""
    return [
        ratings.select(~item_is_new & ~user_is_new & held_out),
        ratings.select(item_is_new & ~user_is_new),
        ratings.select(~item_is_new & user_is_new),
        ratings.select(item_is_new & user_is_new),
    ]


def as_moment(at: Moment, dtype: np.dtype) -> Any:
    """Convert a moment to the unit of timestamps of type `dtype`."""
    moment: Any = at
    if isinstance(moment, str):
        with contextlib.suppress(ValueError):
            moment = float(moment)
    if isinstance(moment, int | float | np.integer | np.floating):
        return np.datetime64(round(float(moment) * 1e6), "us") if dtype.kind == "M" else moment
    try:
        if isinstance(moment, str):
            moment = datetime.datetime.fromisoformat(moment)
        if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        moment = np.datetime64(moment, "us")
    except (TypeError, ValueError):
        raise InputError(
            f"at must be a date such as '2014-06-01', a datetime or seconds since 1970; got {at!r}."
        ) from None
    return moment if dtype.kind == "M" else float(moment.astype(np.int64) / 1e6)


def days(span: np.ndarray) -> np.ndarray:
    """Convert differences of timestamps (seconds, or timedelta64) to days."""
    span = np.asarray(span)
    return span / np.timedelta64(1, "D") if span.dtype.kind == "m" else span / 86400.0


def show_moment(moment: Any) -> str:
    """Write a timestamp as a date, with the time of day where there is one."""
    seconds: Any = moment if isinstance(moment, np.datetime64) else round(float(moment))
    text = str(np.datetime64(seconds, "s"))
    return text.removesuffix("T00:00:00").replace("T", " ")


def _log_sizes(split: ColdStartSplit) -> None:
    sizes = {"train": len(split.train), **{task: len(r) for task, r in split.tasks().items()}}
    shown = ", ".join(f"{task} {size}" for task, size in sizes.items())
    logger.info("split of %d ratings: %s", sum(sizes.values()), shown)


def _choose(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    chosen = np.zeros(n, dtype=bool)
    # Choosing among row numbers is choosing among the sorted ids: the generator looks at neither.
    chosen[rng.choice(n, int(share * n), replace=False)] = True
    return chosen
