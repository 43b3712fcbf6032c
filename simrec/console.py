"""Results as text for people."""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# Control characters, lone surrogates, and marks that change the direction or the line of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MOST_DECIMALS = 4
# Characters of a cell of a table.
_WIDEST = 60
# Lists of records that a result may hold.
_TABLES = ("features", "figures", "policies", "list")
# Columns of these that are shown, all where none are named.
_COLUMNS = {"figures": ("task", "metric", "value", "other_value", "low", "high", "result")}
# Baselines of lists: of the figures they have only this one is shown.
_LIST_BASELINES, _OF_LISTS = ("_popular", "_ease", "_content"), "ndcg"
# Records that are for machines and pictures.
_HIDDEN = ("tasks", "periods", "job", "workers")


class Id(int):
    """A number that names something: written without separators of thousands."""

    @classmethod
    def of(cls, value: Any) -> Any:
        """Mark a whole number; text stays as it is."""
        return cls(value) if isinstance(value, int) else value


def plain(text: str) -> str:
    r"""Write control characters as escapes, so that names from data cannot steer a terminal.

    >>> print(plain("\x1b[2Jgone"))
    \x1b[2Jgone
    """
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


class _PlainFormatter(logging.Formatter):
    """Write the message of a log record, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def log_to_terminal(level: int) -> None:
    """Show what SimRec logs from a level on."""
    logging.basicConfig(stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PlainFormatter())
    logging.getLogger("simrec").setLevel(level)


@contextmanager
def lines_shown(logger: logging.Logger) -> Iterator[None]:
    """Let what a logger says be seen, on stderr if nobody has configured logging."""
    level, handler = logger.level, logging.StreamHandler()
    configured = logger.hasHandlers()
    if not configured:
        logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not configured:
            logger.removeHandler(handler)


def number(value: Any, decimals: int = _MOST_DECIMALS) -> str:
    """Write a value as people read it.

    >>> number(0.93812), number(1234567), number(None), number(12.0, 1)
    ('0.9381', '1,234,567', '-', '12.0')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(int(value)) if isinstance(value, Id) else f"{value:,}"
    if isinstance(value, float):
        return f"{value:.{decimals}f}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(number, value))
    return plain(" ".join(str(value).split()))


def table(records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Align records in columns: text to the left, numbers to the right."""
    if not records:
        return "(no rows)"
    names = list(columns or records[0])
    shown = []
    for name in names:
        values = [Id.of(record.get(name)) for record in records]
        decimals = _decimals([value for value in values if isinstance(value, float)])
        cells = [plain(name), *(number(value, decimals) for value in values)]
        cells = [c if len(c) <= _WIDEST else f"{c[: _WIDEST - 3].rstrip()}..." for c in cells]
        width = max(map(len, cells))
        cells.insert(1, "-" * width)
        right = all(isinstance(value, int | float) or value is None for value in values)
        shown.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*shown, strict=True))


def facts(values: Mapping[str, Any]) -> str:
    """Align names and values, one a line."""
    shown = {plain(name.replace("_", " ")): value for name, value in values.items()}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {_fact(value)}" for name, value in shown.items())


def result(values: Mapping[str, Any]) -> str:
    """Show the result of a job: its tables, if any, and what else it says."""
    parts = [four_tasks(values["tasks"])] if values.get("tasks") else []
    for name in _TABLES:
        if values.get(name) or (name in values and name != "features"):
            parts.append(table(values[name], _COLUMNS.get(name)))
    rest = {name: v for name, v in values.items() if name not in (*_TABLES, *_HIDDEN)}
    parts.append(facts(rest))
    return "\n\n".join(part for part in parts if part)


def four_tasks(records: Sequence[Mapping[str, Any]]) -> str:
    """Show a record for each task as a column, a figure a line, with its deviation if known."""
    lines = []
    for name in records[0]:
        beside = name.endswith(_LIST_BASELINES) and not name.startswith(_OF_LISTS)
        nothing = all(record[name] is None for record in records)
        if name == "task" or name.endswith("_std") or beside or nothing:
            continue
        line: dict[str, Any] = {"": name}
        for record in records:
            value, std = record[name], record.get(f"{name}_std")
            whole = isinstance(value, float) and value.is_integer() and abs(value) >= 2
            shown = number(int(value) if whole else value)
            line[record["task"]] = f"{shown} ± {std:.4f}" if std else shown
        lines.append(line)
    return table(lines)


def _decimals(values: Sequence[float]) -> int:
    """Return the fewest decimals that show these numbers as the most decimals would."""
    for decimals in range(1, _MOST_DECIMALS):
        if all(abs(value - round(value, decimals)) < 0.5 * 10**-_MOST_DECIMALS for value in values):
            return decimals
    return _MOST_DECIMALS


def _fact(value: Any) -> str:
    if value and isinstance(value, list | tuple) and all(isinstance(each, int) for each in value):
        return number(value)
    if isinstance(value, list | tuple):
        return "\n    ".join(["", *(plain(str(each)) for each in value)]) if value else "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"
    return number(value)
