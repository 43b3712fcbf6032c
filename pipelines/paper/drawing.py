"""The figures as the paper draws them: error over dimensions, targets or missing values."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import published

COLOURS = ("#222222", "#8c8c8c", "#1f6fb4", "#2ca02c", "#c8321e", "#9467bd")


def _axes(title: str, x: str) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(6.4, 4.4))
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(r"mean squared error of $\hat{S}$")
    axes.grid(alpha=0.25)
    return figure, axes


def _pair(axes: Any, x: list, pairs: list, label: str, colour: str) -> None:
    axes.plot(x, [p[0] for p in pairs], "-o", ms=4, c=colour, label=f"{label}, train")
    if pairs[0][1] is not None:
        axes.plot(
            x, [p[1] for p in pairs], "--o", ms=4, mfc="white", c=colour, label=f"{label}, test"
        )


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def fig3(result: dict, path: Path) -> None:
    """Class similarities by dimension."""
    rows = result["rows"]
    x = [r["d"] for r in rows]
    figure, axes = _axes(r"Class similarities, $YY^\top$", "embedding dimensions d")
    names = ("eigendecomposition", "ridge", "linear", "2 hidden", "5 hidden")
    for name, colour in zip(names, COLOURS, strict=False):
        label = name if name in names[:2] else f"SimEc {name}"
        _pair(axes, x, [r[name] for r in rows], label, colour)
    axes.set_xticks(x)
    axes.set_ylim(bottom=0)
    _save(figure, axes, path)


def fig4(result: dict, path: Path) -> None:
    """RBF kernel by dimension."""
    rows = result["rows"]
    x = [r["d"] for r in rows]
    figure, axes = _axes("RBF kernel", "embedding dimensions d")
    _pair(axes, x, [r["kernel PCA"] for r in rows], "kernel PCA", COLOURS[0])
    _pair(axes, x, [r["with"] for r in rows], r"SimEc $YY^\top$, $\lambda$", COLOURS[2])
    _pair(axes, x, [r["with, Y W"] for r in rows], r"SimEc $YW_l$, $\lambda$", COLOURS[3])
    _pair(axes, x, [r["without"] for r in rows], r"SimEc $YY^\top$, no $\lambda$", COLOURS[4])
    axes.set_yscale("log")
    axes.set_xticks(x)
    _save(figure, axes, path)


def fig5(result: dict, path: Path) -> None:
    """RBF kernel by number of targets."""
    rows = result["rows"]
    x = [r["targets"] for r in rows]
    figure, axes = _axes(r"RBF kernel, d = 10, $YY^\top$: fewer targets", "target columns n")
    axes.axhline(result["kernel PCA"], c=COLOURS[0], lw=1, label="kernel PCA, train")
    _pair(axes, x, [r["simec"] for r in rows], "SimEc", COLOURS[2])
    axes.axhline(published.TARGETS["fewest"], c=COLOURS[1], ls=":", label="published, fewest")
    axes.axhline(published.TARGETS["all"], c=COLOURS[1], ls="-.", label="published, all")
    axes.set_xscale("log")
    axes.set_xticks(x, [str(n) for n in x])
    axes.minorticks_off()
    _save(figure, axes, path)


def fig6(result: dict, path: Path) -> None:
    """RBF kernel by share of missing entries."""
    rows = result["rows"]
    x = [100 * r["missing"] for r in rows]
    figure, axes = _axes(r"RBF kernel, d = 10, $YY^\top$: missing values", "missing entries in %")
    axes.plot(x, [r["mean-filled"] for r in rows], "-o", ms=4, c=COLOURS[0], label="mean-filled")
    _pair(axes, x, [r["simec"] for r in rows], "SimEc", COLOURS[2])
    shares = sorted(published.MISSING)
    axes.plot(
        [100 * s for s in shares],
        [published.MISSING[s][1] for s in shares],
        ":s",
        ms=4,
        c=COLOURS[1],
        label="SimEc, published",
    )
    _save(figure, axes, path)


def fig7(result: dict, path: Path) -> None:
    """Simpson similarities: spectrum and error by dimension."""
    rows = result["rows"]
    x = [r["d"] for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=(1, 1.6))
    values = result["eigenvalues"]
    left.bar(range(len(values)), values, width=1.0, color=COLOURS[2])
    left.set_title("eigenvalues of S")
    left.set_yscale("symlog", linthresh=1.0)
    left.set_xlabel("number")
    right.set_title(r"Simpson similarities, $YW_l$")
    right.set_xlabel("embedding dimensions d")
    right.set_ylabel(r"mean squared error of $\hat{S}$")
    right.grid(alpha=0.25)
    for name, colour in (("positive", COLOURS[0]), ("magnitude", COLOURS[1])):
        label = f"eigenvalues, {'positive only' if name == 'positive' else 'by magnitude'}"
        right.plot(x, [r[name] for r in rows], "-o", ms=4, c=colour, label=label)
    _pair(right, x, [r["simec"] for r in rows], r"SimEc $YW_l$", COLOURS[2])
    right.set_yscale("log")
    right.set_xticks(x)
    _save(figure, right, path)


def fig8(result: dict, path: Path) -> None:
    """Two relations at once."""
    rows = result["rows"]
    x = [r["d"] for r in rows]
    figure, both = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True)
    for part, axes in enumerate(both):
        axes.set_title(f"approximating S{part + 1}, $YW_l$")
        axes.set_xlabel("embedding dimensions d")
        axes.grid(alpha=0.25)
        for name, label, colour in (
            ("reference", "eigendecomposition", COLOURS[0]),
            (f"S{part + 1}", f"SimEc S{part + 1}", COLOURS[2]),
            ("S1;S2", "SimEc S1;S2 stacked", COLOURS[3]),
            ("S1+S2", "SimEc S1+S2 averaged", COLOURS[4]),
        ):
            # Below this a spectrum is rounding, and would stretch the axis to nothing.
            errors = [max(r[name][part], 1e-8) for r in rows]
            axes.plot(x, errors, "-o", ms=4, c=colour, label=label)
        axes.set_yscale("log")
        axes.set_xticks(x)
    both[0].set_ylabel(r"mean squared error of $\hat{S}$")
    _save(figure, both[1], path)


DRAW = {"fig3": fig3, "fig4": fig4, "fig5": fig5, "fig6": fig6, "fig7": fig7, "fig8": fig8}
