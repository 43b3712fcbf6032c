"""The best point of a grid, found by walking along one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simrec.model.run.progress import Step, no_step


def climb(
    quality: Callable[[Any], float],
    start: Any,
    grids: Mapping[str, Sequence[Any]],
    step: Step = no_step,
) -> Any:
    """Walk along each parameter of a grid in turn until none gets better; return where it ends."""
    best, reached, moved = start, quality(start), True
    seen = {start: reached}
    while moved:
        moved = False
        for name, grid in grids.items():
            for move in (1, -1):
                place = list(grid).index(getattr(best, name)) + move
                while 0 <= place < len(grid):
                    tried = replace(best, **{name: grid[place]})
                    if tried not in seen:
                        seen[tried] = quality(tried)
                        step()
                    if seen[tried] <= reached:
                        break
                    best, reached, moved = tried, seen[tried], True
                    place += move
    return best


def between(quality: Callable[[float], float], grid: Sequence[float], best: float) -> float:
    """Return the top of the parabola through the best of a grid of powers and its neighbours.

    Neighbours hardly differ in quality: three of them have less noise than the best alone.
    """
    place = grid.index(best)
    if place in (0, len(grid) - 1):
        return best
    less, here, more = (quality(grid[k]) for k in (place - 1, place, place + 1))
    bend = 2 * here - less - more
    move = (more - less) / (2 * bend) if bend > 0 else 0.0
    return float(best * (grid[1] / grid[0]) ** np.clip(move, -0.5, 0.5))
