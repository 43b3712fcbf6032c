"""Recommend and audience: users in, the k best items of each out; and items in, their users.

Also one list to look at, with titles: of a user, or of a newcomer with a few ratings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from simrec.console import Id
from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, BatchTask, run_batch
from simrec.jobs.io.entities import Candidates, ItemLists, Unknown, entity_source
from simrec.jobs.io.inputs import ModelReference, RankBy, open_table
from simrec.jobs.io.outputs import Scratch, check_apart
from simrec.jobs.options import Path
from simrec.model.answer.recommend import exclusions
from simrec.model.catalogue import TITLES, title_column, titles
from simrec.model.head import Found
from simrec.model.tower import Tower, unique_ids
from simrec.scoring.topk import top_k

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower


@dataclass(frozen=True)
class RecommendTask(BatchTask):
    """Find the k best candidates for each user."""

    model: ModelReference
    candidates: Candidates
    rank_by: RankBy
    k: int
    unknown: Unknown
    rated: bool  # leave out what a user has rated
    exclude: ItemLists | None  # and this
    threads: int | None

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return user_id, item_id, score and rank for each user of a batch."""
        users, found_users, counts = self._find(table)
        heads, shift = self.model.load().ranking(self.rank_by)
        vectors = self.candidates.vectors
        k = min(self.k, len(vectors))  # no more memory than there are items
        if len(users) and k:
            seen = self._seen(users, found_users)
            queries = heads.users.of(found_users)
            best, z = top_k(queries, vectors, k, seen, threads=self.threads)
        else:
            best, z = np.empty((len(users), 0), np.int64), np.empty((len(users), 0), np.float32)
        rows, rank = np.nonzero(best >= 0)
        columns = [
            users.take(pa.array(rows)),
            self.candidates.ids.take(best[rows, rank]),
            pa.array(z[rows, rank] + np.float32(shift)),
            pa.array((rank + 1).astype(np.int32)),
        ]
        counts["users_with_fewer_than_k"] = int(((best >= 0).sum(axis=1) < self.k).sum())
        return pa.table(columns, schema=self.schema), counts

    def _find(self, table: pa.Table) -> tuple[pa.ChunkedArray, Found, dict[str, int]]:
        """Look users up: known ones, new ones by their features, others as the policy says."""
        tower = self.model.load().towers_.users
        ids = table["user_id"]
        found = tower.find(ids, table, "error" if self.unknown == "error" else "prior")
        n = int(found.average.sum())
        n_new = int((found.rows >= found.n_known).sum()) - n
        if n and self.unknown == "skip":
            keep = ~found.average
            ids = ids.filter(pa.array(keep))
            found = found.take(keep)
        return ids, found, {"new_users": n_new, "unknown_users": n}

    def _seen(self, users: pa.ChunkedArray, found: Found) -> sp.csr_matrix | None:
        """Return what is not to be recommended, users x candidates; None for nothing."""
        listed = None if self.exclude is None else self.exclude.matrix(users)
        if not self.rated:
            return listed
        candidates = pa.chunked_array([self.candidates.ids.ids]), self.candidates.found
        rated = exclusions(Sides(candidates, (users, found)), self.model.load().rated_, None)
        return rated if listed is None else sp.csr_matrix(rated + listed)


