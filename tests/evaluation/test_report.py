"""The report: its numbers on data with a planted truth, and what stands on the page."""

import datetime
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from simrec import InputError, Ratings, TwoTower, cold_start_split, make_synthetic
from simrec.cli import main
from simrec.evaluation.report import (
    environment,
    measures,
    next_steps,
    number,
    page,
    percent,
    plural,
    report,
    rise,
    tested_model,
    verdict,
)
from simrec.evaluation.report.measures import measure
from simrec.evaluation.report.tested_model import make_tested_model
from simrec.evaluation.tasks import TASK_NAMES

SECTIONS = ["shown", "features", "about"]
TODAY = datetime.date(2024, 5, 17)
EVIL = '<script>alert("x")</script> & <img src=x onerror=alert(1)>'


def planted():
    """Items whose quality and kind decide ratings, and columns with a fault each.

    The last 30 of 180 items have no ratings, and years that training never saw.
    """
    rng = np.random.default_rng(0)
    n_users, n_items, unrated = 150, 150, 30
    total = n_items + unrated
    quality, charm = rng.normal(size=(2, total)).round(2)
    kind = rng.choice(["drama", "comedy", "crime"], total)
    taste = rng.choice(["drama", "comedy", "crime"], n_users)
    cells = rng.permutation(n_users * n_items)[:6000]
    user, item = cells // n_items, cells % n_items
    rating = 3 + 0.7 * quality[item] + 0.5 * charm[item] + 0.8 * (kind[item] == taste[user])
    # Some users rate high: nothing but their ratings tells.
    rating = rating + rng.normal(0, 0.5, n_users)[user]
    rating = np.clip(np.round(rating + rng.normal(0, 0.4, len(cells))), 1, 5)
    mean = np.bincount(item, rating, minlength=total) / np.maximum(
        np.bincount(item, minlength=total), 1
    )
    items = pa.table(
        {
            "item_id": [f"i{i:03d}" for i in range(total)],
            "title": [EVIL if i == 0 else f"Film {i}" for i in range(total)],
            "quality": quality,
            "charm": charm,
            "kind": kind,
            "noise": rng.choice(list("abcd"), total),
            "constant": ["same"] * total,
            "barcode": [f"x{i * 7919 % 1000}" for i in range(total)],
            "average": mean + rng.normal(0, 0.02, total),
            "year": np.where(np.arange(total) < n_items, rng.integers(1950, 1980, total), 2024),
        }
    )
    users = pa.table(
        {"user_id": np.arange(n_users), "taste": taste, "luck": rng.normal(size=n_users)}
    )
    ratings = pa.table(
        {"user_id": user, "item_id": items["item_id"].take(pa.array(item)), "rating": rating}
    )
    return ratings, items, users


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model on the planted data without the leak (so that quality matters), with its tables."""
    ratings, items, users = planted()
    root = tmp_path_factory.mktemp("planted")
    options = {"item_columns": {"average": "ignore"}, "bounds": (1, 5), "embedding_dim": 4}
    with pytest.MonkeyPatch.context() as patch:  # what lists are made of is looked at below
        patch.setattr("simrec.model.lists.fit.LEAST_DRAWS", 5)
        patch.setattr("simrec.model.lists.fit.MOST_DRAWS", 5)
        model = TwoTower(**options, random_state=0).fit(ratings, items=items, users=users)
    model.save(root / "model")
    twice = pa.concat_tables([ratings, ratings.slice(0, 1)])  # a warning
    for name, rows in (("ratings", twice), ("items", items), ("users", users)):
        pq.write_table(rows, root / f"{name}.parquet")
    return root


def model_of(root, items="items", users="users", **options):
    read = {
        name: None if name is None else str(root / f"{name}.parquet") for name in (items, users)
    }
    return make_tested_model(
        TwoTower.load(root / "model"),
        Ratings.from_parquet(str(root / "ratings.parquet")),
        items=read[items],
        users=read[users],
        **options,
    )


@pytest.fixture(scope="module")
def tested(saved):
    return model_of(saved)


@pytest.fixture(scope="module")
def found(tested):
    return measure(tested)


@pytest.fixture(scope="module")
def text(found):
    return page(found, TODAY)


class Parsed(HTMLParser):
    """Elements, attributes and words of a page; complains about tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words, self.ids = [], [], [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        self.ids.update(value for key, value in attributes if key == "id")
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.words.append(data)


def test_the_copy_has_the_settings_and_not_the_test_ratings(tested):
    assert tested.copy.get_params() | {"verbose": 0} == tested.model.get_params() | {"verbose": 0}
    assert tested.copy.towers_.items.counts.sum() == len(tested.split.train)
    assert tested.model.towers_.items.counts.sum() == len(tested.ratings)
    held_out = tested.split.new_items.items.ids
    assert (tested.copy.towers_.items.counts[tested.copy.items_.rows(held_out)] == 0).all()


def test_gains_are_against_the_best_baseline(found):
    tasks = found.tasks.set_index("task")
    errors = found.gains[found.gains["metric"] == "rmse"].set_index("task")
    best = tasks[["rmse_mean", "rmse_bias"]].min(axis=1)
    np.testing.assert_allclose(errors["other_value"], best[errors.index], rtol=1e-6)
    np.testing.assert_allclose(errors["value"], tasks["rmse"][errors.index], rtol=1e-6)
    assert (errors["better"] == "model").all() and (errors["high"] < 0).all()
    lists = found.gains[found.gains["metric"] == "ndcg@10"].set_index("task")
    rivals = tasks[[f"ndcg@10_{name}" for name in ("popular", "ease", "content")]]
    np.testing.assert_allclose(lists["other_value"], rivals.max(axis=1)[lists.index])
    np.testing.assert_allclose(lists["value"], tasks["ndcg@10"][lists.index])
    assert set(lists["rival"]) <= {"popularity", "EASE", "a TF-IDF profile"}


def gains(**better):
    """A frame of gains: the better one by task and metric."""
    rows = []
    for name, who in better.items():
        task, metric = name.rsplit("__", 1)
        values = {"value": 0.005, "other_value": 0.022, "difference": -0.017}
        metric = "ndcg@10" if metric == "ndcg" else metric
        ends = {"low": -0.02, "high": -0.01}
        rival = "simple averages" if metric == "rmse" else "popularity"
        row = {"task": task, "metric": metric, "better": who, "rival": rival}
        rows.append({**row, **values, **ends})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("frame", "kind", "words"),
    [
        (
            gains(warm__ndcg="baseline", warm__rmse="model"),
            "bad",
            "Do not ship its lists as they are: for known users and items popularity does better "
            "(NDCG@10 0.005 against 0.022). Ship its predicted ratings: better than simple "
            "averages on 1 of 1 task.",
        ),
        (
            gains(warm__ndcg="model", new_users__ndcg=None),
            "good",
            "Ship its lists: better than popularity on 1 of 2 tasks, no different for new users.",
        ),
        (
            gains(warm__ndcg=None, new_items__ndcg=None),
            "same",
            "no better than popularity: no difference for known users and items and new items.",
        ),
        (
            gains(warm__ndcg="model", new_items__ndcg="model", new_both__ndcg="baseline"),
            "part",
            "Ship its lists for known users and items and new items only: better than popularity "
            "on 2 of 3 tasks; for new items for new users popularity does better (NDCG@10 0.005 "
            "against 0.022).",
        ),
        (
            gains(warm__ndcg="baseline", new_users__ndcg="baseline", new_items__ndcg="model"),
            "bad",
            "for known users and items and new users popularity does better (NDCG@10 0.005 against "
            "0.022 for known users and items); better than popularity on 1 of 3 tasks.",
        ),
        (gains(warm__rmse="baseline"), "bad", "Do not ship its predicted ratings"),
        (pd.DataFrame(), "same", "Nothing was held out"),
    ],
)
def test_verdicts(found, frame, kind, words):
    got = verdict(replace(found, gains=frame))
    assert got[0] == kind and words in got[1]
    shown = page(replace(found, gains=frame), TODAY)
    # A loser is never bold, and grey is where there is no clear difference.
    assert ('class="better"' in shown) == ("model" in set(frame.get("better", ())))
    grey = 'class="same">worse by 77%, but it may be chance: 0.005 against 0.022' in shown
    assert grey == (len(frame) > 0 and frame["better"].isna().any())


