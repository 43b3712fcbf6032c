"""Seeds: one generator derived from each."""

from typing import Any

import numpy as np

from simrec.errors import InputError, is_whole


def check_seed(random_state: Any, name: str = "random_state") -> int:
    """Return a seed, a whole number from 0 on."""
    if not is_whole(random_state):
        raise InputError(f"{name}: expected a whole number from 0 on, got {random_state!r}.")
    return int(random_state)


def generator(random_state: Any) -> np.random.Generator:
    """Return the generator of a seed."""
    return np.random.default_rng(check_seed(random_state))
