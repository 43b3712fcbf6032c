import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from simrec import InputError, TwoTower
from simrec.cli import main
from simrec.data.sides import Sides
from simrec.jobs import pipeline
from simrec.jobs.engine import batch as engine
from simrec.jobs.engine.batch import BatchOptions
from simrec.jobs.recommend import recommend
from simrec.model.head import JoinedHead


@pytest.fixture(scope="module")
def model(model_directory):
    return TwoTower.load(model_directory)


def brute_force(model, users, items, k, allowed=lambda user, item: True, /, **features):
    """Recommend by scoring every pair."""
    heads, shift = model.ranking("both")
    given = Sides(items, users)

    def vectors(side):
        found = model.towers_[side].find(given[side], features.get(side))
        return heads[side].of(found).astype(np.float64)

    scores = vectors("users") @ vectors("items").T + shift
    rows = []
    for user, row in zip(users, scores, strict=True):
        listed = [(-s, item) for s, item in zip(row, items, strict=True) if allowed(user, item)]
        for rank, (s, item) in enumerate(sorted(listed)[:k], start=1):
            rows.append((user, item, -s, rank))
    return rows


def as_rows(path):
    table = pq.read_table(path)
    assert table.column_names == ["user_id", "item_id", "score", "rank"]
    return [tuple(row.values()) for row in table.to_pylist()]


def same(found, expected):
    """Compare users, ranks and scores; items of equal scores may change places."""
    assert [(row[0], row[3]) for row in found] == [(row[0], row[3]) for row in expected]
    np.testing.assert_allclose(
        [r[2] for r in found], [r[2] for r in expected], rtol=1e-5, atol=1e-5
    )
    pairs = [row[:2] for row in found]
    assert len(set(pairs)) == len(pairs)
    last = {row[0]: row[2] for row in expected}
    moved = set(pairs) ^ {row[:2] for row in expected}
    for user, item, score, _ in (*found, *expected):
        assert (user, item) not in moved or score == pytest.approx(last[user], abs=1e-5)


def ids(path, column):
    return pq.read_table(path)[column].to_pylist()


def test_all_known_users(tables, model, model_directory, tmp_path):
    summary = recommend(model_directory, tmp_path / "out", k=4, exclude=None)
    users, items = (
        ids(tables / "users.parquet", "user_id"),
        ids(tables / "items.parquet", "item_id"),
    )
    same(as_rows(tmp_path / "out"), brute_force(model, users, items, 4))
    assert summary["rows_in"] == 60 and summary["rows_out"] == 240


def test_parts_and_memory_do_not_change_the_result(model_directory, tmp_path, monkeypatch):
    recommend(model_directory, tmp_path / "a", k=3)
    monkeypatch.setattr(engine, "MEMORY", 10**6)
    summary = recommend(model_directory, tmp_path / "b", k=3, batch=BatchOptions(part_rows=7))
    assert summary["parts"] == 9
    assert as_rows(tmp_path / "a") == as_rows(tmp_path / "b")


def test_large_arrays_live_in_files(tables, model_directory, tmp_path, monkeypatch):
    job = {
        "users": tables / "new_users.parquet",
        "items": tables / "new_items.parquet",
        "exclude": tables / "ratings.parquet",
        "k": 3,
    }
    recommend(model_directory, tmp_path / "a", **job)
    monkeypatch.setattr(engine, "MEMORY", 10)
    recommend(model_directory, tmp_path / "b", **job)
    assert as_rows(tmp_path / "a") == as_rows(tmp_path / "b")
    assert not list((tmp_path / "b").rglob("*.npy"))


def test_seen_items_are_left_out(tables, model, model_directory, tmp_path):
    ratings = tables / "ratings.parquet"
    recommend(model_directory, tmp_path / "out", k=5)
    seen = {(r["user_id"], r["item_id"]) for r in pq.read_table(ratings).to_pylist()}
    found = as_rows(tmp_path / "out")
    recommend(model_directory, tmp_path / "again", k=5, exclude=ratings)
    assert as_rows(tmp_path / "again") == found
    assert not seen & {row[:2] for row in found}
    users, items = (
        ids(tables / "users.parquet", "user_id"),
        ids(tables / "items.parquet", "item_id"),
    )
    same(found, brute_force(model, users, items, 5, lambda u, i: (u, i) not in seen))


