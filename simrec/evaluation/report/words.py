"""Numbers and names as people read them, and line charts: what the templates show.

Charts are in pixels of a phone's screen. Lines differ in colour and dashes; the page's style has
colours for light and dark screens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simrec.evaluation.tasks import TASK_NAMES

DASH, MINUS = "\u2013", "\u2212"
WIDTH, HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 24, 40
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")


def number(value: Any, digits: int = 3, signed: bool = False) -> str:
    """Write a number as people read it; a dash where there is none, text as it is."""
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return DASH
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    sign = "+" if signed else ""
    return f"{round(float(value), digits) + 0.0:{sign},.{digits}f}".replace("-", MINUS)


def percent(share: float, digits: int = 0, signed: bool = False) -> str:
    """Write a share as a percentage, never as minus zero."""
    if not math.isfinite(share):
        return DASH
    rounded = round(100 * share, digits)
    return f"{number(float(rounded), digits, signed and rounded > 0)}%"


def rise(share: float) -> str:
    """Say by how much a figure rises, in words that can be read where it is many times as large."""
    return f"by {percent(share, 1)}" if share < 1 else f"to {1 + share:.1f} times as much"


def plural(n: int, word: str) -> str:
    """Count things."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def title(name: str) -> str:
    """Name a task, or anything else, at the start of a line."""
    name = TASK_NAMES.get(name, name)
    return name[0].upper() + name[1:]


def cut(name: str, most: int = 48) -> str:
    """Shorten a name where it is long."""
    return name if len(name) <= most else name[: most - 2].rstrip() + "…"


def line_chart(
    x_labels: Sequence[str],
    lines: Mapping[str, Sequence[float]],
    x_title: str,
    y_title: str,
    alt: str,
) -> dict[str, Any]:
    """Place lines, by name, over places that are evenly spaced, for the macro `chart`.

    Labels of places that would run into each other are left out.
    """
    values = [v for line in lines.values() for v in line if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.12 or abs(high) * 0.05 or 0.5
    low, high = low - room, high + room
    places = np.linspace(_LEFT + 8, WIDTH - _RIGHT - 8, max(len(x_labels), 2))

    def up(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    ticks, digits = _ticks(low, high)
    words = [(_LEFT - 5.0, up(v) + 4, f"{v:.{digits}f}", "end") for v in ticks]
    words += [(2, 12, y_title, "start"), ((_LEFT + WIDTH) / 2, HEIGHT - 5, x_title, "middle")]
    end = -1e9
    for x, label in zip(places, x_labels, strict=False):
        half = 3.6 * len(label)
        x = min(x, WIDTH - half)  # the last one stays inside
        if x - half > end + 6:
            words.append((x, HEIGHT - _BOTTOM + 16, label, "middle"))
            end = x + half
    drawn = []
    for index, (name, line) in enumerate(lines.items()):
        marks = [
            (x, up(v), f"{name}, {label}: {number(float(v), digits + 1)}")
            for x, v, label in zip(places, line, x_labels, strict=False)
            if math.isfinite(v)
        ]
        way = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in marks) if len(marks) > 1 else ""
        drawn.append((name, _DASHES[index % 6], way, marks))
    grid = {"left": _LEFT, "right": WIDTH - _RIGHT, "heights": [up(v) for v in ticks]}
    return {"size": (WIDTH, HEIGHT), "alt": alt, "grid": grid, "words": words, "lines": drawn}


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Give some round numbers between two, and the digits that tell them apart."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough)
    first = math.ceil(low / step - 1e-9)
    found = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
    return found, max(0, -math.floor(math.log10(step) + 1e-9) + (step == 2.5 * size))