def test_a_simple_baseline_that_is_better_is_not_shipped_over(found):
    frame = gains(warm__ndcg="baseline", new_items__ndcg="baseline", new_users__ndcg="model")
    frame["rival"] = ["EASE", "a TF-IDF profile", "popularity"]
    worse = replace(found, gains=frame)
    kind, words = verdict(worse)
    assert kind == "bad" and words.startswith("Do not ship its lists as they are: for known users ")
    assert "and items EASE does better" in words and "new items a TF-IDF profile does" in words
    assert [deed for deed, _ in next_steps(worse)][:2] == [
        "Use EASE instead for known users and items.",
        "Use a TF-IDF profile instead for new items.",
    ]


@pytest.mark.parametrize("lost", ["warm", "new_items", "new_users", "new_both"])
def test_lists_are_never_shipped_for_a_task_that_a_baseline_is_better_at(found, lost):
    tasks = ("warm", "new_items", "new_users", "new_both")
    better = {f"{task}__ndcg": "baseline" if task == lost else "model" for task in tasks}
    _, words = verdict(replace(found, gains=gains(**better)))
    assert "Ship its lists:" not in words
    if lost == "warm":
        assert words.startswith("Do not ship its lists as they are")
    else:
        shipped = words.split(" only: ")[0].removeprefix("Ship its lists for ")
        kept = [TASK_NAMES[task] for task in tasks if task != lost]
        assert shipped == f"{kept[0]}, {kept[1]} and {kept[2]}"
    assert f"for {TASK_NAMES[lost]} popularity does better" in words


