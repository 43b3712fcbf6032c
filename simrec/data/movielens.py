"""MovieLens as GroupLens gives it away, in any of its versions."""

import os
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from simrec.data.ratings import Ratings
from simrec.errors import InputError

# The flags of u.item, as in the README file of the data.
_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance"),
    *("Sci-Fi", "Thriller", "War", "Western"),
)
_TEXTS = ("title", "genres", "occupation", "zip_code")
# Files of ratings, items and users by version, and columns of the latter two.
_RATINGS = ("user_id", "item_id", "rating", "timestamp")
_ITEMS = ("item_id", "title", "genres")
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "u.data": {
        "u.item": ("item_id", "title", "date", "video_date", "url", *_GENRES),
        "u.user": ("user_id", "age", "gender", "occupation", "zip_code"),
    },
    "ratings.dat": {
        "movies.dat": _ITEMS,
        "users.dat": ("user_id", "gender", "age", "occupation", "zip_code"),
    },
    "ratings.csv": {"movies.csv": _ITEMS},
}


class MovieLens(NamedTuple):
    """Ratings and features of `load_movielens`, as `TwoTower.fit` takes them."""

    ratings: Ratings
    items: pa.Table | None
    users: pa.Table | None


def load_movielens(path: str | os.PathLike[str]) -> MovieLens:
    r"""Read MovieLens from its directory, as it was downloaded.

    Parameters
    ----------
    path : str or path
        The directory: of ML-100K (`u.data`, `u.item`, `u.user`), of ML-1M and ML-10M
        (`ratings.dat`, `movies.dat`, `users.dat`), or of 20M, 25M, 32M and the latest ones
        (`ratings.csv`, `movies.csv`).

    Returns
    -------
    MovieLens
        A tuple of ratings, items (item_id, title, year, genres) and users (user_id, age, gender,
        occupation, zip_code); None for tables that are not there.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("ratings.csv").write_text("userId,movieId,rating,timestamp\n1,31,2.5,1260759144")
    >>> _ = Path("movies.csv").write_text("movieId,title,genres\n31,Heat (1995),Action|Crime")
    >>> ratings, items, users = load_movielens(".")
    >>> items.to_pylist()
    [{'item_id': 31, 'title': 'Heat (1995)', 'year': 1995, 'genres': ['Action', 'Crime']}]
    """
    root = Path(path)
    name = next((name for name in _FILES if (root / name).is_file()), None)
    if name is None:
        raise InputError(
            f"{root}: no MovieLens data: there is no u.data, ratings.dat or ratings.csv. Give the "
            "directory that was in the zip file."
        )
    ratings = Ratings.from_table(_read(root / name, _RATINGS), name=str(root / name))
    tables = {
        columns[0]: _read(root / file, columns)
        for file, columns in _FILES[name].items()
        if (root / file).is_file()
    }
    items = _items(tables["item_id"]) if "item_id" in tables else None
    return MovieLens(ratings, items, tables.get("user_id"))


def _read(path: Path, columns: tuple[str, ...]) -> pa.Table:
    """Read a file; `::` of .dat files is a tab, and what is not UTF-8 is Latin-1."""
    data, has_names = path.read_bytes(), path.suffix == ".csv"
    if path.suffix == ".dat":
        data = data.replace(b"::", b"\t")
    delimiter = {"u.item": "|", "u.user": "|"}.get(path.name, "," if has_names else "\t")
    if columns != _RATINGS:
        try:
            data.decode()
        except UnicodeDecodeError:
            data = data.decode("latin-1").encode()
    try:
        return csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=columns, skip_rows=int(has_names)),
            csv.ParseOptions(delimiter=delimiter, quote_char='"' if has_names else False),
            csv.ConvertOptions(column_types=dict.fromkeys(_TEXTS, pa.string())),
        )
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: not as MovieLens has it: {error}. Unpack it again.") from error


def _items(movies: pa.Table) -> pa.Table:
    """Make the table of items: the year is in the title, genres are flags or in a string."""
    if "genres" in movies.column_names:
        genres = movies["genres"]
        none = pc.is_in(genres, pa.array(["", "(no genres listed)"]))
        lists = pc.split_pattern(pc.if_else(none, pa.scalar(None, genres.type), genres), "|")
    else:
        flags = movies.select(_GENRES[1:]).to_pylist()
        lists = [[genre for genre, has in row.items() if has] or None for row in flags]
    year = pc.struct_field(pc.extract_regex(movies["title"], r"\((?P<year>\d{4})\)\s*$"), "year")
    columns = {"item_id": movies["item_id"], "title": movies["title"]}
    return pa.table({**columns, "year": year.cast(pa.int32()), "genres": lists})
