"""Inline SVG drawings: small enough for a phone, with real text and a sentence for screen readers.

Widths are in pixels of a phone's screen; on larger ones drawings grow a little. Colours are
classes, so that the page's style sets them for light and dark screens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simrec.evaluation.report.html import Html, join, number, tag

WIDTH = 360
# Room for the numbers at the left and the labels below and above.
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 24, 40
_MARKS = ("circle", "square", "diamond", "triangle")
_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "triangle": ((0, -1.3), (1.25, 1), (-1.25, 1)),
}


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, and a value for each place on the x axis."""

    name: str
    values: Sequence[float]


def line_chart(
    x_labels: Sequence[str],
    lines: Sequence[Line],
    x_title: str,
    y_title: str,
    says: str,
    *,
    x: Sequence[float] | None = None,
    y_range: tuple[float, float] | None = None,
    ideal: Sequence[float] = (),
    digits: int = 2,
    height: int = 250,
) -> Html:
    """Draw lines over places that are evenly spaced, or at `x` (0 to 1); `ideal` is dashed."""
    places = np.asarray(x) if x is not None else np.linspace(0, 1, max(len(x_labels), 2))
    values = np.array([v for line in lines for v in line.values if math.isfinite(v)])
    low, high = y_range or _padded(values)
    plot = _Plot(low, high, height)
    parts = plot.frame(y_title, x_title, digits)
    for place, label in zip(places, x_labels, strict=False):
        parts.append(_word(plot.x(place), height - _BOTTOM + 16, label, anchor="middle"))
    for index, line in enumerate(lines):
        points = [
            (plot.x(place), plot.y(value), value, label)
            for place, value, label in zip(places, line.values, x_labels, strict=False)
            if math.isfinite(value)
        ]
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b, _, _ in points)
        if len(points) > 1:
            parts.append(tag("path", d=path, class_=f"line s{index}"))
        for a, b, value, label in points:
            tip = f"{line.name}, {label}: {number(float(value), digits + 1)}"
            parts.append(_mark(_MARKS[index % 4], a, b, f"mark f{index}", tip))
    if len(ideal):
        way = [f"{plot.x(a):.1f},{plot.y(b):.1f}" for a, b in zip(places, ideal, strict=True)]
        parts.append(tag("path", d="M" + "L".join(way), class_="line ideal"))
    return _drawing(parts, height, says)


def histogram(labels: Sequence[str], counts: Sequence[int], x_title: str, says: str) -> Html:
    """Draw upright bars."""
    height = 210
    plot = _Plot(0, max(counts, default=1) * 1.05 or 1, height)
    parts = plot.frame("ratings", x_title, 0)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(counts), 1)
    every = math.ceil(len(labels) / 10)
    for index, (label, count) in enumerate(zip(labels, counts, strict=True)):
        left, top = _LEFT + index * step, plot.y(count)
        size = {"width": f"{step * 0.8:.1f}", "height": f"{height - _BOTTOM - top:.1f}"}
        tip = tag("title", f"{label}: {count:,} ratings")
        x, y = f"{left + step * 0.1:.1f}", f"{top:.1f}"
        parts.append(tag("rect", tip, x=x, y=y, class_="mark f0", **size))
        if index % every == 0:
            middle = left + step / 2
            parts.append(_word(middle, height - _BOTTOM + 16, label, anchor="middle"))
    return _drawing(parts, height, says)