@pytest.mark.parametrize("catalogue", [False, True])
def test_what_is_left_out_is_what_the_model_leaves_out(
    tables, model, model_directory, tmp_path, catalogue
):
    """Rated, rated and a table, or nothing; in batches and in other orders of the items."""
    items = pq.read_table(tables / "items.parquet")
    more = pq.read_table(tables / "pairs.parquet").slice(0, 500).select(["user_id", "item_id"])
    pq.write_table(more, tmp_path / "more.parquet")
    given = {}
    if catalogue:
        rows = np.random.default_rng(0).permutation(50)[:30]
        items = items.take(pa.array(rows))
        pq.write_table(items, tmp_path / "items.parquet")
        given = {"items": tmp_path / "items.parquet"}
    batch = BatchOptions(part_rows=7)
    lists = []
    for n, exclude in enumerate(("rated", None, tmp_path / "more.parquet")):
        out = tmp_path / f"{n}.parquet"
        recommend(model_directory, out, k=20, exclude=exclude, **given, batch=batch)
        lists.append(as_rows(out))
        expected = model.recommend(k=20, items=items, exclude=exclude, output="arrow")
        same(lists[-1], [tuple(row.values()) for row in expected.to_pylist()])
    pairs = [{row[:2] for row in found} for found in lists]
    rated = {
        tuple(row.values())[:2] for row in pq.read_table(tables / "ratings.parquet").to_pylist()
    }
    listed = {tuple(row.values()) for row in more.to_pylist()}
    assert not pairs[0] & rated and pairs[1] & rated
    assert pairs[0] & listed and not pairs[2] & (rated | listed)


def test_the_options_that_rank(tables, model, model_directory, tmp_path, capsys):
    words = ["recommend", "--model", str(model_directory), "--k", "50", "--quiet"]
    assert main([*words, "--exclude", "none", "--out", str(tmp_path / "all")]) == 0
    assert len(as_rows(tmp_path / "all")) == 60 * 50
    assert main([*words, "--rank-by", "rating", "--out", str(tmp_path / "rating")]) == 0
    expected = model.recommend(k=50, rank_by="rating", output="arrow")
    same(as_rows(tmp_path / "rating"), [tuple(row.values()) for row in expected.to_pylist()])
    with pytest.raises(SystemExit):
        main([*words, "--rank-by", "taste", "--out", str(tmp_path / "x")])
    assert "one of both, rating, uptake" in capsys.readouterr().err
    assert main([*words, "--exclude", "absent", "--out", str(tmp_path / "x")]) == 2
    assert "exclude (absent): no such file" in capsys.readouterr().err
    for exclude, rows in (("rated", 60 * 50 - 900), ("none", 60 * 50)):
        text = f"[recommend]\nmodel='{model_directory}'\nexclude='{exclude}'\nk=50\nout='{rows}'"
        (tmp_path / "pipeline.toml").write_text(text)
        (summary,) = pipeline.run(tmp_path / "pipeline.toml")
        assert summary["rows_out"] == rows


def test_vectors_of_two_parts_are_joined_for_those_in_flight_only(
    tables, model_directory, tmp_path, monkeypatch
):
    both = TwoTower.load(model_directory)
    assert set(both.parts_) >= {"rating", "uptake"} and len(both.blend_.factors) > 1
    new = tables / "new_items.parquet"
    given = [{"rank_by": "both"}, {"rank_by": "uptake"}, {"items": new}]
    expected = [both.recommend(k=5, **options, output="arrow") for options in given]

    monkeypatch.setattr(JoinedHead, "vectors", property(lambda self: pytest.fail("all joined")))
    monkeypatch.setattr(engine, "MEMORY", 10)
    for n, options in enumerate(given):
        batch = BatchOptions(part_rows=7)
        recommend(model_directory, tmp_path / str(n), k=5, **options, batch=batch)
        same(as_rows(tmp_path / str(n)), [tuple(r.values()) for r in expected[n].to_pylist()])
    assert as_rows(tmp_path / "0") != as_rows(tmp_path / "1")
    only = tmp_path / "only"
    recommend(model_directory, only, k=5, new_items_only=True)
    assert {row[1] for row in as_rows(only)} <= {f"i{k}" for k in range(40, 50)}


