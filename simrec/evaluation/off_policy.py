"""What other lists would have earned, from a log of lists drawn with known propensities."""

from typing import Any

import numpy as np
import pandas as pd

from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError

_LOG = ["list_id", "user_id", "item_id", "propensity", "reward"]


def off_policy(log: TableLike, lists: TableLike, *, model: TableLike | None = None) -> pd.DataFrame:
    """Estimate the reward of a list of other items, from lists that were shown.

    The reward of a list is the sum of what its items earn; what an item earns does not depend on
    the others. An item of the log that is in the user's other list too counts by how rarely it was
    shown, 1 / propensity.

    Parameters
    ----------
    log : table or path
        Columns list_id, user_id, item_id, propensity (of `recommend` with `sample`) and reward,
        such as 1 for a click: a row for each item that was shown.
    lists : table or path
        The lists to judge, as `recommend` returns them: user_id and item_id, and propensity where
        they are drawn too.
    model : table or path, optional
        Expected rewards for the doubly robust estimate: user_id, item_id and reward of the pairs of
        both tables; 0 for those that are not there.

    Returns
    -------
    pandas.DataFrame
        A row for each of "ips", "snips" (weights divided by their mean) and, with a model, "dr":
        value (reward of a list), std (its standard error) and n (lists).

    Examples
    --------
    >>> import pandas as pd
    >>> log = pd.DataFrame({"list_id": [1, 1, 2], "user_id": [7, 7, 7], "item_id": [1, 2, 3],
    ...                     "propensity": [0.5, 0.5, 0.5], "reward": [1.0, 0.0, 1.0]})
    >>> lists = pd.DataFrame({"user_id": [7], "item_id": [1]})
    >>> off_policy(log, lists)["value"].tolist()
    [1.0, 1.0]
    """
    shown = read_table(log, _LOG, name="log").to_pandas()
    wanted = read_table(lists, ["user_id", "item_id"], optional=["propensity"], name="lists")
    target = wanted.to_pandas()
    if "propensity" not in target:
        target["propensity"] = 1.0
    bad = ~((shown["propensity"] > 0) & (shown["propensity"] <= 1))
    if bad.any():
        raise InputError(
            f"log: {int(bad.sum())} rows have a propensity outside of (0, 1], for example "
            f"{shown.loc[bad, 'propensity'].iloc[0]!r}. Log that of recommend(..., sample=seed)."
        )
    missing = ~shown["user_id"].isin(target["user_id"])
    if missing.any():
        raise InputError(
            f"lists: no list for {shown.loc[missing, 'user_id'].nunique()} users of the log, for "
            f"example {shown.loc[missing, 'user_id'].iloc[0]!r}."
        )
    pairs = ["user_id", "item_id"]
    own = target.rename(columns={"propensity": "target"})
    shown = shown.merge(own[[*pairs, "target"]], on=pairs, how="left")
    weight = shown["target"].fillna(0.0) / shown["propensity"]
    list_id = shown["list_id"]

    def by_list(values: Any) -> pd.Series:
        return pd.Series(values).groupby(list_id.to_numpy()).sum()

    users = shown.groupby("list_id")["user_id"].first()
    earned = by_list((weight * shown["reward"]).to_numpy())
    rows = {"ips": earned}
    # The weights of a list sum to its target's length on average.
    length = users.map(own.groupby("user_id")["target"].sum()).to_numpy(float)
    share = by_list(weight.to_numpy()).sum() / max(length.sum(), 1e-12)
    value = earned.mean() / share if share > 0 else np.nan
    rows["snips"] = earned / share - (by_list(weight.to_numpy()) / share - length) * (
        value / max(length.mean(), 1e-12)
    )
    if model is not None:
        expected = read_table(model, [*pairs, "reward"], name="model").to_pandas()
        expected = expected.rename(columns={"reward": "expected"})
        shown = shown.merge(expected, on=pairs, how="left").fillna({"expected": 0.0})
        own = own.merge(expected, on=pairs, how="left").fillna({"expected": 0.0})
        direct = (own["target"] * own["expected"]).groupby(own["user_id"]).sum()
        left = by_list(weight.to_numpy() * (shown["reward"] - shown["expected"]).to_numpy())
        rows["dr"] = left + users.map(direct).to_numpy(float)
    by_estimate = pd.DataFrame(rows)
    found = {"value": by_estimate.mean(), "std": by_estimate.sem(), "n": len(users)}
    return pd.DataFrame(found).rename_axis("estimate").reset_index()