def recommend(
    model: Path,
    out: Path | None = None,
    *,
    user: str | None = None,
    new_user: Path | None = None,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    exclude: Path | Literal["rated"] | None = "rated",
    rank_by: RankBy = "both",
    new_items_only: bool = False,
    unknown: Unknown = "error",
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Find the best items for each user, or for one and print them.

    Parameters
    ----------
    user : str, optional
        Id of one user, whose list is printed with titles; nothing is written.
    new_user : path, optional
        A few ratings of one new user (item_id, rating), whose list is printed likewise.
    items : path, optional
        The catalogue: item_id, with features for new ones; all known items by default.
    users : path, optional
        Users to recommend for: user_id, with features for new ones; all known users by default.
    k : int
        Items per user.
    exclude : "rated", path or None
        What not to recommend: rated, what each user has rated; a table of user_id and item_id,
        those pairs as well; or none, to leave nothing out.
    new_items_only : bool
        Recommend only items without any rating in training.
    unknown : str
        What to do with a user without ratings and features: error, prior (an average user) or skip.
    """
    if k < 1:
        raise InputError(f"k: expected at least 1, got {k}")
    one = user is not None or new_user is not None
    if (out is None) != one:
        raise InputError(
            "recommend: give either out, where lists are written, or a user or new_user, whose "
            "list is printed; not both."
        )
    asked: dict[str, Any] = {"k": k, "rank_by": rank_by, "new_items_only": new_items_only}
    if out is None:
        tables = {"items": items, "users": users, "exclude": exclude}
        asked["unknown"] = "prior" if unknown == "prior" else "error"
        return _recommend_one(model, user, new_user, tables, asked)
    seen = None if exclude == "rated" else exclude
    given = {"items": items, "exclude": seen}
    check_apart(out, model=model, users=users, **given)
    reference = ModelReference.of(model)
    own = reference.columns
    sources = {
        name: None if path is None else open_table(path, name, own) for name, path in given.items()
    }
    loaded = reference.load()
    heads, _ = loaded.ranking(rank_by)
    source = entity_source(loaded.towers_.users, users, own)
    job = {
        "job": "recommend",
        **asked,
        "rated": exclude is not None,
        "unknown": unknown,
        **{name: table and table.identity() for name, table in sources.items()},
    }

    def prepare(scratch: Scratch) -> RecommendTask:
        tower = loaded.towers_.items
        candidates = Candidates.collect(
            tower, heads.items, sources["items"], new_items_only, scratch
        )
        schema = pa.schema(
            [
                (own.user_id, source.schema.field("user_id").type),
                (own.item_id, candidates.ids.type),
                ("score", pa.float32()),
                ("rank", pa.int32()),
            ]
        )
        listed = None
        if (pairs := sources["exclude"]) is not None:
            listed = ItemLists.read(pairs, "exclude", candidates.ids, scratch)
        return RecommendTask(
            reference,
            candidates,
            rank_by,
            k,
            unknown,
            rated=exclude is not None,
            exclude=listed,
            # On a cluster each part has one processor; here a part uses them all.
            threads=1 if batch.engine == "ray" else None,
            columns=tuple(source.schema.names),
            schema=schema,
        )

    if batch.engine == "local":
        batch = replace(batch, workers=batch.workers or 1)
    # Features of a user, the results with ids, and a share of the lists of seen items.
    catalogue = sources["items"]
    n_items = len(loaded.items_) if catalogue is None else catalogue.rows
    rated = loaded.rated_.nnz / max(len(loaded.users_), 1)
    row_bytes = source.row_bytes + 32 * min(k, n_items) + 4 * heads.users.width + 8 * rated
    return run_batch(job, reference, source, out, prepare, batch, 1 << 16, 4 * row_bytes + 4096)


def _recommend_one(
    path: Path,
    user: str | None,
    new_user: Path | None,
    tables: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the list of one user, or of a newcomer with a few ratings."""
    from simrec.model.two_tower import TwoTower

    model = TwoTower.load(path)
    own, items = model.columns_, tables["items"]
    who, ratings = _ratings_of(model, user, new_user)
    users = _features(model.towers_.users, tables["users"], who)
    if ratings is not None:
        model = model.guests(ratings, users=users)
    elif users is None and asked["unknown"] == "error" and not model.users_.contains([who])[0]:
        raise InputError(
            f"--user {user}: the model has neither ratings nor features of this user. Give their "
            "features with --users, a few ratings with --new-user, or say --unknown prior (an "
            "average user)."
        )
    whom = [who] if users is None else users
    given = {"items": items, "exclude": tables["exclude"]}
    table = model.recommend(whom, **given, output="arrow", **asked)
    ids = table[own.item_id].to_pylist()
    columns = {"rank": table["rank"], own.item_id: table[own.item_id]}
    if titles := _titles(model, ids, items):
        columns["title"] = pa.array([titles.get(one) for one in ids])
    columns["score"] = table["score"]
    if "rating" in model.parts_ and ids:
        predicted = model.predict([who], ids, items=items, users=users, unknown="prior")
        columns["rating"] = pa.array(predicted)
    # Figures as far as float32 means them.
    shown = [
        {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}
        for row in pa.table(columns).to_pylist()
    ]
    found = {"job": "recommend", own.user_id: Id.of(who), "list": shown}
    if not shown:
        new = asked["new_items_only"]
        left = "no item without ratings is left; give new ones with --items"
        found["nothing_to_recommend"] = left if new else "all items are excluded"
    return found


def _ratings_of(
    model: "TwoTower", user: str | None, path: Path | None
) -> tuple[Any, Ratings | None]:
    """Return a user, by the id given, that of a file of ratings or a free one, and the ratings."""
    if path is None:
        return model.users_.read(user, "user_id"), None
    ids, label = model.users_, describe(path, "new_user")
    source = open_table(path, "new_user", model.columns_)
    source.require_columns("item_id")
    ratings = source.read()
    free = pc.max(ids.ids).as_py() + 1 if pa.types.is_integer(ids.type) else "new user"
    who = free if user is None else ids.read(user, "user_id")
    if "user_id" not in ratings.column_names:
        ratings = ratings.append_column("user_id", pa.array([who] * len(ratings), ids.type))
    several = pc.unique(ratings["user_id"]).to_pylist()
    if len(several) != 1:
        raise InputError(
            f"{label}: ratings of {len(several)} users; one list is shown. For several, learn "
            "them with simrec update, then give users and out."
        )
    rating, bounds = "rating" if "rating" in model.parts_ else None, model.rating_bounds()
    return several[0], Ratings.from_table(ratings, rating=rating, bounds=bounds, name=label)


def _features(tower: Tower, path: Path | None, who: Any) -> pa.Table | None:
    """Return the row of an entity in a table of features; None if it has none."""
    if path is None or tower.encoder is None:
        return None
    table, listed = tower.read(path)
    wanted = IdMap.from_values([who], tower.id_column)
    found = table.filter(pa.array(wanted.contains(listed, tower.id_column)))
    return found if len(found) and found.num_columns > 1 else None


def _titles(model: "TwoTower", ids: list[Any], items: Path | None) -> dict[Any, str]:
    """Return what items are called, in the table that is given or in that of training."""
    found = model.titles(ids)
    if items is not None:
        table, listed = model.towers_.items.read(items)
        known, place = unique_ids(listed, "items", "items")
        # In a few rows any column may look like one.
        own, names = title_column(model.catalogue_), table.column_names
        table = table.select([name for name in names if name == own or name.lower() in TITLES])
        found |= titles(table.take(pa.array(place)), known, ids)
    return found


@dataclass(frozen=True)
class AudienceTask(BatchTask):
    """Find the users for whom each item adds most."""

    model: ModelReference
    settings: Mapping[str, Any]

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return the users of each item, and how many items the model does not know."""
        model = self.model.load()
        found = model.audience(table, **self.settings, output="arrow")
        new = ~model.items_.contains(table["item_id"])
        found = found.rename_columns(self.schema.names).cast(self.schema)
        return found, {"new": int(new.sum())}


def audience(
    model: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    rank_by: RankBy = "both",
    reach: int = 10,
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Find the users for whom each item adds most: whom to tell of new items.

    Parameters
    ----------
    items : path, optional
        The items: item_id, with features for new ones; all known items by default.
    users : path, optional
        Users to choose from: user_id, with features for new ones; all known users by default.
    k : int
        Users per item.
    reach : int
        Count the users who would have an item among so many best.
    """
    for name, value in {"k": k, "reach": reach}.items():
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    check_apart(out, model=model, items=items, users=users)
    reference = ModelReference.of(model)
    own = reference.columns
    loaded = reference.load()
    candidates, identity, user_type = None, None, loaded.users_.type
    if users is not None:
        opened = open_table(users, "users", own)
        opened.require_columns("user_id")
        identity, user_type = opened.identity(), opened.schema.field("user_id").type
        candidates = opened.read()
    source = entity_source(loaded.towers_.items, items, own)
    schema = pa.schema(
        [
            (own.item_id, source.schema.field("item_id").type),
            (own.user_id, user_type),
            ("lift", pa.float32()),
            ("score", pa.float32()),
            ("rank", pa.int32()),
            ("reach", pa.float64()),
        ]
    )
    settings = {"k": k, "rank_by": rank_by, "reach": reach}
    job = {"job": "audience", **settings, "users": identity}
    given = {**settings, "users": candidates}
    columns = tuple(source.schema.names)
    task = AudienceTask(reference, given, columns=columns, schema=schema)
    row_bytes = 4 * (source.row_bytes + 48 * min(k, len(loaded.users_))) + 4096
    return run_batch(job, reference, source, out, lambda _: task, batch, 1 << 16, row_bytes)