def test_small_and_unclear_differences_are_said_as_such(found):
    frame = gains(warm__ndcg=None, new_items__ndcg=None)
    frame["other_value"], frame["value"], frame["difference"] = 1.0, 0.995, -0.005
    frame["low"], frame["high"] = [-0.007, -0.02], [-0.003, 0.01]
    text = page(replace(found, gains=frame), TODAY)
    assert "worse by 0.5%, too little to matter: 0.995 against 1.000" in text
    assert "no clear difference: 0.995 against 1.000" in text


def test_what_to_do_next_has_a_figure_behind_it(found):
    steps = next_steps(found)
    assert any(deed == "Keep quality of items complete and correct." for deed, _ in steps)
    assert all(any(c.isdigit() for c in why) for _, why in steps)
    worse = replace(found, gains=gains(new_users__ndcg="baseline"))
    assert next_steps(worse)[0] == (
        "Use popularity instead for new users.",
        "NDCG@10 0.005 against 0.022.",
    )
    crowded = replace(found, listed={**found.listed, "top_share": 0.5})
    assert any("Ten items take 50%" in why for _, why in next_steps(crowded))
    holes = found.importance["items"].assign(missing=0.4)
    missing = replace(found, importance={**found.importance, "items": holes})
    assert any(deed == "Collect quality of more items." for deed, _ in next_steps(missing))


def test_the_lists_are_counted(tested, found):
    listed = found.listed
    lists = tested.model.recommend(k=10, exclude=tested.ratings, output="arrow")
    names = lists["item_id"].to_pylist()
    counted = Counter(names).most_common(10)
    assert listed["n_users"] == 150
    assert [round(top["share"] * 150) for top in listed["top"]] == [n for _, n in counted]
    assert listed["top_share"] == pytest.approx(sum(n for _, n in counted) / len(names))
    assert listed["coverage"] == pytest.approx(len(set(names)) / 180)


def test_the_planted_feature_carries_the_cold_start(found):
    items = found.importance["items"]
    assert items["column"].iloc[0] == "quality"
    assert items["column"].iloc[-1] == measures.ALL
    rise = items.set_index("column")["rise"]
    assert rise["quality"] > 5 * max(rise["noise"], rise["year"], 0.001)
    assert found.importance["users"]["column"].iloc[0] == "taste"


