"""HTML by small functions: whatever is no `Html` yet is escaped, so data cannot become markup."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DASH, MINUS = "\u2013", "\u2212"
_VOID = {"meta", "br", "hr", "rect", "circle", "line", "path"}


class Html(str):
    """Text that is markup already."""


@dataclass(frozen=True)
class Section:
    """One part of the page: an anchor, a heading, its content."""

    key: str
    title: str
    body: Html


def text(value: Any) -> Html:
    """Escape a value, unless it is markup already."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Make an element; in names of attributes ``_`` stands for ``-``, and ``class_`` for class.

    Examples
    --------
    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[Any]) -> Html:
    """Put parts one after the other."""
    return Html("".join(text(part) for part in parts))


def number(value: Any, digits: int = 3) -> str:
    """Write a number as people read it; a dash where there is none.

    Examples
    --------
    >>> number(0.93812), number(1234567), number(float("nan"))
    ('0.938', '1,234,567', '–')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, str):
        return value
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    return f"{float(value):,.{digits}f}"


def percent(share: float, digits: int = 0, signed: bool = False) -> str:
    """Write a share as a percentage.

    Examples
    --------
    >>> percent(0.123), percent(-0.05, 1, signed=True)
    ('12%', '−5.0%')
    """
    if not math.isfinite(share):
        return DASH
    sign = "+" if signed else ""
    return f"{100 * share:{sign}.{digits}f}%".replace("-", MINUS)


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], caption: str) -> Html:
    """Make a table: the first column names the rows, the others are numbers or words."""
    cells = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell if isinstance(cell, Html) else number(cell)) for cell in row[1:]),
        )
        for row in rows
    ]
    made = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody", *cells),
    )
    # A table wider than the screen scrolls by itself; the page never does.
    return tag("div", made, class_="wide", tabindex="0", role="region", aria_label=caption)


def bars(
    rows: Sequence[tuple[str, float, str]],
    caption: str,
    colour: int = 0,
    against: Sequence[float] = (),
) -> Html:
    """Make a chart of horizontal bars, which is a table too: name, length, the value in words.

    A tick on each bar shows what it is to be compared with, where `against` says so.
    """
    values = [abs(v) for v in [*(value for _, value, _ in rows), *against] if math.isfinite(v)]
    scale = 100 / (max(values, default=0) or 1)
    made = []
    for index, (name, value, words) in enumerate(rows):
        width = scale * max(value, 0) if math.isfinite(value) else 0
        marks = [tag("span", class_=f"bar c{colour}", style=f"width:{width:.1f}%")]
        if index < len(against) and math.isfinite(against[index]):
            marks.append(tag("span", class_="tick", style=f"left:{scale * against[index]:.1f}%"))
        track = tag("td", tag("div", *marks, class_="track"))
        made.append(tag("tr", tag("th", name, scope="row"), track, tag("td", words)))
    return tag("table", tag("caption", caption), tag("tbody", *made), class_="bars")


def figure(
    drawing: Html,
    caption: str,
    legend: Html | str = "",
    numbers: Html | str = "",
    beside: bool = False,
) -> Html:
    """Put a drawing together with what it says in words, beside it given room, and numbers."""
    words: list[Any] = [tag("p", caption)]
    if numbers:
        words.append(details("The numbers", numbers))
    drawn = tag("div", *(part for part in (legend, drawing) if part))
    return tag("figure", drawn, tag("figcaption", *words), class_="beside" if beside else None)


def facts(values: Mapping[str, Any]) -> Html:
    """List names and what they stand for."""
    return tag("dl", *(join([tag("dt", k), tag("dd", v)]) for k, v in values.items()))


def details(summary: str, *content: Any) -> Html:
    """Hide content behind a line that opens it, without any script."""
    return tag("details", tag("summary", summary), *content)


def paragraph(*content: Any, kind: str | None = None) -> Html:
    """Make a paragraph."""
    return tag("p", *content, class_=kind)


def not_here(reason: str) -> Html:
    """Say why a section has nothing to show."""
    return paragraph(reason, kind="absent")
