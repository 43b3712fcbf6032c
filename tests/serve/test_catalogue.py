"""The items table is kept with the model."""

import pyarrow as pa
import pytest

from simrec import TwoTower
from simrec.errors import InputError


def test_kept_as_given_and_loaded(shop):
    again = TwoTower.load(shop.path)
    assert again.catalogue_.equals(shop.model.catalogue_)
    assert again.catalogue_.column_names == ["title", "genres", "year", "studio"]  # no vectors
    ids = shop.model.items_.ids.to_pylist()
    given = {row["item_id"]: row["title"] for row in shop.data.items.to_pylist()}
    assert again.titles() == {one: given[one] for one in ids}
    assert again.titles([ids[3], 10**9]) == {ids[3]: given[ids[3]]}


def test_grows_with_new_items_and_may_be_left_out(shop, tmp_path):
    model = TwoTower.load(shop.path)
    first = model.items_.ids[0].as_py()
    row = {"item_id": first - 1, "title": "Before all others", "year": 1999, "genres": ["War"]}
    model.fold_in(None, items=[row])
    assert model.titles([first - 1]) == {first - 1: "Before all others"}
    assert model.titles([first]) == shop.model.titles([first])
    model.save(tmp_path / "grown")
    assert TwoTower.load(tmp_path / "grown").titles([first - 1])
    model.catalogue_ = None
    model.save(tmp_path / "bare")
    assert TwoTower.load(tmp_path / "bare").titles() == {}


def test_a_damaged_table_is_refused(shop):
    from simrec.model import catalogue
    from simrec.storage.arrays import table_bytes

    class Damaged:
        arrays = {"catalogue": None}

        def array(self, *_):
            return table_bytes(pa.table({"title": ["a"]}))

    with pytest.raises(InputError, match="1 rows for 2 items"):
        catalogue.restored(Damaged(), 2)
