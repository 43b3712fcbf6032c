"""Tables and the picture of the benchmarks of quality."""

import os
import platform
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _runs import BINS
from peers import FAMILIES, PEERS

_LABELS = {
    "simrec": "**SimRec**",
    "simrec-simec": "SimRec, two SimEcs (`refine=False`)",
    "mean": "mean of all ratings",
    "bias": "shrunken biases",
    "ridge-svd": "SVD + ridge from features",
    "surprise": "Surprise SVD",
    "myfm": "myFM (Bayesian FM)",
    "lightgbm": "LightGBM",
    "tfrs": "TFRS two towers",
    "lightfm": "LightFM WARP",
    "content": "content profile, TF-IDF",
    "content-network": "network from features (as DropoutNet, CLCRec)",
}
_TASKS = {
    "warm": "warm",
    "new_items": "new items",
    "new_users": "new users",
    "new_both": "both new",
    "test": "test",
}
_LIST_TASKS = {
    "known_users": "known users",
    "new_items": "new items",
    "new_users": "new users, nothing",
    "few_ratings": "new users, five ratings",
}


def label(model: str) -> str:
    """Name a model as tables do."""
    if model in _LABELS:
        return _LABELS[model]
    settings = (f"{name} {value:g}" for name, value in dict(*PEERS[model][2:]).items())
    return ", ".join([FAMILIES[model], *settings])


def machine() -> str:
    """Say where it was measured."""
    versions = [
        f"{name} {metadata.version(name)}" for name in ("numpy", "tensorflow", "scipy", "pyarrow")
    ]
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    python = f"Python {platform.python_version()}"
    return f"{processor}, {os.cpu_count()} cores, {python}, {', '.join(versions)}"


