"""Inline SVG line charts: small enough for a phone, with real text and a sentence for readers.

Widths are in pixels of a phone's screen. Colours are classes that the page's style sets for light
and dark screens.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simrec.evaluation.report.html import Html, join, number, tag

WIDTH, HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 24, 40
_CORNERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),  # a circle
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    ((0, -1.3), (1.25, 1), (-1.25, 1)),
)


def line_chart(
    x_labels: Sequence[str],
    lines: Mapping[str, Sequence[float]],
    x_title: str,
    y_title: str,
    says: str,
    *,
    x: Sequence[float] | None = None,
    ideal: Sequence[float] = (),
) -> Html:
    """Draw lines, by name, over places that are evenly spaced, or at `x` (0 to 1).

    `ideal` is a dashed line without a name. Labels of places that would run into each other are
    left out. The legend is part of what is returned.
    """
    places = np.asarray(x) if x is not None else np.linspace(0, 1, max(len(x_labels), 2))
    values = [v for line in [*lines.values(), ideal] for v in line if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.12 or abs(high) * 0.05 or 0.5
    low, high = low - room, high + room

    def across(share: float) -> float:
        return _LEFT + 8 + share * (WIDTH - _LEFT - _RIGHT - 16)

    def up(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [_word(2, 12, y_title, kind="axis")]
    ticks, digits = _ticks(low, high)
    for value in ticks:
        y = f"{up(value):.1f}"
        parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(_word(_LEFT - 5, float(y) + 4, f"{value:.{digits}f}", anchor="end"))
    end = -1e9
    for place, label in zip(places, x_labels, strict=False):
        half = 3.6 * len(label)
        if across(place) - half > end + 6:
            parts.append(_word(across(place), HEIGHT - _BOTTOM + 16, label, anchor="middle"))
            end = across(place) + half
    parts.append(_word((_LEFT + WIDTH) / 2, HEIGHT - 5, x_title, anchor="middle", kind="axis"))
    for index, (name, line) in enumerate(lines.items()):
        points = [
            (across(place), up(value), f"{name}, {label}: {number(float(value), digits + 1)}")
            for place, value, label in zip(places, line, x_labels, strict=False)
            if math.isfinite(value)
        ]
        if len(points) > 1:
            way = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
            parts.append(tag("path", d=way, class_=f"line s{index}"))
        parts += [_mark(index, a, b, tip, 4 if len(points) < 15 else 2.5) for a, b, tip in points]
    if len(ideal):
        ends = [f"{across(a):.1f},{up(b):.1f}" for a, b in zip(places, ideal, strict=True)]
        parts.append(tag("path", d="M" + "L".join(ends), class_="line ideal"))
    box = f"0 0 {WIDTH} {HEIGHT}"
    drawing = tag("svg", join(parts), viewBox=box, role="img", aria_label=says, class_="chart")
    return tag("div", _legend(list(lines)) if len(lines) > 1 else "", drawing)


def _legend(names: Sequence[str]) -> Html:
    keys = [
        tag("svg", _mark(i, 7, 7, None, 5), width=14, height=14, aria_hidden="true")
        for i in range(len(names))
    ]
    spans = [tag("span", key, name) for key, name in zip(keys, names, strict=True)]
    return tag("div", *spans, class_="legend")


def _word(x: float, y: float, words: str, anchor: str = "start", kind: str | None = None) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)


def _mark(index: int, x: float, y: float, tip: str | None, r: float) -> Html:
    inner = (tag("title", tip),) if tip else ()
    corners, kind = _CORNERS[index % 4], f"mark f{index}"
    if not corners:
        return tag("circle", *inner, cx=f"{x:.1f}", cy=f"{y:.1f}", r=r, class_=kind)
    around = [f"{x + 0.9 * r * a:.1f},{y + 0.9 * r * b:.1f}" for a, b in corners]
    return tag("path", *inner, d="M" + "L".join(around) + "Z", class_=kind)


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Give some round numbers between two, and the digits that tell them apart."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough)
    first = math.ceil(low / step - 1e-9)
    found = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
    return found, max(0, -math.floor(math.log10(step) + 1e-9))
