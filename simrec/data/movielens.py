"""MovieLens as GroupLens gives it away, in any of its versions."""

import os
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from simrec.data.ratings import Ratings
from simrec.data.tables import read_table
from simrec.errors import InputError

_RATINGS = ("user_id", "item_id", "rating", "timestamp")
# The flags of u.item, and what users.dat numbers, as in the README files of the data.
_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance"),
    *("Sci-Fi", "Thriller", "War", "Western"),
)
_OCCUPATIONS = (
    *("other", "academic/educator", "artist", "clerical/admin", "college/grad student"),
    *("customer service", "doctor/health care", "executive/managerial", "farmer", "homemaker"),
    *("K-12 student", "lawyer", "programmer", "retired", "sales/marketing", "scientist"),
    *("self-employed", "technician/engineer", "tradesman/craftsman", "unemployed", "writer"),
)


class MovieLens(NamedTuple):
    """Ratings and features of `load_movielens`, as `TwoTower.fit` takes them.

    Items have item_id, title, year and genres; users, in the versions that have them, user_id, age,
    gender, occupation and zip_code.
    """

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
        A tuple of ratings, items and users; None for tables that are not there.

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
    items = users = None
    if (root / (name := "u.data")).is_file():
        columns = ("item_id", "title", "date", "video_date", "url", *_GENRES)
        movies = _read(root / "u.item", columns, "|")
        if movies is not None:
            flags = zip(*(movies[genre].to_pylist() for genre in _GENRES[1:]), strict=True)
            named = ([g for g, has in zip(_GENRES[1:], row, strict=True) if has] for row in flags)
            genres = pa.chunked_array([["|".join(one) for one in named]], pa.string())
            items = _items(movies["item_id"], movies["title"], genres)
        about = ("user_id", "age", "gender", "occupation", "zip_code")
        users = _read(root / "u.user", about, "|")
        ratings = _read(root / name, _RATINGS)
    elif (root / (name := "ratings.dat")).is_file():
        ratings = _read(root / name, _RATINGS)
        movies = _read(root / "movies.dat", ("item_id", "title", "genres"))
        items = None if movies is None else _items(*movies.columns)
        users = _read(root / "users.dat", ("user_id", "gender", "age", "occupation", "zip_code"))
        if users is not None:
            named = pa.array(_OCCUPATIONS).take(users["occupation"].combine_chunks())
            users = users.set_column(3, "occupation", named)
    elif (root / (name := "ratings.csv")).is_file():
        ratings = read_table(root / name, rename={"userId": "user_id", "movieId": "item_id"})
        if (root / "movies.csv").is_file():
            items = _items(*read_table(root / "movies.csv", ("movieId", "title", "genres")).columns)
    else:
        raise InputError(
            f"{root}: no MovieLens data: there is no u.data, ratings.dat or ratings.csv. Give the "
            "directory that was in the zip file."
        )
    return MovieLens(Ratings.from_table(ratings, name=str(root / name)), items, users)


def _read(path: Path, columns: tuple[str, ...], delimiter: str = "\t") -> pa.Table | None:
    """Read a file without a row of names, `::` as a tab; None if there is none."""
    if not path.is_file():
        return None
    data = path.read_bytes().replace(b"::", b"\t")
    if columns != _RATINGS:
        try:
            data.decode()
        except UnicodeDecodeError:
            data = data.decode("latin-1").encode()
    try:
        return csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=columns),
            csv.ParseOptions(delimiter=delimiter, quote_char=False),
            csv.ConvertOptions(column_types={"zip_code": pa.string(), "title": pa.string()}),
        )
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: not as MovieLens has it: {error}. Unpack it again.") from error


def _items(ids: pa.ChunkedArray, titles: pa.ChunkedArray, genres: pa.ChunkedArray) -> pa.Table:
    """Make the table of items: the year is in the title, genres are in a string."""
    year = pc.struct_field(pc.extract_regex(titles, r"\((?P<year>\d{4})\)\s*$"), "year")
    none = pc.is_in(genres, pa.array(["", "(no genres listed)"]))
    lists = pc.split_pattern(pc.if_else(none, pa.scalar(None, genres.type), genres), "|")
    columns = {"item_id": ids, "title": titles, "year": year.cast(pa.int32()), "genres": lists}
    return pa.table(columns)
