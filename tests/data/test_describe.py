"""How columns were read is shown: from Python, where a model is trained, and as a warning."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

from simrec import InputError, TwoTower
from simrec.cli import main

NAMES = ["side", "column", "read_as", "example", "values", "missing", "used"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """CSV files of a shop, whose ids have names of their own."""
    root, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    n_items, n_users = 30, 40
    pairs = rng.permutation(n_items * n_users)[:400]
    ratings = {"uid": pairs % n_users, "asin": pairs // n_users, "rating": rng.integers(1, 6, 400)}
    items = {
        "asin": np.arange(n_items),
        "price": ["unknown" if i % 9 == 0 else f"{i}.50" for i in range(n_items)],
        "tags": ["new|sale" if i % 2 else "new" for i in range(n_items)],
        "plot": [f"a story of {i} men and number {i * i}" for i in range(n_items)],
        "empty": [None] * n_items,
    }
    users = {"uid": np.arange(n_users), "born": pd.date_range("1980-01-01", periods=n_users)}
    for name, table in (("ratings", ratings), ("items", items), ("users", users)):
        pd.DataFrame(table).to_csv(root / f"{name}.csv", index=False)
    return root


def arguments(root, out):
    files = [f"--{name}={root / f'{name}.csv'}" for name in ("ratings", "items", "users")]
    names = ["--user-id=uid", "--item-id=asin", "--embedding-dim=2", "--epochs=2", "--folds=2"]
    return ["train", *files, *names, f"--out={out}"]


def test_train_shows_how_columns_were_read(tables, tmp_path, capsys, caplog):
    out = tmp_path / "result.json"
    assert main([*arguments(tables, tmp_path / "model"), f"--json={out}"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[1]: line for line in shown.splitlines() if line.startswith(("it", "us"))}
    assert "the id" in lines["asin"] and "the id" in lines["uid"]
    assert "number in text" in lines["price"] and "unknown" in lines["price"]
    assert "list split at '|'" in lines["tags"] and lines["tags"].endswith("yes")
    assert "words in lists" in lines["plot"] and "no row has a value" in lines["empty"]
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("'empty' is ignored: no row has a" in record.getMessage() for record in warned)
    rows = json.loads(out.read_text())["features"]
    assert list(rows[0]) == NAMES and [row["column"] for row in rows[-2:]] == ["uid", "born"]
    model = TwoTower.load(tmp_path / "model")
    assert model.describe("arrow").to_pylist() == rows


def test_from_python(tables, caplog):
    read = {name: pd.read_csv(tables / f"{name}.csv") for name in ("ratings", "items", "users")}
    ratings, items, users = (
        table.rename(columns={"uid": "user_id", "asin": "item_id"}) for table in read.values()
    )
    model = TwoTower(embedding_dim=2, epochs=2, folds=2, item_columns={"tags": "ignore"})
    with pytest.raises(InputError, match="fit"):
        model.describe()
    model.fit(ratings, items=items, users=users)
    told = [record for record in caplog.records if "is ignored" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert "'empty'" in told[0].getMessage()  # what was asked for needs no warning
    table = model.describe()
    assert isinstance(table, pd.DataFrame) and list(table) == NAMES
    price = table.set_index("column").loc["price"]
    assert price.to_list() == ["items", "number in text", "unknown", 27, 0, "yes"]
    assert table.set_index("column").loc["tags", "used"] == "as asked"
    assert table["values"].dtype == "Int64"
    lines = str(table).splitlines()
    assert len(lines) == 2 + len(table) and "..." not in str(table)
    assert "<td>as asked</td>" in table._repr_html_()
    bare = TwoTower(embedding_dim=2, epochs=2, folds=2).fit(ratings)
    assert len(bare.describe()) == 0
