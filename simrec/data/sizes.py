"""Sizes of memory, as people write them."""

import re

from simrec.errors import InputError


def parse_size(size: str | int) -> int:
    """Read a number of bytes, such as ``2GB`` or ``500 MB``.

    Examples
    --------
    >>> parse_size("2GB")
    2000000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(size), re.I)
    if match is None:
        raise InputError(f"memory: expected a size such as 2GB or 500MB, got {size!r}")
    number, prefix, binary = match.groups()
    power = " KMGT".index(prefix.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)
