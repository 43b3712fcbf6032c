"""The report: its numbers on data with a planted truth, and what stands on the page."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simrec import InputError, Ratings, TwoTower
from simrec.artifacts import read_manifest
from simrec.cli import main
from simrec.evaluation.report import checks, cold, errors, results, summary
from simrec.evaluation.report.atlas import REST, atlas
from simrec.evaluation.report.examples import examples, reasons
from simrec.evaluation.report.findings import measure
from simrec.evaluation.report.html import Html, bars, number, percent, table, tag
from simrec.evaluation.report.levels import levels
from simrec.evaluation.report.page import page
from simrec.evaluation.report.subject import Probe, make_subject
from simrec.evaluation.report.svg import Line, line_chart, scatter

SECTIONS = [
    *("tasks", "revealed", "calibration", "popularity", "groups", "features", "map"),
    *("examples", "warnings", "data", "card"),
]
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
    model = TwoTower(**options, random_state=0).fit(ratings, items=items, users=users)
    model.save(root / "model")
    for name, rows in (("ratings", ratings), ("items", items), ("users", users)):
        pq.write_table(rows, root / f"{name}.parquet")
    return root


def subject_of(root, items="items", users="users", model="model", **options):
    read = {
        name: None if name is None else str(root / f"{name}.parquet") for name in (items, users)
    }
    return make_subject(
        TwoTower.load(root / model),
        read_manifest(root / model),
        Ratings.from_parquet(str(root / "ratings.parquet")),
        read[items],
        read[users],
        **options,
    )


@pytest.fixture(scope="module")
def subject(saved):
    return subject_of(saved)


@pytest.fixture(scope="module")
def findings(subject):
    return measure(subject)


@pytest.fixture(scope="module")
def text(findings):
    return page(findings)


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


def test_the_copy_has_the_settings_and_not_the_test_ratings(subject):
    assert subject.tested.get_params() | {"verbose": 0} == subject.model.get_params() | {
        "verbose": 0
    }
    assert subject.tested.item_counts_.sum() == len(subject.split.train)
    assert subject.model.item_counts_.sum() == len(subject.ratings)
    held_out = subject.split.new_items.items.ids
    assert (subject.tested.item_counts_[subject.tested.items_.rows(held_out)] == 0).all()


def test_four_tasks_beat_the_baselines(findings):
    tasks = findings.tasks.set_index("task")
    assert list(tasks.index) == ["warm", "new_items", "new_users", "new_both"]
    assert (tasks["rmse"] < tasks["rmse_bias"]).all()
    assert tasks["ndcg_popular"].between(0, 1).all()


def test_popularity_recommends_what_is_most_liked():
    ratings = Ratings.from_arrow(
        pa.table({"user_id": [1, 2, 3, 1], "item_id": [7, 7, 8, 9], "rating": [5.0, 5, 4, 1]})
    )
    popular = errors.Popularity(ratings, 4, 0)
    users, items = pa.array([1, 5]), pa.array([7, 8, 9])
    assert popular.recommend(users, 1, items)["item_id"].to_pylist() == [7, 7]
    found = popular.recommend(users, 2, items, ratings)
    assert found["item_id"].to_pylist() == [8, 7, 8]
    assert found["rank"].to_pylist() == [1, 1, 2]


def test_revealed_ratings_help_and_are_not_measured(subject, findings):
    frame = findings.revealed["user"]
    assert list(frame["revealed"]) == [0, 1, 2, 5, 10, 20]
    assert frame["n"].nunique() == 1
    assert frame["error"].iloc[-1] < frame["error"].iloc[0]
    (places, shown), rest, steps = cold._divide(subject.new("user"), "user", 0)
    assert steps[-1] == 20 and places.max() == 19
    count = np.bincount(shown.user_rows)
    assert (count == 20).all() and set(shown.users.ids) == set(rest.users.ids)
    pairs = [
        set(zip(*(r.to_arrow()[c].to_pylist() for c in ("user_id", "item_id")), strict=True))
        for r in (shown, rest)
    ]
    assert not pairs[0] & pairs[1]


def test_what_to_do_about_the_first_ratings():
    steps = [0, 1, 2, 5]
    assert "first 2 ratings give half" in results._advice(steps, [1.0, 0.95, 0.9, 0.82], "user")
    assert "first rating gives half" in results._advice(steps, [1.0, 0.8, 0.8, 0.8], "item")
    assert "add little" in results._advice(steps, [1.0, 1.0, 0.999, 0.999], "user")
    assert "up to 2 ratings it is worse" in results._advice(steps, [1.0, 1.1, 1.02, 0.9], "user")


def test_few_ratings_reveal_fewer_steps():
    user, item = np.repeat(np.arange(12), 8), np.tile(np.arange(8), 12)
    ratings = Ratings.from_arrow(pa.table({"user_id": user, "item_id": item, "rating": user % 5}))
    _, rest, steps = cold._divide(ratings, "user", 0)
    assert steps == (0, 1, 2) and len(rest) == 12 * 6
    assert cold._divide(ratings.select(ratings.item_rows < 3), "user", 0)[2] == ()


def test_intervals_hold_about_what_they_say(findings):
    frame = findings.calibration
    assert set(frame["nominal"]) == {0.5, 0.8, 0.9, 0.95}
    for _, part in frame.groupby("task"):
        assert part["observed"].is_monotonic_increasing
    assert frame.loc[frame["nominal"] == 0.95, "observed"].between(0.8, 1).all()


def test_errors_by_popularity_and_group(subject, findings):
    frame = findings.popularity
    assert frame["ratings_to"].iloc[-1] == 0
    assert frame["ratings_to"].iloc[:-1].is_monotonic_increasing
    assert frame["n"].iloc[:-1].sum() == len(subject.split.warm)
    assert frame["n"].iloc[-1] == len(subject.split.new_items)
    groups = findings.groups
    kinds = groups[groups["column"] == "kind"]
    assert set(kinds["level"]) == {"drama", "comedy", "crime"}
    assert kinds["n"].sum() == len(subject.split.new_items)
    pairs = subject.split.new_items.to_arrow()
    errors_ = subject.tested.predict(pairs) - pairs["rating"].to_numpy()
    assert np.average(kinds["lean"], weights=kinds["n"]) == pytest.approx(errors_.mean(), abs=1e-5)


def test_the_planted_feature_carries_the_cold_start(findings):
    items = findings.importance["item"]
    assert items["column"].iloc[0] == "quality"
    assert items["column"].iloc[-1] == cold.ALL
    rise = items.set_index("column")["rise"]
    assert rise["quality"] > 5 * max(rise["noise"], rise["year"], 0.001)
    assert findings.importance["user"]["column"].iloc[0] == "taste"


def warned(findings, kind):
    return {w.about for w in findings.warnings if w.kind == kind}


def test_warnings_find_what_was_planted(findings):
    nothing = warned(findings, "nothing")
    assert {"item: noise", "item: constant", "user: luck"} <= nothing
    assert not {"item: quality", "item: kind", "user: taste", "item: title"} & nothing
    assert warned(findings, "leak") == {"item: barcode"}
    assert warned(findings, "drift") == {"item: year"}


def test_a_feature_made_of_the_ratings_is_a_suspect(subject):
    model = TwoTower(bounds=(1, 5), embedding_dim=2, epochs=2)
    model.fit(subject.ratings, items=subject.items, users=subject.users)
    leaky = make_subject(
        model, {"model_id": "x"}, subject.ratings, subject.items, subject.users, seed=1
    )
    found = {w.about: w.what for w in checks.leaks(leaky, "item")}
    assert "mean rating" in found["item: average"]
    assert "identifies" in found["item: barcode"]
    assert checks.leaks(leaky, "user") == []


def test_drift_needs_more_than_chance():
    rng = np.random.default_rng(0)
    trained, new = np.arange(300) < 200, np.arange(300) >= 200
    for kind, values in (
        ("number", rng.normal(size=300)),
        ("category", rng.choice(list("abcdef"), 300)),
        ("list", [list(rng.choice(list("abc"), 2)) for _ in range(300)]),
        ("vector", list(rng.normal(size=(300, 3)))),
    ):
        column = pa.chunked_array([pa.array(list(values))])
        index, groups, tests = checks._stability(column, kind, trained, new)
        assert groups >= 2 and tests == {"list": 3, "vector": 3}.get(kind, 1)
        assert index < 0.5, kind
    moved = pa.chunked_array([pa.array(np.where(new, 2.0, 0.0) + rng.normal(size=300))])
    assert checks._stability(moved, "number", trained, new)[0] > 1


def test_levels():
    column = pa.chunked_array([pa.array([1, 2, 3, 4, None])])
    found = levels(column, "number", bins=2)
    assert list(found) == ["1 to 2", "3 to 4", "(missing)"]
    assert [int(mask.sum()) for mask in found.values()] == [2, 2, 1]
    column = pa.chunked_array([pa.array(["a", "b", "a", None, "c"])])
    found = levels(column, "category", most=2)
    assert found["a"].tolist() == [True, False, True, False, False]
    assert sum(mask.sum() for mask in found.values()) == 5
    column = pa.chunked_array([pa.array([["x", "y"], [], None, ["x"]])])
    assert levels(column, "list")["x"].tolist() == [True, False, False, True]
    days = pa.chunked_array([pa.array([0, 1, 9], pa.date32())])
    assert "1970-01-01" in next(iter(levels(days, "number", bins=2)))
    assert levels(column, "vector") == {}


def test_the_map_puts_like_beside_like(subject):
    found = atlas(subject)
    assert found.points.shape == (180, 2) and 0 < found.kept <= 1
    assert found.column == "kind" and set(found.labels) == {"drama", "comedy", "crime"}
    centres = [found.points[found.colours == i].mean(axis=0) for i in range(3)]
    apart = np.linalg.norm(centres[0] - centres[1])
    assert apart > np.linalg.norm(found.points[found.colours == 0].std(axis=0))
    few = atlas(subject, most=40)
    assert len(few.ids) == 40 and few.ids[:20] == found.ids[:20]
    assert not (found.colours == REST).any()


def test_examples_and_reasons(subject, findings):
    heavy, light, new = examples(subject)
    assert "many" in heavy.title and "few" in light.title and "new" in new.title
    assert all(len(example.items) == 5 for example in (heavy, light, new))
    for item in (*heavy.items, *new.items):
        assert 1 <= item.score <= 5
    assert any("taste" in reason.words for item in new.items for reason in item.reasons)
    why = pa.table(
        {
            "side": ["model", "item", "item", "user", "item"],
            "feature": ["mean", "kind", "average item", "how it was rated", "year"],
            "value": ["", "drama", "", "12 ratings", "1970"],
            "contribution": [3.0, -0.5, 2.0, 0.7, 0.001],
        }
    )
    found = reasons(why)
    assert [reason.words for reason in found] == [
        "how the user rated them",
        "kind of the item: drama",
    ]
    assert [reason.by for reason in found] == [0.7, -0.5]


def test_the_summary_counts(subject):
    counts = summary.counts(subject)
    assert counts["ratings"] == 6000 and counts["items with features and no rating"] == 30
    labels, bars_ = summary.rating_histogram(subject)
    assert labels == ["1", "2", "3", "4", "5"] and sum(bars_) == 6000
    columns = summary.columns(subject, "item").set_index("column")
    assert columns.loc["title", "use"] == "name" and columns.loc["constant", "distinct"] == 1
    assert subject.item_name == "title"


def test_the_page_has_every_section_and_loads_nothing(text, subject):
    parsed = Parsed(text)
    assert set(SECTIONS) <= parsed.ids
    links = {value for key, value in parsed.attributes if key == "href"}
    assert links == {f"#{key}" for key in SECTIONS}
    assert not [value for key, value in parsed.attributes if key in ("src", "srcset", "action")]
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert "script" not in parsed.tags and "link" not in parsed.tags
    words = " ".join(parsed.words)
    assert subject.manifest["model_id"] in words
    assert f"{len(subject.split.train):,} of 6,000 ratings" in words
    drawn = [value for key, value in parsed.attributes if key == "aria-label"]
    assert len(drawn) > 6 and all(drawn)


def test_names_are_only_text(text, findings):
    # The item with the evil name is named in the map; it is words, never markup.
    assert "&lt;script&gt;" in text
    assert "<script" not in text and "<img" not in text
    assert EVIL in " ".join(Parsed(text).words)
    assert tag("p", "<b>", title='"') == '<p title="&quot;">&lt;b&gt;</p>'
    assert "<i>" not in table(["<i>"], [["<i>", "<i>"]], "<i>")
    assert "<i>" not in bars([("<i>", 1.0, "<i>")], "<i>")
    assert "<i>" not in line_chart(["<i>"] * 2, [Line("<i>", [1, 2])], "<i>", "<i>", "<i>")
    points = np.random.default_rng(0).normal(size=(4, 2))
    assert "<i>" not in scatter(points, np.zeros(4, int), ["<i>"] * 4, [0, 1], ["<i>"] * 4, "<i>")
    assert isinstance(tag("p"), Html)


def test_numbers_are_written_for_people():
    assert number(float("nan")) == "\u2013" and number(1234) == "1,234" and number(0.5) == "0.500"
    assert percent(-0.1234, 1, signed=True) == "\u221212.3%" and percent(float("nan")) == "\u2013"


@pytest.mark.parametrize("absent", ["users", "items", "both"])
def test_without_features(saved, tmp_path, absent):
    ratings = str(saved / "ratings.parquet")
    given = {
        name: None if absent in (name, "both") else str(saved / f"{name}.parquet")
        for name in ("items", "users")
    }
    model = TwoTower(bounds=(1, 5), embedding_dim=2, epochs=3).fit(ratings, **given)
    model.save(tmp_path / "model")
    made = make_subject(
        TwoTower.load(tmp_path / "model"),
        read_manifest(tmp_path / "model"),
        Ratings.from_parquet(ratings),
        given["items"],
        given["users"],
    )
    text = page(measure(made))
    assert set(SECTIONS) <= Parsed(text).ids
    sides = ("items", "users") if absent == "both" else (absent,)
    for side in sides:
        assert f"The model has no features of {side}" in text
        assert f"made without a table of {side}" in text
        assert f"Train with --{side}" in text


def test_a_ranking_model(saved, tmp_path):
    tables = [str(saved / f"{name}.parquet") for name in ("ratings", "items", "users")]
    model = TwoTower(objective="ranking", embedding_dim=4, epochs=4)
    model.fit(tables[0], items=tables[1], users=tables[2]).save(tmp_path / "model")
    made = make_subject(
        TwoTower.load(tmp_path / "model"),
        read_manifest(tmp_path / "model"),
        Ratings.from_parquet(tables[0]),
        tables[1],
        tables[2],
    )
    found = measure(made)
    assert found.calibration is None and found.popularity is None
    assert found.importance["item"]["column"].iloc[0] in ("quality", "average")
    probe = Probe.of(made, made.new("item"), 0)
    assert 0 <= probe.error(made.tested) < 0.5
    text = page(found)
    assert set(SECTIONS) <= Parsed(text).ids
    assert text.count("This model ranks items and predicts no ratings") >= 3
    assert "NDCG@10" in text and "RMSE" not in text


def test_nothing_held_out(saved):
    made = subject_of(saved, cold_items=0.0, cold_users=0.0, warm=0.0)
    text = page(measure(made))
    assert set(SECTIONS) <= Parsed(text).ids
    assert "nothing was held out to measure on" in text


def test_command_line(saved, tmp_path, capsys):
    data = [w for n in ("ratings", "items", "users") for w in (f"--{n}", f"{saved / n}.parquet")]
    words = ["report", "--model", str(saved / "model"), *data, "--quiet"]
    out = tmp_path / "deep" / "report.html"
    assert main([*words, "--out", str(out), "--item-name", "kind", "--seed", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["job"] == "report" and len(result["tasks"]) == 4 and result["warnings"]
    text = out.read_text(encoding="utf-8")
    assert "split seed 3" in text and re.search(r'class="name"[^>]*>(drama|comedy|crime)<', text)
    # A report is replaced, anything else is not.
    cases = [
        ([*words, "--out", str(saved / "ratings.parquet")], "is no HTML page"),
        ([*words, "--out", str(tmp_path)], "is a directory"),
        ([*words[:5], "--out", str(out)], "give the table with --items"),
        ([*words, "--out", str(out), "--item-name", "nme"], "no column 'nme'"),
    ]
    for case, message in cases:
        assert main(case) == 2
        assert message in capsys.readouterr().err
    assert pq.read_table(saved / "ratings.parquet").num_rows == 6000


def test_the_same_twice(saved, text):
    assert page(measure(subject_of(saved))) == text


def test_features_the_model_was_trained_with_are_needed(saved):
    with pytest.raises(InputError, match="--users"):
        subject_of(saved, users=None)