def about(found, kind):
    return {alert.about for alert in found.alerts if alert.kind == kind}


def test_alerts_find_what_was_planted(found):
    assert about(found, "leak") == set() and about(found, "data") == {"ratings"}


def test_a_feature_made_of_the_ratings_is_a_suspect(tested):
    model = TwoTower(bounds=(1, 5), embedding_dim=2, epochs=2)
    tables = {"items": tested.tables.items, "users": tested.tables.users}
    model.fit(tested.ratings, **tables)
    leaky = make_tested_model(model, tested.ratings, **tables, random_state=1)
    said = {alert.about: alert.what for alert in tested_model.leaks(leaky, "items")}
    assert "mean rating" in said["item: average"]
    assert "item: barcode" not in said
    assert list(tested_model.leaks(leaky, "users")) == []


def test_correlation_is_not_had_by_many_features():
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(rng.normal(size=(90, 25)))
    assert tested_model.correlation(X, rng.normal(size=90)) < 0.5
    assert tested_model.correlation(X, X @ np.arange(25.0) + 1) == pytest.approx(1)
    assert (
        tested_model.correlation(X[:60], X[:60, 0].toarray().ravel()) == 0
    )  # too few rows to tell


def test_the_page_says_first_what_counts_and_loads_nothing(text, tested):
    parsed = Parsed(text)
    assert set(SECTIONS) == parsed.ids
    links = {value for key, value in parsed.attributes if key == "href"}
    assert links == {f"#{key}" for key in SECTIONS}
    assert not [value for key, value in parsed.attributes if key in ("src", "srcset", "action")]
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert "script" not in parsed.tags and "link" not in parsed.tags
    words = " ".join(parsed.words)
    order = ["2024-05-17", "hip its", "NDCG@10 of lists and RMSE of ratings"]
    order += ["What to do next", "Warnings", "Most recommended"]
    assert [words.index(piece) for piece in order] == sorted(words.index(p) for p in order)
    assert tested.model.model_id_ in words
    assert f"{len(tested.split.train):,} of 6,000 ratings" in words
    assert not re.search(r"\b1 (ratings|items|users)", words)
    for bad in ("a item", "<unknown>", "\u22120.0%", "times as good", "Show such"):
        assert bad not in words


def drawn(name, *arguments):
    """Fill in a macro of the templates."""
    return getattr(environment().get_template("macros.html").module, name)(*arguments)


def test_names_are_only_text(text):
    assert "<script" not in text and "<img" not in text
    made = environment().from_string('<p title="{{ a }}">{{ b }}</p>').render(a='"', b="<b>")
    assert made == '<p title="&#34;">&lt;b&gt;</p>'
    assert "<i>" not in drawn("table", ["<i>", "<i>"], [["<i>", "<i>"]], "<i>")
    assert "<i>" not in drawn("bars", [("<i>", 1.0, "<i>")], "<i>")


def test_numbers_are_written_for_people():
    assert number(float("nan")) == "\u2013" and number(1234) == "1,234" and number(0.5) == "0.500"
    assert percent(-0.1234, 1, signed=True) == "\u221212.3%" and percent(float("nan")) == "\u2013"
    assert percent(-0.0001, 1, signed=True) == "0.0%"
    assert plural(1, "rating") == "1 rating" and plural(2, "item") == "2 items"
    assert rise(0.0751) == "by 7.5%" and rise(1.842) == "to 2.8 times as much"


@pytest.mark.parametrize(
    "absent", ["both", *(pytest.param(one, marks=pytest.mark.slow) for one in ("users", "items"))]
)
def test_without_features(saved, tmp_path, absent):
    ratings = str(saved / "ratings.parquet")
    given = {
        name: None if absent in (name, "both") else str(saved / f"{name}.parquet")
        for name in ("items", "users")
    }
    model = TwoTower(bounds=(1, 5), embedding_dim=2, epochs=3).fit(ratings, **given)
    model.save(tmp_path / "model")
    made = make_tested_model(
        TwoTower.load(tmp_path / "model"),
        Ratings.from_parquet(ratings),
        **given,
    )
    text = page(measure(made), TODAY)
    parsed = Parsed(text)
    assert parsed.ids == set(SECTIONS) - ({"features"} if absent == "both" else set())
    sides = ("items", "users") if absent == "both" else (absent,)
    for side in sides:
        assert f"no features of {side}" in text and f"Train with --{side}" in text
        assert f"Collect features of {side}." in text