def by_model(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group results by model, in the order they come."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["key"]["model"]].append(line)
    return groups


def error_table(lines: list[dict[str, Any]]) -> str:
    """RMSE by task, the mean over seeds, with time and memory; the best of each task in bold."""
    groups = {m: g for m, g in by_model(lines).items() if "rmse" in g[0]}
    tasks = [t for t in _TASKS if any(t in line["rmse"] for g in groups.values() for line in g)]
    means = {
        model: [float(np.mean([line["rmse"][task] for line in group])) for task in tasks]
        for model, group in groups.items()
    }
    best = [min(row[at] for row in means.values()) for at in range(len(tasks))]
    head = ["RMSE", *(_TASKS[task] for task in tasks), "fit s", "CPU s", "peak MB"]
    rows = [head, ["---"] * len(head)]
    for model, group in groups.items():
        cells = [
            f"**{value:.4f}**" if round(value, 4) <= round(lowest, 4) else f"{value:.4f}"
            for value, lowest in zip(means[model], best, strict=True)
        ]
        rows.append([label(model), *cells, *_costs(group)])
    return markdown(rows)


def paired_table(lines: list[dict[str, Any]]) -> str | None:
    """Compare SimRec with the best peer of each task on the same seeds; None if there is none.

    A model is ahead if the mean of the differences exceeds its standard error.
    """
    groups = {m: g for m, g in by_model(lines).items() if "rmse" in g[0]}
    found = {
        model: {line["key"]["seed"]: line["rmse"] for line in group}
        for model, group in groups.items()
        if model == "simrec" or not model.startswith("simrec")
    }
    seeds = sorted(found.get("simrec", {}))
    peers = [m for m in found if m != "simrec" and set(seeds) <= set(found[m])]
    if len(seeds) < 2 or not peers:
        return None
    head = ["task", "best peer", "its RMSE", "SimRec less it", "standard error", ""]
    rows = [head, ["---"] * len(head)]
    for task in (t for t in _TASKS if t in found["simrec"][seeds[0]]):
        errors = {m: np.array([found[m][s][task] for s in seeds]) for m in ("simrec", *peers)}
        best = min(peers, key=lambda m: float(errors[m].mean()))
        difference = errors["simrec"] - errors[best]
        mean, error = difference.mean(), difference.std(ddof=1) / np.sqrt(len(seeds))
        verdict = "within the error" if abs(mean) <= error else "ahead" if mean < 0 else "behind"
        cells = [_TASKS[task], label(best), f"{errors[best].mean():.4f}"]
        rows.append([*cells, f"{mean:+.4f}", f"{error:.4f}", verdict])
    return markdown(rows)


def seed_table(lines: list[dict[str, Any]]) -> str:
    """RMSE of every seed, tasks side by side."""
    groups = {m: g for m, g in by_model(lines).items() if "rmse" in g[0]}
    seeds = sorted({line["key"]["seed"] for line in lines})
    rows = [["RMSE", *(f"seed {seed}" for seed in seeds)], ["---"] * (len(seeds) + 1)]
    for model, group in groups.items():
        found = {line["key"]["seed"]: line["rmse"].values() for line in group}
        cells = [" / ".join(f"{v:.4f}" for v in found[s]) if s in found else "" for s in seeds]
        rows.append([label(model), *cells])
    return markdown(rows)


def list_table(lines: list[dict[str, Any]]) -> str:
    """NDCG@10 / Recall@20 of lists by task, means over seeds; the best of each task in bold."""
    groups = by_model(lines)
    means = {model: _list_means(group) for model, group in groups.items()}
    best = {task: _best(means.values(), task) for task in _LIST_TASKS}
    head = ["NDCG@10 / Recall@20", *_LIST_TASKS.values(), "fit s", "CPU s", "peak MB"]
    rows = [head, ["---"] * len(head)]
    families = defaultdict(list)
    for model in groups:
        families[FAMILIES.get(model, label(model))].append(model)
    for family, models in families.items():
        name = f"{family}, best of {len(models)}" if len(models) > 1 else label(models[0])
        cells = [
            _list_cell(_best([means[model] for model in models], task), best[task])
            for task in _LIST_TASKS
        ]
        costs = _costs([line for model in models for line in groups[model]])
        rows.append([name, *cells, *costs])
    peers = [mean for model, mean in means.items() if not model.startswith("simrec")]
    if "simrec" in means and peers:
        pairs = [(means["simrec"].get(task), _best(peers, task)) for task in _LIST_TASKS]
        ratios = [f"{ours[0] / peer[0]:.3f}" if ours and peer else "-" for ours, peer in pairs]
        rows.append(["SimRec / best peer, NDCG@10", *ratios, "", "", ""])
    return markdown(rows)


def list_seed_table(lines: list[dict[str, Any]]) -> str:
    """NDCG@10 of every setting and seed, tasks side by side."""
    seeds = sorted({line["key"]["seed"] for line in lines})
    rows = [["NDCG@10", *(f"seed {seed}" for seed in seeds)], ["---"] * (len(seeds) + 1)]
    for model, group in by_model(lines).items():
        found = {line["key"]["seed"]: line["ndcg@10"] for line in group}
        cells = [
            " / ".join(f"{found[s][t]:.4f}" if t in found[s] else "-" for t in _LIST_TASKS)
            if s in found
            else ""
            for s in seeds
        ]
        rows.append([label(model), *cells])
    return markdown(rows)


def incomplete(lines: list[dict[str, Any]]) -> list[str]:
    """Say which models lack seeds that others have: a paragraph, or none."""
    n_seeds = len({line["key"]["seed"] for line in lines})
    short = [
        f"{label(model)} ({len(group)} of {n_seeds} seeds)"
        for model, group in by_model(lines).items()
        if len(group) < n_seeds
    ]
    return [f"Not complete: {', '.join(short)}."] if short else []


def _list_means(group: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Mean NDCG@10 and Recall@20 of each task the model has answered."""
    return {
        task: tuple(
            float(np.mean([line[name][task] for line in group]))
            for name in ("ndcg@10", "recall@20")
        )
        for task in group[0]["ndcg@10"]
    }


def _best(means: Iterable[dict[str, tuple[float, ...]]], task: str) -> tuple[float, ...] | None:
    """Give the highest NDCG@10 of a task, and the Recall@20 of the same model."""
    return max((mean[task] for mean in means if task in mean), default=None)


def _list_cell(mean: tuple[float, ...] | None, best: tuple[float, ...] | None) -> str:
    if mean is None or best is None:
        return "-"
    ndcg, recall = (f"{value:.4f}" for value in mean)
    return f"**{ndcg}** / {recall}" if ndcg == f"{best[0]:.4f}" else f"{ndcg} / {recall}"


def picture(lines: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the error against the number of ratings an item, or a user, has in training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # The mean is so far off that the others could not be told apart beside it.
    groups = {m: g for m, g in by_model(lines).items() if "bins" in g[0] and m != "mean"}
    groups = groups or by_model(lines)
    names = ["0 (new)", *(f"{low}-{high - 1}" for low, high in pairwise(BINS[1:])), f"{BINS[-1]}+"]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    colours = pyplot.get_cmap("tab10")
    for axis, side in zip(axes, ("item", "user"), strict=True):
        total = np.sum([line["bins"][side] for line in next(iter(groups.values()))], axis=0)
        # A handful of ratings makes a point that says nothing.
        shown = np.flatnonzero(total[1] >= 300)
        for place, (model, group) in enumerate(groups.items()):
            squares, counts = np.sum([line["bins"][side] for line in group], axis=0)
            ours = model.startswith("simrec")
            axis.plot(
                np.arange(len(shown)),
                np.sqrt(squares[shown] / counts[shown]),
                marker="o",
                markersize=4 if ours else 3,
                linewidth=2.8 if ours else 1.3,
                color="black" if ours else colours(place % 10),
                zorder=3 if ours else 2,
                label=label(model).strip("*"),
            )
        axis.set_xticks(np.arange(len(shown)), [names[at] for at in shown], rotation=30)
        axis.set_xlabel(f"ratings the {side} has in training")
        axis.set_title(f"{side}s, cold to warm")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("RMSE")
    axes[1].legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _costs(group: list[dict[str, Any]]) -> list[str]:
    middle = {name: np.median([line[name] for line in group]) for name in ("fit_s", "fit_cpu_s")}
    peak = max(line["peak_mb"] for line in group)
    return [_seconds(middle["fit_s"]), _seconds(middle["fit_cpu_s"]), f"{peak:,.0f}"]


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 20 else f"{value:.0f}"


def markdown(rows: list[list[str]]) -> str:
    """Write rows of cells as a table of Markdown; the first is the head."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
