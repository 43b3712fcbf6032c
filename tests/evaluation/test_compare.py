"""Comparisons: intervals, results in words, refusals, the command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from simrec import InputError, Ratings, TwoTower, cold_start_split, compare, make_synthetic
from simrec.cli import main
from simrec.evaluation.baselines import BiasBaseline, MeanBaseline, PopularityBaseline
from simrec.evaluation.compare import paired_difference


@pytest.fixture(scope="module")
def data():
    return make_synthetic(n_users=300, n_items=150, n_ratings=9000, random_state=0)


@pytest.fixture(scope="module")
def split(data):
    return cold_start_split(Ratings.from_arrow(data.ratings))


@pytest.fixture(scope="module")
def fitted(data, split):
    return [
        TwoTower(lists=False, embedding_dim=4, random_state=seed).fit(
            split.train, items=data.items, users=data.users
        )
        for seed in range(4)
    ]


def test_a_model_is_told_from_the_biases_and_not_from_itself(split, fitted):
    found = compare({"SimRec": fitted[0], "biases": BiasBaseline.fit(split.train)}, split)
    assert set(found["metric"]) == {"rmse"}  # the biases make no lists
    row = found.set_index("task").loc["new_items"]
    assert row["better"] == "SimRec" and 0 < row["low"] < row["difference"] < row["high"]
    assert row["result"].startswith("worse by ") and row["model"] == "biases"
    seeds = compare({"one": fitted[:2], "other": fitted[2:]}, split)
    assert seeds["better"].isna().all()
    assert len(seeds) == 8


def test_fits_that_differ_widen_the_interval(split):
    class Off:
        def __init__(self, by):
            self.by, self.bias = by, BiasBaseline.fit(split.train)

        def predict(self, pairs):
            return self.bias.predict(pairs) + self.by

    steady = {"a": [Off(0.0)] * 3, "b": [Off(0.5)] * 3}
    shaky = {"a": [Off(-0.1), Off(0.0), Off(0.1)], "b": [Off(0.1), Off(0.5), Off(0.9)]}
    same, moved = (compare(models, split) for models in (steady, shaky))
    assert (same["better"] == "a").all() and moved["better"].isna().all()
    assert ((moved["high"] - moved["low"]) > 2 * (same["high"] - same["low"])).all()
    single = compare({"a": Off(0.0), "b": Off(0.5)}, split)
    np.testing.assert_allclose(single["low"], same["low"])
    with pytest.raises(InputError, match="two models or more"):
        compare({"a": [], "b": Off(0.0)}, split)


def test_differences_are_those_of_the_tables(split, fitted):
    from simrec import evaluate

    popular = PopularityBaseline.fit(split.train, threshold=4)
    found = compare({"popular": popular, "model": fitted[0]}, split, k=5, threshold=4)
    assert set(found["metric"]) == {"ndcg@5"}  # popularity predicts no ratings
    table = evaluate(fitted[0], split, k=5, threshold=4)
    np.testing.assert_allclose(found["value"], table["ndcg@5"])
    np.testing.assert_allclose(found["other_value"], table["ndcg@5_popular"])
    assert (found["low"] <= found["difference"]).all()
    differ = found["difference"] != 0  # a blend may be popularity itself, where that is best
    assert differ.sum() >= 3 and (found["low"] < found["high"])[differ].all()


def paired_interval(values, other, groups):
    found = paired_difference((values[None], other[None]), groups, False)
    return found["difference"], found["low"], found["high"]


def test_intervals_by_hand():
    rng = np.random.default_rng(0)
    values, other = rng.normal(1, 1, 400), rng.normal(0.5, 1, 400)
    each = np.arange(400)
    difference, low, high = paired_interval(values, other, each)
    error = np.std(values - other, ddof=1) / 20
    assert difference == pytest.approx((values - other).mean())
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
    # Four equal cases of each user say no more than one.
    again = paired_interval(np.repeat(values, 4), np.repeat(other, 4), np.repeat(each, 4))
    assert again == pytest.approx((difference, low, high))
    same = paired_interval(values, values, each)
    assert same == (0, 0, 0)


@pytest.mark.slow
def test_coverage_of_the_interval():
    """A small version of benchmarks/coverage_of_compare.py, which asks for 200 comparisons."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from coverage_of_compare import coverage
    finally:
        sys.path.pop(0)
    found = coverage(30, 150, n_truth=8_000)
    assert set(found) == {"rmse", "ndcg@5"}
    assert all(0.85 <= share <= 1 for share in found.values())