@pytest.mark.slow
def test_interactions_without_ratings(saved, tmp_path):
    rows = pq.read_table(saved / "ratings.parquet")
    liked = rows.filter(pa.compute.greater_equal(rows["rating"], 4)).drop_columns(["rating"])
    ratings = Ratings.from_arrow(liked, rating=None)
    given = {name: str(saved / f"{name}.parquet") for name in ("items", "users")}
    model = TwoTower(embedding_dim=4)
    model.fit(ratings, **given).save(tmp_path / "model")
    made = make_tested_model(TwoTower.load(tmp_path / "model"), ratings, **given)
    found = measure(made)
    assert set(found.gains["metric"]) == {"ndcg@10"}
    errors = measures.errors_on(made, made.new("items"))(made.copy)
    assert set(errors) <= {0, 0.5, 1} and 0 < measures.mean_error(made, errors) < 0.5
    text = page(found, TODAY)
    assert Parsed(text).ids == set(SECTIONS)
    assert "share of wrong choices" in text and "atings of a" not in text
    assert "NDCG@10" in text and "RMSE" not in text and "interactions of" in text


def test_nothing_held_out(saved):
    text = page(measure(model_of(saved, cold_items=0.0, cold_users=0.0, warm=0.0)), TODAY)
    assert "Nothing was held out" in text
    assert "features" not in Parsed(text).ids
    assert "Model against" not in text


def test_command_line(saved, tmp_path, capsys):
    data = [w for n in ("ratings", "items", "users") for w in (f"--{n}", f"{saved / n}.parquet")]
    words = ["report", "--model", str(saved / "model"), *data, "--quiet"]
    out = tmp_path / "deep" / "report.html"
    options = ["--random-state", "3", "--json"]
    assert main([*words, "--out", str(out), *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["job"] == "report" and len(result["tasks"]) == 4 and result["warnings"]
    assert "hip its" in result["verdict"][0]
    text = out.read_text(encoding="utf-8")
    assert "split seed 3" in text and ">Film " in text
    # A report is replaced, anything else is not.
    cases = [
        ([*words, "--out", str(saved / "ratings.parquet")], "a report is an HTML page"),
        ([*words, "--out", str(tmp_path)], "is a directory"),
        ([*words[:5], "--out", str(out)], "give the table with --items"),
    ]
    for case, message in cases:
        assert main(case) == 2
        assert message in capsys.readouterr().err
    assert pq.read_table(saved / "ratings.parquet").num_rows == 6001


@pytest.mark.slow
def test_the_same_twice(saved, text):
    assert page(measure(model_of(saved)), TODAY) == text


def test_features_the_model_was_trained_with_are_needed(saved):
    with pytest.raises(InputError, match="--users"):
        model_of(saved, users=None)


@pytest.mark.slow
def test_bounds_of_a_model_without_are_those_of_all_ratings(tmp_path):
    """The lowest rating may be among those that are held out, and is folded in there."""
    data = make_synthetic(n_users=80, n_items=60, n_ratings=1200, random_state=2)
    frame = data.ratings.to_pandas()
    frame["rating"] = frame["rating"].clip(1.5, 4.5)
    split = cold_start_split(frame)
    held_out = split.new_users.to_arrow().to_pandas().iloc[0]
    pair = (frame["user_id"] == held_out["user_id"]) & (frame["item_id"] == held_out["item_id"])
    frame.loc[pair, "rating"] = 0.5
    model = TwoTower(embedding_dim=2, epochs=2).fit(frame, items=data.items, users=data.users)
    made = report(model, frame, tmp_path / "report.html", items=data.items, users=data.users)
    assert len(made["tasks"]) == 4 and (tmp_path / "report.html").exists()
    assert model.bounds is None
