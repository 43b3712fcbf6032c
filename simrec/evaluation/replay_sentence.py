"""What a replay says in words: the cheapest policy that cannot be told from the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def sentence(frame: pd.DataFrame, summary: pd.DataFrame, k: int) -> str:
    """Say what the cheapest policy is that cannot be told from the best one, and if it pays."""
    table = summary.set_index("policy")
    own = [name for name in table.index if name != "baseline"]
    parts = []
    for metric, weight, sign in ((f"ndcg@{k}", "n_ranked", -1), ("rmse", "n", 1)):
        known = [name for name in own if np.isfinite(table.loc[name, metric])]
        if not known:
            continue
        best = min(known, key=lambda name: sign * table.loc[name, metric])
        near = [name for name in known if not _worse(frame, name, best, metric, weight, sign)]
        cheap = min(near, key=lambda name: table.loc[name, "seconds"])
        figure = f"{metric.upper()} {table.loc[cheap, metric]:.4f}"
        is_ = "best" if cheap == best else "enough"
        says = f"“{cheap}” is {is_} ({figure}, {table.loc[cheap, 'seconds']:.1f} s of learning)"
        if cheap == best and table.loc[known, "seconds"].min() < table.loc[cheap, "seconds"]:
            says += ", and nothing cheaper comes near it"
        elif cheap != best:
            says += f": “{best}” has {table.loc[best, metric]:.4f} for "
            says += f"{table.loc[best, 'seconds']:.1f} s, which cannot be told from it"
        if "baseline" in table.index:
            theirs = table.loc["baseline", metric]
            if sign * theirs < sign * table.loc[best, metric]:
                says += f", but the baseline is better than all ({theirs:.4f})"
        parts.append(f"for {'lists' if sign < 0 else 'ratings'} {says}")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def _worse(frame: pd.DataFrame, name: str, best: str, metric: str, weight: str, sign: int) -> bool:
    """Tell whether a policy is clearly worse than the best: by more than two standard errors.

    The differences by period are what varies; below half a percent none matters.
    """
    both = [frame[frame["policy"] == policy].set_index("period") for policy in (name, best)]
    weights = both[1][weight].to_numpy(np.float64)
    gap = sign * (both[0][metric] - both[1][metric]).to_numpy()
    use = np.isfinite(gap) & (weights > 0)
    gap, weights = gap[use], weights[use] / weights[use].sum()
    mean = float(weights @ gap)
    error = float(np.sqrt((weights**2) @ (gap - mean) ** 2))
    return mean > 2 * error and mean > 0.005 * abs(float(both[1][metric].mean()))
