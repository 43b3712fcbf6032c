"""The results as a Markdown table: reference, published, ours."""

from typing import Any

import published


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 0.002 else f"{value:.3g}"


def _pair(pair: Any) -> str:
    train, test = pair
    return _number(train) + ("" if test is None else f" ({_number(test)})")


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(rows: list[dict], key: str, value: Any) -> dict | None:
    return next((r for r in rows if r[key] == value), None)


def _verdict(ours: Any, limits: Any, comparable: bool = True) -> str:
    """Yes where training and test errors are below their limits (None: no limit)."""
    if not comparable:
        return "-"
    good = all(
        limit is None or (error is not None and error < limit)
        for error, limit in zip(ours, limits, strict=True)
    )
    return "yes" if good else "no"


def markdown(results: dict[str, Any]) -> str:
    """Return the table of what was run."""
    lines = [
        f"Mean squared errors on {results['data']}: training data (test data). Ours: seed 0.",
        "",
        _line("figure", "experiment", "reference here", "published SimEc", "ours", "below"),
        _line(*["---"] * 6),
    ]
    figures = results["figures"]
    # Errors of other or fewer digits say nothing about those published.
    same = bool(results.get("as_published"))
    if "fig3" in figures:
        for row in figures["fig3"]["rows"]:
            known = published.CLASSES.get(row["d"], {})
            reference = f"eigen {_pair(row['eigendecomposition'])}; ridge {_pair(row['ridge'])}"
            for name in ("linear", "2 hidden", "5 hidden"):
                goal = known.get(name)
                lines.append(
                    _line(
                        "3",
                        f"classes, d = {row['d']}, {name}",
                        reference,
                        _pair(goal) if goal else "-",
                        _pair(row[name]),
                        _verdict(row[name], goal, same) if goal else "-",
                    )
                )
    if "fig4" in figures:
        for row in figures["fig4"]["rows"]:
            limits = [1.02 * e for e in row["kernel PCA"]]
            ratio = " / ".join(
                f"{a / b:.3f}" for a, b in zip(row["with"], row["kernel PCA"], strict=True)
            )
            at_ten = row["d"] == 10
            lines.append(
                _line(
                    "4",
                    f"RBF, d = {row['d']}, with lambda",
                    f"kernel PCA {_pair(row['kernel PCA'])}",
                    _pair(published.KERNEL["with"]) if at_ten else "-",
                    f"{_pair(row['with'])}, ratio {ratio}",
                    _verdict(row["with"], limits) + " (1.02)",
                )
            )
            lines.append(
                _line(
                    "4",
                    f"RBF, d = {row['d']}, without lambda",
                    "",
                    _pair(published.KERNEL["without"]) if at_ten else "-",
                    _pair(row["without"]),
                    "-",
                )
            )
    if "fig5" in figures:
        rows = figures["fig5"]["rows"]
        for row in rows:
            goal = {rows[0]["targets"]: "fewest", rows[-1]["targets"]: "all"}.get(row["targets"])
            limit = published.TARGETS[goal] if goal else None
            lines.append(
                _line(
                    "5",
                    f"RBF, d = 10, {row['targets']} targets",
                    f"kernel PCA {_number(figures['fig5']['kernel PCA'])}",
                    _number(limit),
                    _pair(row["simec"]),
                    _verdict(row["simec"], (limit, None), same) if limit else "-",
                )
            )
    if "fig6" in figures:
        for row in figures["fig6"]["rows"]:
            known_pair = published.MISSING.get(row["missing"])
            limit = known_pair[1] if known_pair else None
            lines.append(
                _line(
                    "6",
                    f"RBF, d = 10, {row['missing']:.0%} missing",
                    f"mean-filled {_number(row['mean-filled'])}",
                    _number(limit),
                    _pair(row["simec"]),
                    _verdict(row["simec"], (limit, None), same) if limit else "-",
                )
            )
    if "fig7" in figures:
        last = figures["fig7"]["rows"][-1]
        lines.append(
            _line(
                "7",
                f"Simpson, d = {last['d']}, Y W_l",
                f"positive {_number(last['positive'])}; magnitude {_number(last['magnitude'])}",
                _number(published.SIMPSON["simec"]),
                _pair(last["simec"]),
                _verdict(last["simec"], [published.SIMPSON["reach"]] * 2, same) + " (0.0003)",
            )
        )
    if "fig8" in figures:
        last = figures["fig8"]["rows"][-1]
        for part in range(2):
            limit = published.STACKED["simec"][part]
            lines.append(
                _line(
                    "8",
                    f"S{part + 1} of S1;S2 stacked, d = {last['d']}",
                    _number(last["reference"][part]),
                    _number(limit),
                    _number(last["S1;S2"][part]),
                    _verdict((last["S1;S2"][part],), (limit,), same),
                )
            )
    return "\n".join(lines) + "\n"
