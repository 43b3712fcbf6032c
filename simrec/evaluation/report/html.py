"""HTML by small functions: whatever is no `Html` yet is escaped, so data cannot become markup."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simrec.evaluation.report.style import STYLE

DASH, MINUS = "\u2013", "\u2212"
_VOID = {"meta", "br", "hr", "rect", "circle", "line", "path"}


class Html(str):
    """Text that is markup already."""


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
    return f"{float(value):,.{digits}f}".replace("-", MINUS)


def percent(share: float, digits: int = 0, signed: bool = False) -> str:
    """Write a share as a percentage, never as minus zero.

    Examples
    --------
    >>> percent(0.123), percent(-0.05, 1, signed=True), percent(-0.0001, 1, signed=True)
    ('12%', '−5.0%', '0.0%')
    """
    if not math.isfinite(share):
        return DASH
    rounded = round(100 * share, digits)
    sign = "+" if signed and rounded > 0 else ""
    return f"{sign}{rounded + 0.0:.{digits}f}%".replace("-", MINUS)


def plural(n: int, word: str) -> str:
    """Count things.

    Examples
    --------
    >>> plural(1, "rating"), plural(1200, "item")
    ('1 rating', '1,200 items')
    """
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> Html:
    """Make a table: the first column names the rows. On a phone each row becomes a small list."""
    cells = []
    for row in rows:
        values = [
            tag("td", cell if isinstance(cell, Html) else number(cell), data_label=name)
            for name, cell in zip(head[1:], row[1:], strict=True)
        ]
        cells.append(tag("tr", tag("th", row[0], scope="row"), *values))
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody", *cells),
        class_="stack",
    )


def bars(rows: Sequence[tuple[str, float, str]], caption: str) -> Html:
    """Make a chart of horizontal bars, which is a table too: name, length, the value in words."""
    scale = 100 / (max((value for _, value, _ in rows if math.isfinite(value)), default=0) or 1)
    made = []
    for name, value, words in rows:
        width = scale * max(value, 0) if math.isfinite(value) else 0
        bar = tag("td", tag("span", class_="bar", style=f"width:{width:.1f}%"))
        made.append(tag("tr", tag("th", name, scope="row"), bar, tag("td", words)))
    return tag("table", tag("caption", caption), tag("tbody", *made), class_="bars")


def facts(values: Mapping[str, Any]) -> Html:
    """List names and what they stand for."""
    return tag("dl", *(join([tag("dt", k), tag("dd", v)]) for k, v in values.items()))


def details(summary: str, *content: Any) -> Html:
    """Hide content behind a line that opens it, without any script."""
    return tag("details", tag("summary", summary), *content)


def paragraph(*content: Any, kind: str | None = None) -> Html:
    """Make a paragraph."""
    return tag("p", *content, class_=kind)


def document(title: str, *body: Any) -> str:
    """Make a page of one file that loads nothing and runs nothing, whatever names the data hold."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE)),
    ]
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"
