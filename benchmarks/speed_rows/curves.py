"""Points of the two pictures: time against ratings for fitting, against items for top-k."""

from pathlib import Path
from statistics import median
from typing import Any

from peers import peer_class

from simrec import Ratings, TwoTower, make_synthetic, top_k
from speed_rows import scoring
from speed_rows.fitting import _ITEMS, _RATINGS, _USERS
from speed_rows.timing import Sizes, in_turns

Curves = dict[str, list[tuple[int, float]]]


def fit_curves(sizes: Sizes) -> Curves:
    """Seconds of fitting, for growing numbers of synthetic ratings."""
    names = {"surprise": "Surprise SVD", "myfm": "myFM", "lightgbm": "LightGBM"}
    curves: Curves = {"SimRec": [], **{name: [] for name in names.values()}}
    for n in (10_000, 30_000) if sizes.quick else (30_000, 100_000, 300_000, 1_000_000):
        growth = (n / _RATINGS) ** 0.5
        data = make_synthetic(int(_USERS * growth), int(_ITEMS * growth), n)
        ratings = Ratings.from_arrow(data.ratings)
        calls: dict[str, Any] = {
            "SimRec": lambda d=data, r=ratings: TwoTower().fit(r, d.items, d.users)
        }
        for peer, name in names.items():
            kind = peer_class(peer)
            kind.load()
            calls[name] = lambda k=kind, d=data, r=ratings: k(d.bounds).fit(r, d.items, d.users)
        for name, seconds in in_turns(calls, 1, warm_up=n == 30_000).items():
            curves[name].append((n, median(seconds)))
    return curves


def search_curves(sizes: Sizes) -> Curves:
    """Seconds of an exact top-10 of 1,024 queries, for growing numbers of items."""
    queries = scoring.vectors(1024, 0)
    curves: Curves = {}
    for n in (5_000, 20_000) if sizes.quick else (10_000, 30_000, 100_000, 300_000, 1_000_000):
        items = scoring.vectors(n, 1)
        calls = {
            "SimRec": lambda items=items: top_k(queries, items, 10),
            **scoring.tfrs_search(queries, items),
            **scoring.faiss_search(queries, items),
            **scoring.implicit_search(queries, items),
            "bare tf.matmul": scoring.bare_product(queries, items),
        }
        for name, seconds in in_turns(calls, min(sizes.repeats, 3)).items():
            curves.setdefault(name, []).append((n, median(seconds)))
    return curves


def draw(curves: Curves, path: Path, axis: str, title: str) -> None:
    """Draw curves on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, points in curves.items():
        ours = name == "SimRec"
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=4,
            linewidth=2.8 if ours else 1.4,
            color="black" if ours else None,
            linestyle="--" if name.startswith("bare") else "-",
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="seconds", title=title)
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