def scatter(
    points: np.ndarray,
    colours: np.ndarray,
    tips: Sequence[str],
    named: Sequence[int],
    names: Sequence[str],
    says: str,
) -> Html:
    """Draw a map of points, names beside those in `named` as long as none overlap.

    Both directions have the same scale. Wide screens get more names, in smaller letters.
    """
    edge = 8
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1e-9)
    height = int(np.clip(WIDTH * span[1] / span[0], 220, 420))
    inside = np.array([WIDTH - 2 * edge, height - 2 * edge])
    at = (points - (low + high) / 2) * (inside / span).min() + np.array([WIDTH, height]) / 2
    at[:, 1] = height - at[:, 1]
    wanted = [(index, names[index]) for index in named]
    few = _labels(at, wanted[: len(wanted) // 3], height, 10.5)
    many = _labels(at, wanted, height, 6.5)
    big, small = {*few, *many}, 1.9 if len(points) < 600 else 1.4
    parts = []
    # Grey ones first, so that they do not hide the coloured.
    for index in np.argsort(-colours, kind="stable"):
        a, b = at[index]
        size = 2.6 if index in big else small
        circle = {"cx": f"{a:.1f}", "cy": f"{b:.1f}", "r": size}
        tip = tag("title", tips[index])
        parts.append(tag("circle", tip, class_=f"dot f{colours[index]}", **circle))
    parts.append(tag("g", *few.values(), class_="few"))
    parts.append(tag("g", *many.values(), class_="many"))
    return _drawing(parts, height, says)


def legend(names: Sequence[str], dots: Sequence[int] | None = None) -> Html:
    """Say which colour and mark is which; with `dots`, which dot has which of these colours."""
    parts = []
    for index, name in enumerate(names):
        form, colour = (_MARKS[index % 4], index) if dots is None else ("circle", dots[index])
        shape = _mark(form, 7, 7, f"mark f{colour}", None, 5)
        key = tag("svg", shape, width=14, height=14, aria_hidden="true")
        parts.append(tag("span", key, name))
    return tag("div", *parts, class_="legend")


class _Plot:
    """Where values are on the drawing."""

    def __init__(self, low: float, high: float, height: int) -> None:
        self.low, self.high, self.height = low, high if high > low else low + 1, height

    def x(self, share: float) -> float:
        return _LEFT + 8 + share * (WIDTH - _LEFT - _RIGHT - 16)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)

    def frame(self, y_title: str, x_title: str, digits: int) -> list[Html]:
        parts = [_word(2, 12, y_title, kind="axis")]
        for value in _ticks(self.low, self.high):
            y = f"{self.y(value):.1f}"
            parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(_word(_LEFT - 5, float(y) + 4, _short(value, digits), anchor="end"))
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(_word(middle, self.height - 5, x_title, anchor="middle", kind="axis"))
        return parts


def _drawing(parts: Sequence[Html], height: int, says: str) -> Html:
    box = f"0 0 {WIDTH} {height}"
    return tag("svg", join(parts), viewBox=box, role="img", aria_label=says, class_="chart")


def _word(x: float, y: float, words: str, anchor: str = "start", kind: str | None = None) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)


def _mark(shape: str, x: float, y: float, kind: str, tip: str | None, r: float = 4) -> Html:
    inner = (tag("title", tip),) if tip else ()
    if shape == "circle":
        return tag("circle", *inner, cx=f"{x:.1f}", cy=f"{y:.1f}", r=r, class_=kind)
    size = r * 0.9
    around = [f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in _CORNERS[shape]]
    path = "M" + "L".join(around) + "Z"
    return tag("path", *inner, d=path, class_=kind)


def _labels(
    at: np.ndarray, wanted: Sequence[tuple[int, str]], height: int, size: float
) -> dict[int, Html]:
    """Put names beside points where there is room, by index; the first ones choose first."""
    taken: list[tuple[float, float, float, float]] = []
    found = {}
    for index, name in wanted:
        short = name if len(name) <= 24 else name[:22].rstrip() + "…"
        a, b = at[index]
        width = 0.58 * size * len(short) + 2
        places = (
            (a + 4, b + size / 3),
            (a - 4 - width, b + size / 3),
            (a - width / 2, b - size / 2),
            (a - width / 2, b + size + 2),
        )
        for left, y in places:
            box = (left, y - size, left + width, y + size / 3)
            free = all(
                box[2] < o[0] or box[0] > o[2] or box[3] < o[1] or box[1] > o[3] for o in taken
            )
            if free and box[0] >= 0 and box[2] <= WIDTH and box[1] >= 0 and box[3] <= height:
                taken.append(box)
                found[index] = _word(left, y, short, kind="name")
                break
    return found


def _padded(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = (high - low) * 0.12 or abs(high) * 0.05 or 0.5
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Give some round numbers between two."""
    rough = (high - low) / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float, digits: int) -> str:
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit and digits == 0:
            return f"{value / limit:g}{letter}"
    return f"{value:.{digits}f}"
