"""The pipeline files in pipelines/ run, and wrong ones are refused before anything starts."""

import pyarrow.parquet as pq
import pytest

from simrec import InputError
from simrec.jobs import pipeline

FILES = ["demo", "movielens", "new_items_for_all_users", "nightly_scoring"]


@pytest.fixture
def settings(tables, model_directory, tmp_path):
    """Options that point a pipeline file at the small tables, and its outputs elsewhere."""

    def options(name, file):
        sections = pipeline.read(file)
        table = {
            "ratings": "ratings",
            "items": "items",
            "users": "users",
            "pairs": "pairs",
            "exclude": "ratings",
        }
        found = []
        for section, values in sections.items():
            for key in values[0]:
                if key in table:
                    found.append(f"{section}.{key}={tables / table[key]}.parquet")
                elif key == "out":
                    found.append(f"{section}.out={tmp_path / section}")
                elif key == "model":
                    found.append(f"{section}.model={model_directory}")
                elif key == "bounds":
                    # A small model will do: what the jobs hand to each other is tested.
                    found += ["model.bounds=1,5", "model.epochs=2", "model.embedding_dim=2"]
        return found

    return options


def test_every_file_is_tested(repository):
    assert sorted(p.stem for p in (repository / "pipelines").glob("*.toml")) == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_pipeline_runs(repository, name, settings, tmp_path):
    file = repository / "pipelines" / f"{name}.toml"
    results = list(pipeline.run(file, settings(name, file), verbose=0))
    sections = [s for s in pipeline.read(file) if s not in ("data", "model", "engine")]
    assert [result["job"] for result in results] == sections
    for result in results:
        if result["job"] in ("score", "recommend"):
            out = pq.read_table(tmp_path / result["job"])
            assert out.num_rows == result["rows_out"] > 0


@pytest.mark.parametrize("name", [n for n in FILES if n != "movielens"])
def test_paths_of_the_sample_exist(repository, name):
    for section, tables in pipeline.read(repository / "pipelines" / f"{name}.toml").items():
        for key, value in tables[0].items():
            if key in ("ratings", "items", "users", "pairs", "exclude"):
                from pathlib import Path

                assert Path(value).exists(), f"[{section}] {key}"


def write(tmp_path, text):
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[date]\nratings='r'", r"unknown section \[date\]; did you mean 'data'"),
        ("[data]\nrating_s='r'", r"\[data\] has no option 'rating_s'; did you mean 'rating"),
        ("[model]\nembeding_dim=3", "did you mean 'embedding_dim'"),
        ("[model]\nembedding_dim='big'", r"\[model\] embedding_dim: expected an integer"),
        ("[model]\nbounds=[1]", "bounds: expected a list of 2"),
        ("[recommend]\nK=3", "did you mean 'k'|known:"),
        ("[score]\nmodel='m'\npairs='p'", r"\[score\] lacks 'out'"),
        ("[train]\nout='m'", r"\[data\] lacks 'ratings'"),
        ("[data]\nratings='r'", "no job in it"),
        ("[[train]]\nout='a'\n[[train]]\nout='b'", "only once"),
        ("score = 3", "must be a section"),
        ("[score", "not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        list(pipeline.run(write(tmp_path, text)))
    assert "pipeline.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.ratings", "expected section.option=value"),
        ("date.ratings=x", "unknown section 'date'"),
        ("data.rating_s=x", "did you mean"),
        ("model.embedding_dim=x", "expected an integer"),
    ],
)
def test_wrong_overrides_are_named(tmp_path, override, message):
    path = write(tmp_path, "[data]\nratings='r'\n[train]\nout='m'")
    with pytest.raises(InputError, match=message):
        pipeline.read(path, [override])


def test_values_and_paths(tmp_path):
    text = """
        [model]
        bounds = [1, 5]
        [data]
        ratings = "sub/r.parquet"
        items = "s3://bucket/items"
        [[score]]
        pairs = "/abs/p"
        out = "../o"
        """
    path = write(tmp_path, text)
    sections = pipeline.read(path, ["data.users=u.parquet", "model.embedding_dim=3"])
    assert sections["model"][0] == {"bounds": (1.0, 5.0), "embedding_dim": 3}
    assert sections["data"][0] == {
        "ratings": str(tmp_path / "sub" / "r.parquet"),
        "items": "s3://bucket/items",
        "users": "u.parquet",
    }
    assert sections["score"][0] == {"pairs": "/abs/p", "out": str(tmp_path.parent / "o")}


def test_several_jobs_of_a_kind_and_shared_engine_options(tmp_path, tables, model_directory):
    text = f"""
        [engine]
        part_rows = 400
        [[score]]
        model = "{model_directory}"
        pairs = "{tables}/pairs.parquet"
        out = "a"
        [[score]]
        model = "{model_directory}"
        pairs = "{tables}/pairs.parquet"
        out = "b"
        part_rows = 4000
        """
    first, second = pipeline.run(write(tmp_path, text))
    assert (first["parts"], second["parts"]) == (10, 1)


NIGHTLY = """
    [data]
    ratings = "{tables}/ratings.parquet"
    items = "{tables}/items.parquet"
    [model]
    epochs = 1
    embedding_dim = 1
    [train]
    out = "model"
    [score]
    pairs = "{pairs}"
    out = "scores/{{date}}"
    [recommend]
    k = 2
    out = "lists.csv"
    """


@pytest.mark.slow
def test_the_second_night(tmp_path, tables):
    rows = pq.read_table(tables / "pairs.parquet")
    pq.write_table(rows, tmp_path / "pairs.parquet")
    path = write(tmp_path, NIGHTLY.format(tables=tables, pairs=tmp_path / "pairs.parquet"))
    first = list(pipeline.run(path, verbose=0, date="2026-01-30"))
    # Another day: more pairs, other lists; and the same day once more.
    pq.write_table(rows.slice(0, 1000), tmp_path / "pairs.parquet")
    for day in ("2026-01-31", "2026-01-31"):
        second = list(pipeline.run(path, ["recommend.k=3"], verbose=0, date=day))
    assert [result["rows_out"] for result in first[1:]] == [4000, 120]
    assert [result["rows_out"] for result in second[1:]] == [1000, 180]
    assert sorted(p.name for p in (tmp_path / "scores").iterdir()) == ["2026-01-30", "2026-01-31"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("pairs.parquet", "absent.parquet"), r"\[score\] .*absent.parquet"),
        (("pairs.parquet", "items.parquet"), r"\[score\] .*items.parquet: no column 'user_id'"),
        (("lists.csv", "model"), r"\[recommend\] .*model: is .*model"),
        (
            ('out = "lists.csv"', 'out = "s"\n[[export]]\nformat = "parquet"\nout = "s"'),
            "output of",
        ),
        (("items = ", "users = "), r"\[train\] .*items.parquet: no column 'user_id'"),
        (("epochs = 1", "epochs = -1"), "epochs"),
        (("k = 2", "k = 2\nmodel = 'elsewhere'"), r"\[recommend\] .*elsewhere"),
    ],
)
def test_all_sections_are_checked_before_the_first_starts(tmp_path, tables, change, message):
    text = NIGHTLY.format(tables=tables, pairs=tables / "pairs.parquet")
    path = write(tmp_path, text.replace(*change))
    with pytest.raises(InputError, match=message):
        next(pipeline.run(path, verbose=0))
    assert not (tmp_path / "model").exists()
