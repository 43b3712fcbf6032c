"""A training that has lost a worker starts again from its last checkpoint."""

import logging
from collections.abc import Callable
from typing import Any

from simrec.errors import InputError
from simrec.files import is_full_disk

logger = logging.getLogger(__name__)

# How often a training that has lost a worker goes on from its checkpoint.
_RESTARTS = 3


class WorkerLost(RuntimeError):
    """A worker of a training has died or failed."""


def is_final(error: BaseException) -> bool:
    """Tell whether starting again would end in the same way: bad input, or a full disk."""
    return isinstance(error, InputError) or is_full_disk(error)


def with_restarts(attempt: Callable[[bool], dict[str, Any]], resume: bool) -> dict[str, Any]:
    """Call ``attempt(resume)``, and again from the last checkpoint where a worker is lost."""
    for number in range(_RESTARTS + 1):
        try:
            return attempt(resume or number > 0)
        except WorkerLost as error:
            if number == _RESTARTS:
                raise RuntimeError(
                    f"the training has failed {_RESTARTS + 1} times, at last with: {error}. "
                    "--resume goes on from its last checkpoint."
                ) from error
            logger.warning(
                "the training has lost a worker; going on from its last checkpoint (%s)", error
            )
    raise AssertionError("not reached")


def shortened(error: BaseException) -> str:
    """Return the first line of an error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
