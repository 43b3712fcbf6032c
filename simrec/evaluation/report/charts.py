"""Line charts as inline SVG: small enough for a phone, with real text and a sentence for readers.

Sizes are in pixels of a phone's screen. Lines differ in colour and dashes; the page's style has
colours for light and dark screens.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simrec.evaluation.report.html import Html, join, number, tag

WIDTH, HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 24, 40
_DASHES = (None, "7 3", "2 3", "9 3 2 3", "4 2", "1 2")


def line_chart(
    x_labels: Sequence[str],
    lines: Mapping[str, Sequence[float]],
    x_title: str,
    y_title: str,
    says: str,
) -> Html:
    """Draw lines, by name, over places that are evenly spaced, with a legend if there are several.

    Labels of places that would run into each other are left out.
    """
    values = [v for line in lines.values() for v in line if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.12 or abs(high) * 0.05 or 0.5
    low, high = low - room, high + room
    places = np.linspace(_LEFT + 8, WIDTH - _RIGHT - 8, max(len(x_labels), 2))

    def up(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [_word(2, 12, y_title, "start")]
    ticks, digits = _ticks(low, high)
    for value in ticks:
        y = f"{up(value):.1f}"
        parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(_word(_LEFT - 5, up(value) + 4, f"{value:.{digits}f}", "end"))
    end = -1e9
    for x, label in zip(places, x_labels, strict=False):
        half = 3.6 * len(label)
        x = min(x, WIDTH - half)  # the last one stays inside
        if x - half > end + 6:
            parts.append(_word(x, HEIGHT - _BOTTOM + 16, label))
            end = x + half
    parts.append(_word((_LEFT + WIDTH) / 2, HEIGHT - 5, x_title))
    for index, (name, line) in enumerate(lines.items()):
        found = [(x, v, label) for x, v, label in zip(places, line, x_labels, strict=False)]
        points = [(x, up(v), v, label) for x, v, label in found if math.isfinite(v)]
        way = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, *_ in points)
        if len(points) > 1:
            dashes = _DASHES[index % 6]
            parts.append(tag("path", d=way, class_=f"line s{index}", stroke_dasharray=dashes))
        r = 4 if len(points) < 15 else 2.5
        for x, level, value, label in points:
            tip = tag("title", f"{name}, {label}: {number(float(value), digits + 1)}")
            at = {"cx": f"{x:.1f}", "cy": f"{level:.1f}", "r": r}
            parts.append(tag("circle", tip, class_=f"mark f{index}", **at))
    box = f"0 0 {WIDTH} {HEIGHT}"
    drawing = tag("svg", join(parts), viewBox=box, role="img", aria_label=says, class_="chart")
    keys = [tag("span", _key(index), name) for index, name in enumerate(lines)]
    return tag("div", tag("div", *keys, class_="legend") if len(keys) > 1 else "", drawing)


def _key(index: int) -> Html:
    line = tag("path", d="M0,7H26", class_=f"line s{index}", stroke_dasharray=_DASHES[index % 6])
    return tag("svg", line, width=26, height=14, aria_hidden="true")


def _word(x: float, y: float, words: str, anchor: str = "middle") -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _ticks(low: float, high: float) -> tuple[list[float], int]:
    """Give some round numbers between two, and the digits that tell them apart."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough)
    first = math.ceil(low / step - 1e-9)
    found = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
    return found, max(0, -math.floor(math.log10(step) + 1e-9) + (step == 2.5 * size))