def test_new_users_and_a_catalogue_with_new_items(tables, model, model_directory, tmp_path):
    catalogue = pa.concat_tables(
        [
            pq.read_table(tables / "new_items.parquet"),
            pq.read_table(tables / "items.parquet").slice(5, 10),
        ]
    )
    pq.write_table(catalogue, tmp_path / "catalogue.parquet")
    summary = recommend(
        model_directory,
        tmp_path / "out",
        users=tables / "new_users.parquet",
        items=tmp_path / "catalogue.parquet",
        k=3,
    )
    assert summary["new_users"] == 8
    expected = brute_force(
        model,
        ids(tables / "new_users.parquet", "user_id"),
        catalogue["item_id"].to_pylist(),
        3,
        items=catalogue,
        users=pq.read_table(tables / "new_users.parquet"),
    )
    same(as_rows(tmp_path / "out"), expected)


def test_new_items_only(tables, model_directory, tmp_path):
    recommend(model_directory, tmp_path / "known", k=20, new_items_only=True)
    unrated = {f"i{k}" for k in range(40, 50)}
    found = as_rows(tmp_path / "known")
    assert {row[1] for row in found} == unrated and len(found) == 600
    recommend(
        model_directory,
        tmp_path / "catalogue",
        items=tables / "new_items.parquet",
        new_items_only=True,
    )
    assert {row[1] for row in as_rows(tmp_path / "catalogue")} == {f"n{k}" for k in range(8)}


def test_unknown_users(tables, model_directory, tmp_path):
    pq.write_table(pa.table({"user_id": [100, 5]}), tmp_path / "users.parquet")
    users = tmp_path / "users.parquet"
    with pytest.raises(InputError, match="users.parquet .*user 5 has neither ratings nor features"):
        recommend(model_directory, tmp_path / "out", users=users)
    assert [p.name for p in tmp_path.iterdir()] == ["users.parquet"]
    recommend(model_directory, tmp_path / "skip", users=users, unknown="skip", k=2)
    assert {row[0] for row in as_rows(tmp_path / "skip")} == {100}
    recommend(model_directory, tmp_path / "prior", users=users, unknown="prior", k=2)
    assert {row[0] for row in as_rows(tmp_path / "prior")} == {100, 5}


def test_bad_options(model_directory, tables, tmp_path):
    with pytest.raises(InputError, match="k: expected at least 1"):
        recommend(model_directory, tmp_path / "out", k=0)
    pq.write_table(pa.table({"item_id": ["zz"]}), tmp_path / "items.parquet")
    with pytest.raises(InputError, match="no column 'user_id'"):
        recommend(model_directory, tmp_path / "out", exclude=tmp_path / "items.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["items.parquet"]


def test_int_items_stay_ints(model_directory, tmp_path):
    recommend(model_directory, tmp_path / "out", k=1)
    schema = pq.read_schema(next((tmp_path / "out").glob("part-*")))
    assert schema.field("user_id").type == pa.int64()
    assert schema.field("item_id").type == pa.string()
    assert pc.all(pc.equal(pq.read_table(tmp_path / "out")["rank"], 1)).as_py()


@pytest.mark.parametrize("rows", [1, 1000])
def test_users_that_occur_twice_are_refused_wherever_batches_end(
    tables, model_directory, tmp_path, rows
):
    users = pq.read_table(tables / "users.parquet")
    twice = pa.concat_tables([users, users.slice(0, 1)])
    pq.write_table(twice, tmp_path / "users.parquet", row_group_size=rows)
    batch = BatchOptions(part_rows=rows)
    with pytest.raises(InputError, match="1 rows repeat the user_id of another, such as"):
        recommend(model_directory, tmp_path / "out", users=tmp_path / "users.parquet", batch=batch)
