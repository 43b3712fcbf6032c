"""Splits that hold out whole items and whole users, for the four tasks of cold start."""

import logging
from dataclasses import dataclass

import numpy as np

from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike
from simrec.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColdStartSplit:
    """One set of ratings to train on and four to answer. Made by `cold_start_split`.

    Attributes
    ----------
    train : Ratings
        Kept items by kept users.
    warm : Ratings
        A share of the ratings of kept items by kept users.
    new_items : Ratings
        Held-out items by kept users.
    new_users : Ratings
        Kept items by held-out users.
    new_both : Ratings
        Held-out items by held-out users.
    """

    train: Ratings
    warm: Ratings
    new_items: Ratings
    new_users: Ratings
    new_both: Ratings

    def tasks(self) -> dict[str, Ratings]:
        """Give the four sets to answer, by name."""
        return {
            "warm": self.warm,
            "new_items": self.new_items,
            "new_users": self.new_users,
            "new_both": self.new_both,
        }


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
    ratings : Ratings, pandas.DataFrame, pyarrow.Table, str or path
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

    Raises
    ------
    InputError
        If a share is out of range, or nothing would be left to train on.
    """
    for name, share in (("cold_items", cold_items), ("cold_users", cold_users), ("warm", warm)):
        if not 0 <= share < 1:
            raise InputError(f"{name} must be a share, at least 0 and below 1; got {share!r}.")
    ratings = Ratings.from_table(ratings)
    rng = np.random.default_rng(random_state)
    item_is_new = _choose(rng, ratings.n_items, cold_items)[ratings.item_rows]
    user_is_new = _choose(rng, ratings.n_users, cold_users)[ratings.user_rows]
    held_out = rng.random(len(ratings)) < warm
    known = ~item_is_new & ~user_is_new
    if not (known & ~held_out).any():
        raise InputError(
            f"no rating is left to train on: of {len(ratings):,} ratings all belong to a held-out "
            "item or user, or are held out themselves. Hold out smaller shares, or give more data."
        )
    split = ColdStartSplit(
        train=ratings.select(known & ~held_out),
        warm=ratings.select(known & held_out),
        new_items=ratings.select(item_is_new & ~user_is_new),
        new_users=ratings.select(~item_is_new & user_is_new),
        new_both=ratings.select(item_is_new & user_is_new),
    )
    sizes = {"train": len(split.train), **{task: len(r) for task, r in split.tasks().items()}}
    logger.info("split of %d ratings: %s", len(ratings), sizes)
    return split


def _choose(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    chosen = np.zeros(n, dtype=bool)
    # Choosing among row numbers is choosing among the sorted ids: the generator looks at neither.
    chosen[rng.choice(n, int(share * n), replace=False)] = True
    return chosen
