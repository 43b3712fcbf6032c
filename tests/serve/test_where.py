"""Filters as data."""

import datetime

import pyarrow as pa
import pytest

from simrec.errors import InputError
from simrec.model.answer.where import matches

FILMS = pa.table(
    {
        "year": pa.array([1990, None, 2000, 2010], pa.int32()),
        "price": [1.5, 2.5, None, 4.0],
        "studio": pa.array(["A", "B", None, "A"]).dictionary_encode(),
        "genres": [["War"], ["War", "Noir"], [], None],
        "tags": pa.array([[1], [2, 3], None, [3]], pa.list_(pa.int64())),
        "out": pa.array([datetime.date(1990, 1, 2), None, datetime.date(2000, 5, 5), None]),
        "sold": [True, False, None, True],
        "note": ["a|b", "b", None, "c"],
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"year": 2000}, [2]),
        ({"year": {">=": 1990, "<": 2000.5}}, [0, 2]),
        ({"year": [1990, 2010.0, 1.5]}, [0, 3]),
        ({"year": None}, [1]),
        ({"year": {"!=": None}}, [0, 2, 3]),
        ({"year": {"in": [None, 2000]}}, [1, 2]),
        ({"studio": "A", "price": {">": 2}}, [3]),
        ({"not": {"studio": "A"}}, [1, 2]),
        ({"or": [{"studio": "B"}, {"and": [{"sold": True}, {"price": {"<": 2}}]}]}, [0, 1]),
        ({"or": []}, []),
        ({"genres": {"contains": "War"}}, [0, 1]),
        ({"tags": {"contains": 3}}, [1, 3]),
        ({"note": {"contains": "b"}}, [0, 1]),
        ({"out": {">": "1995-01-01"}}, [2]),
        ({"out": {"<": datetime.date(1995, 1, 1)}}, [0]),
        ({"sold": False}, [1]),
    ],
)
def test_predicates(where, rows):
    assert matches(where, FILMS).nonzero()[0].tolist() == rows
    assert matches({"not": where}, FILMS).sum() == 4 - len(rows)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("year > 1990", r'expected conditions as in .*got "year > 1990"'),
        ({"yaer": 1}, "Did you mean 'year'"),
        ({"year": "new"}, 'holds numbers, and cannot be compared with "new"'),
        ({"year": True}, "cannot be compared with true"),
        ({"studio": {"like": "A"}}, "no operator 'like'"),
        ({"genres": "War"}, "contains"),
        ({"year": {"contains": 1}}, "takes text"),
        ({"year": {"contains": "1"}}, "cannot be applied"),
        ({"sold": {"in": 1}}, "takes a list, got 1"),
        ({"and": {"year": 1}}, "takes a list of predicates"),
        ({"out": "yesterday"}, "cannot be compared"),
        ({"year": list(range(10_001))}, "more than 10,000"),
        ({"__import__('os').system('x')": 1}, "no column"),
    ],
)
def test_mistakes_are_told(where, message):
    with pytest.raises(InputError, match=message):
        matches(where, FILMS)


def test_depth_is_bounded():
    where = {"year": 1}
    for _ in range(30):
        where = {"not": where}
    with pytest.raises(InputError, match="levels"):
        matches(where, FILMS)
