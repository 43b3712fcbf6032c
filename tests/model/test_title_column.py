"""Which column of the items names them in printed lists."""

import pyarrow as pa
import pytest

from simrec.model.catalogue import title_column

LONG = pa.array(["about one " * 40, "about two " * 40])


@pytest.mark.parametrize("texts", [LONG, LONG.dictionary_encode()], ids=["string", "dictionary"])
def test_a_description_is_no_title(texts: pa.Array) -> None:
    assert title_column(pa.table({"description": texts})) is None
    assert title_column(pa.table({"description": texts, "app": ["one", "two"]})) == "app"
    assert title_column(pa.table({"title": texts})) == "title"
