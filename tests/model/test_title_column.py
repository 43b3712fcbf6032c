"""Which column of the items names them in printed lists."""

import pyarrow as pa
import pytest

from simrec.data.ids import IdMap
from simrec.model.catalogue import title_column, titles

LONG = pa.array(["about one " * 40, "about two " * 40])


@pytest.mark.parametrize("texts", [LONG, LONG.dictionary_encode()], ids=["string", "dictionary"])
def test_a_description_is_no_title(texts: pa.Array) -> None:
    assert title_column(pa.table({"description": texts})) is None
    assert title_column(pa.table({"description": texts, "app": ["one", "two"]})) == "app"
    assert title_column(pa.table({"title": texts})) == "title"


CODES = {
    "url": [f"https://shop.example/{name}" for name in "abcdefghij"],
    "sku": [f"AB-{row:04d}" for row in range(10)],
    "hash": [f"{row * 7919:08x}9f" for row in range(10)],
    "package": [f"com.example.{name}" for name in "abcdefghij"],
    "released": [f"{row + 1} January 199{row}" for row in range(10)],
    "day": [f"0{row}-Jan-1995" for row in range(10)],
}


@pytest.mark.parametrize("name", CODES)
def test_a_code_is_no_title(name: str) -> None:
    codes = {name: CODES[name]}
    apps = [f"{first} Maps 2" for first in ("Ana", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")]
    apps += ["300", "Zoë's café"]
    assert title_column(pa.table(codes)) is None
    assert title_column(pa.table(codes | {"app": apps})) == "app"


def test_a_column_called_after_titles_comes_first() -> None:
    people = [f"{first} Doe" for first in ("Ana", "Bo", "Cy")]
    films = {"director": people, "movie_title": ["Heat", "Ran", "Jaws"]}
    assert title_column(pa.table(films)) == "movie_title"


def test_entities_in_titles_are_characters() -> None:
    table = pa.table({"title": ["Les Mis&eacute;rables", "Tom &amp; Jerry", None]})
    items = IdMap.from_values([1, 2, 3])
    assert titles(table, items) == {1: "Les Misérables", 2: "Tom & Jerry"}
