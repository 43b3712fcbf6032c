"""MovieLens in the formats it is given away in, also as a model takes it."""

import numpy as np
import pytest

from simrec import InputError, TwoTower, load_movielens

RATINGS = [(196, 242, 3, 881250949), (186, 302, 3, 891717742), (196, 302, 5, 881250950)]
HEAT = {"item_id": 242, "title": "Heat (1995)", "year": 1995, "genres": ["Action", "Crime"]}
CAFE = {"item_id": 302, "title": "Café au lait (1993)", "year": 1993, "genres": None}


def ml_100k(root):
    lines = ["\t".join(map(str, row)) for row in RATINGS]
    (root / "u.data").write_text("\n".join(lines) + "\n")
    flags = "0|1|0|0|0|0|1" + "|0" * 12
    films = [f"242|Heat (1995)|15-Dec-1995||http://us.imdb.com/M/title-exact?Heat%20(1995)|{flags}"]
    films.append(f"302|Café au lait (1993)|01-Jan-1993|||1{'|0' * 18}")
    (root / "u.item").write_bytes(("\n".join(films) + "\n").encode("latin-1"))
    (root / "u.user").write_text("186|39|F|executive|00000\n196|49|M|writer|55105\n")


def ml_1m(root):
    lines = ["::".join(map(str, row)) for row in RATINGS]
    (root / "ratings.dat").write_text("\n".join(lines) + "\n")
    films = "242::Heat (1995)::Action|Crime\n302::Café au lait (1993)::(no genres listed)\n"
    (root / "movies.dat").write_bytes(films.encode("latin-1"))
    (root / "users.dat").write_text("186::F::35::7::00000\n196::M::45::20::55105-1234\n")


def ml_10m(root):
    ml_1m(root)
    (root / "users.dat").unlink()
    films = "242::Heat (1995)::Action|Crime\n302::Café au lait (1993)::(no genres listed)\n"
    (root / "movies.dat").write_bytes(films.encode("utf-8"))


def ml_25m(root):
    lines = ["userId,movieId,rating,timestamp", *(",".join(map(str, row)) for row in RATINGS)]
    (root / "ratings.csv").write_text("\n".join(lines) + "\n")
    films = 'movieId,title,genres\n242,Heat (1995),Action|Crime\n302,"Café au lait (1993)",'
    (root / "movies.csv").write_text(films + "(no genres listed)\n", encoding="utf-8")


@pytest.mark.parametrize("version", [ml_100k, ml_1m, ml_10m, ml_25m])
def test_each_version(version, tmp_path):
    version(tmp_path)
    data = load_movielens(tmp_path)
    rows = [tuple(row.values()) for row in data.ratings.to_arrow().to_pylist()]
    assert rows == RATINGS
    assert data.items.to_pylist() == [HEAT, CAFE]
    assert (data.users is not None) == (version in (ml_100k, ml_1m))
    if data.users is not None:
        women = data.users.slice(0, 1).to_pylist()[0]
        assert women.pop("age") in (35, 39) and women.pop("occupation") in ("executive", "7")
        assert women == {"user_id": 186, "gender": "F", "zip_code": "00000"}


def test_tables_that_are_not_there(tmp_path):
    ml_100k(tmp_path)
    (tmp_path / "u.item").unlink()
    (tmp_path / "u.user").unlink()
    ratings, items, users = load_movielens(str(tmp_path))
    assert len(ratings) == 3 and items is None and users is None


def test_a_directory_of_something_else(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"no MovieLens data.*u\.data, ratings\.dat or"):
            load_movielens(path)


def test_a_model_takes_them(tmp_path):
    rng = np.random.default_rng(0)
    pairs = rng.permutation(40 * 30)[:400]
    rows = zip(pairs // 30 + 1, pairs % 30 + 1, rng.integers(1, 6, 400), pairs, strict=True)
    (tmp_path / "ratings.dat").write_text("".join("{}::{}::{}::{}\n".format(*row) for row in rows))
    genres = ["Action", "Crime", "Drama"]
    films = (f"{i}::Film {i} ({1980 + i})::{genres[i % 3]}|War\n" for i in range(1, 31))
    (tmp_path / "movies.dat").write_text("".join(films))
    people = (f"{u}::{'MF'[u % 2]}::{18 + u % 3}::{u % 5}::0{u}\n" for u in range(1, 41))
    (tmp_path / "users.dat").write_text("".join(people))
    ratings, items, users = load_movielens(tmp_path)
    model = TwoTower(embedding_dim=2, epochs=2, folds=2, random_state=0)
    model.fit(ratings, items=items, users=users)
    seen = model.describe().set_index("column")
    assert seen.loc["genres", "read_as"] == "list" and seen.loc["year", "used"] == "yes"
    assert seen.loc["occupation", "read_as"] == "category"
    new = {"item_id": 99, "title": "New", "year": 1999, "genres": ["War"]}
    assert np.isfinite(model.predict([1], [99], items=new)).all()