def test_three_models_and_refusals(split):
    models = {"bias": BiasBaseline.fit(split.train), "mean": MeanBaseline.fit(split.train)}
    found = compare({**models, "again": models["bias"]}, split)
    assert set(found["model"]) == {"mean", "again"}
    assert (found[found["model"] == "mean"]["better"] == "bias").any()
    assert found[found["model"] == "again"]["better"].isna().all()
    with pytest.raises(InputError, match="two models or more"):
        compare({"one": models["bias"]}, split)
    with pytest.raises(InputError, match="no figure in common"):
        compare({"lists": PopularityBaseline.fit(split.train), "bias": models["bias"]}, split)


def test_command_line(tables, model_directory, tmp_path, capsys):
    import pyarrow.parquet as pq

    other = tmp_path / "other"
    given = {n: str(tables / f"{n}.parquet") for n in ("items", "users")}
    TwoTower(lists=False, embedding_dim=1, bounds=(1, 5), epochs=1).fit(
        str(tables / "ratings.parquet"), **given
    ).save(other)
    words = [w for n in ("ratings", "items", "users") for w in (f"--{n}", f"{tables / n}.parquet")]
    start = ["compare", str(model_directory), str(other), *words, "--quiet", "--json"]
    assert main(start) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["figures"]) == 8 and all(row["result"] for row in found["figures"])
    # Copies without the features of their models would be compared in their stead.
    assert main([*start[:5], "--quiet"]) == 2
    assert "trained with features of items" in capsys.readouterr().err
    # Ratings that came later: the saved models themselves answer.
    ratings = pq.read_table(tables / "ratings.parquet")
    later = ratings.slice(0, 50).set_column(1, "item_id", [["i45"] * 50])
    from simrec.data.ratings import Ratings as R

    pq.write_table(R.from_arrow(later).to_arrow(), tmp_path / "later.parquet")
    assert main([*start, "--pairs", str(tmp_path / "later.parquet")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {figure["task"] for figure in found["figures"]} == {"new_items"}
    assert main([*start, "--pairs", str(tables / "ratings.parquet")]) == 2
    assert "in the training set too" in capsys.readouterr().err


def test_what_is_no_mapping_no_split_or_no_model_is_said(split, fitted, tmp_path):
    with pytest.raises(
        InputError, match=r'names to two models or more, such as \{"a": a.*TwoTower'
    ):
        compare(fitted[0], split)
    with pytest.raises(InputError, match="needs a split .*cold_start_split.*got Ratings"):
        compare({"a": fitted[0], "b": fitted[1]}, split.train)
    with pytest.raises(InputError, match="a model has predict.*got int"):
        compare({"a": fitted[0], "b": 3}, split)
    fitted[0].save(tmp_path / "model")
    found = compare({"saved": tmp_path / "model", "same": fitted[0]}, split)
    assert (found["difference"] == 0).all()


def test_a_difference_that_is_too_small_to_matter_is_said(split):
    class Off:
        def __init__(self, by):
            self.by, self.bias = by, BiasBaseline.fit(split.train)

        def predict(self, pairs):
            return self.bias.predict(pairs) + self.by

    found = compare({"a": Off(0.1), "b": Off(0.11)}, split)
    assert found["better"].isna().all()
    clear = found[found["low"] * found["high"] > 0]
    assert (
        len(clear)
        and clear["result"]
        .str.fullmatch(r"(better|worse) by 0\.\d%, (too little to matter|but it may be chance)")
        .all()
    )
