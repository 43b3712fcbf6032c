"""Results as text for people."""

from collections.abc import Mapping, Sequence
from typing import Any


def number(value: Any) -> str:
    """Write a value as people read it.

    Examples
    --------
    >>> number(0.93812), number(1234567), number(None), number(12.0)
    ('0.9381', '1,234,567', '-', '12.0000')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(number, value))
    return str(value)


def table(records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Align records in columns: text to the left, numbers to the right."""
    if not records:
        return "(no rows)"
    names = list(columns or records[0])
    cells = [names, *([number(record.get(name)) for name in names] for record in records)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    right = [
        all(isinstance(r.get(n), int | float) or r.get(n) is None for r in records) for n in names
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(
        [line(cells[0]), line(["-" * width for width in widths]), *map(line, cells[1:])]
    )


def facts(values: Mapping[str, Any]) -> str:
    """Align names and values, one a line."""
    shown = {name.replace("_", " "): value for name, value in values.items()}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {_fact(value)}" for name, value in shown.items())


def result(values: Mapping[str, Any]) -> str:
    """Show the result of a job: its table of tasks, if any, and what else it says."""
    parts = []
    if "tasks" in values:
        parts.append(four_tasks(values["tasks"]))
    for name in ("figures", "policies"):
        if name in values:
            parts.append(table(values[name]))
    if "contributions" in values:
        parts.append(table(_with_bars(values["contributions"], "contribution")))
    rest = {
        name: value
        for name, value in values.items()
        if name not in ("tasks", "figures", "policies", "periods", "contributions", "job")
        and not (name == "skipped" and not value)
    }
    parts.append(facts(rest))
    return "\n\n".join(part for part in parts if part)


def four_tasks(records: Sequence[Mapping[str, Any]]) -> str:
    """Show a record for each task as a column, a figure a line, with its deviation if known."""
    lines = []
    for name in records[0]:
        if name == "task" or name.endswith("_std"):
            continue
        line: dict[str, Any] = {"": name}
        for record in records:
            value, std = record[name], record.get(f"{name}_std")
            whole = isinstance(value, float) and value.is_integer() and abs(value) >= 2
            shown = number(int(value) if whole else value)
            line[record["task"]] = shown if std is None else f"{shown} ± {std:.4f}"
        lines.append(line)
    return table(lines)


def _with_bars(
    records: Sequence[Mapping[str, Any]], column: str, width: int = 24
) -> list[dict[str, Any]]:
    """Draw a number of each record beside it: to the right if it adds, marked if it takes away."""
    # The first is what all start from; it would dwarf the others.
    most = max((abs(record[column]) for record in records[1:]), default=0) or 1.0
    drawn = []
    for i, record in enumerate(records):
        length = round(width * abs(record[column]) / most) if i else 0
        drawn.append({**record, "": ("+" if record[column] >= 0 else "-") * length})
    return drawn


def _fact(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "\n    ".join(["", *map(str, value)]) if value else "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"
    return number(value)
