"""HTML by small functions: whatever is no `Html` yet is escaped, so data cannot become markup."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from simrec.evaluation.report.style import STYLE

DASH, MINUS = "\u2013", "\u2212"
_VOID = {"meta", "circle", "line", "path"}


class Html(str):
    """Text that is markup already."""


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
    end = "/>" if name in _VOID and not children else f">{join(children)}</{name}>"
    return Html(f"<{name}{written}{end}")


def join(parts: Iterable[Any]) -> Html:
    """Put parts one after the other."""
    return Html("".join(p if isinstance(p, Html) else html.escape(str(p)) for p in parts))


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


def small(*content: Any) -> Html:
    """Make a paragraph in small letters."""
    return tag("p", *content, class_="small")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> Html:
    """Make a table: the first column names the rows. On a phone each row becomes a small list."""
    made = []
    for first, *cells in rows:
        shown = [cell if isinstance(cell, Html) else number(cell) for cell in cells]
        labelled = zip(head[1:], shown, strict=True)
        values = [tag("td", cell, data_label=name) for name, cell in labelled]
        made.append(tag("tr", tag("th", first, scope="row"), *values))
    names = [tag("th", name, scope="col") for name in head]
    body = (tag("thead", tag("tr", *names)), tag("tbody", *made))
    return tag("table", tag("caption", caption), *body, class_="stack")


def bars(rows: Sequence[tuple[str, float, str]], caption: str, most: float = 0) -> Html:
    """Make a chart of horizontal bars, which is a table too: name, length, the value in words.

    `most` is what the full width stands for, the longest bar at least.
    """
    most = max(most, *(value for _, value, _ in rows)) or 1
    made = []
    for name, value, words in rows:
        bar = tag("span", class_="bar", style=f"width:{100 * max(value, 0) / most:.1f}%")
        made.append(tag("tr", tag("th", name, scope="row"), tag("td", bar), tag("td", words)))
    return tag("table", tag("caption", caption), tag("tbody", *made), class_="bars")


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
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"
