"""Recommend: users in, the k best items of each out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from simrec.errors import InputError
from simrec.jobs.engine.batch import BatchOptions, run_batch
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source
from simrec.jobs.options import Path
from simrec.jobs.shared.candidates import Candidates, ItemLists
from simrec.jobs.shared.entities import KnownIds, Unknown, check_columns
from simrec.jobs.shared.model import ModelReference, model_with_feedback
from simrec.model.answer.recommend import best_items, with_bonus
from simrec.model.answer.uncertainty import check_explore
from simrec.scoring.output import Output as OutputFunction
from simrec.scoring.pairs import score_pairs


@dataclass(frozen=True)
class RecommendTask:
    """Find the k best candidates for each user."""

    model: ModelReference
    candidates: Candidates
    output: OutputFunction
    k: int
    min_score: float | None
    unknown: Unknown
    exclude: ItemLists | None
    eligible: ItemLists | None
    columns: Sequence[str]
    schema: pa.Schema
    bonus: np.ndarray | None
    threads: int | None

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return user_id, item_id, score and rank for each user of a batch."""
        users, queries, counts = self._queries(table)
        if len(users) and len(self.candidates.ids):
            rows, items, z = self._best(users, queries)
        else:
            rows = items = z = np.empty(0, np.int64)
        scores = self.output(z.astype(np.float32, copy=False))
        if self.min_score is not None:
            keep = scores >= self.min_score
            rows, items, scores = rows[keep], items[keep], scores[keep]
        found = np.bincount(rows, minlength=len(queries))
        first = np.cumsum(found) - found
        rank = (np.arange(len(rows)) - np.repeat(first, found) + 1).astype(np.int32)
        columns = [
            users.take(pa.array(rows)),
            self.candidates.ids.take(items),
            pa.array(scores),
            pa.array(rank),
        ]
        counts["users_with_fewer_than_k"] = int((found < self.k).sum())
        return pa.table(columns, schema=self.schema), counts

    def _queries(self, table: pa.Table) -> tuple[pa.ChunkedArray, np.ndarray, dict[str, int]]:
        """Return ids and vectors of users: known ones, and new ones by their features."""
        tower = self.model.load().user_tower_
        ids = table["user_id"]
        if ids.null_count:
            raise InputError(f"column user_id: {ids.null_count} missing ids. Remove those rows.")
        features = tower.encoder is not None and len(table.column_names) > 1
        other = tower.own_rows(ids, features) < 0
        n = int(other.sum())
        counts = {"new_users": n if features else 0, "unknown_users": 0 if features else n}
        if n and not features:
            if self.unknown == "error":
                raise InputError(
                    f"column user_id: {n} users the model does not know, for example "
                    f"{ids[int(np.argmax(other))].as_py()!r}. Give a table with their features, or "
                    "say --unknown prior (an average user) or --unknown skip."
                )
            if self.unknown == "skip":
                table = table.filter(pa.array(~other))
        _, vectors = tower.embed(table, "prior")
        return table["user_id"], vectors, counts

    def _best(
        self, users: pa.ChunkedArray, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row of the user, that of the item, and the score before the output."""
        vectors = self.candidates.vectors
        exclude = self.exclude.matrix(users) if self.exclude is not None else None
        if self.eligible is None:
            rows, items, _, z = best_items(
                queries, vectors, self.k, exclude, bonus=self.bonus, threads=self.threads
            )
            return rows, items, z
        rows, items = _listed(self.eligible.matrix(users), exclude)
        z = score_pairs(queries, vectors, rows, items)
        by = z if self.bonus is None else z + self.bonus[items, -1]
        order = np.lexsort((items, -by, rows))
        rows, items, z = rows[order], items[order], z[order]
        counts = np.bincount(rows, minlength=len(queries))
        best = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) < self.k
        return rows[best], items[best], z[best]


def recommend(
    model: Path,
    out: Path,
    *,
    items: Path | None = None,
    users: Path | None = None,
    k: int = 10,
    exclude: Path | None = None,
    eligible: Path | None = None,
    min_score: float | None = None,
    new_items_only: bool = False,
    feedback: Path | None = None,
    explore: float = 0.0,
    unknown: Unknown = "error",
    batch: BatchOptions = BatchOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Find the best items for each user.

    Parameters
    ----------
    model : path
        The model directory.
    out : path
        Output directory of Parquet parts, or a single file if the name ends in .parquet.
    items : path, optional
        The catalogue: item_id, with features for new ones; all known items by default.
    users : path, optional
        Users to recommend for: user_id, with features for new ones; all known users by default.
    k : int
        Items per user.
    exclude : path, optional
        Table of user_id and item_id not to recommend, such as the ratings.
    eligible : path, optional
        Table of what may be recommended: item_id, or user_id and item_id.
    min_score : float, optional
        Leave out items that score lower.
    new_items_only : bool
        Recommend only items without any rating in training.
    feedback : path, optional
        A few ratings of users or items without any: folded in before recommending.
    explore : float
        Rank by score + explore * posterior standard deviation of the item, so that new items get a
        chance; the score that is written is the prediction.
    unknown : str
        What to do with a user without ratings and features: error, prior (an average user) or skip.
    batch : BatchOptions
        How to run the job.

    Returns
    -------
    dict
        The summary.
    """
    if k < 1:
        raise InputError(f"k: expected at least 1, got {k}")
    if min_score is not None and math.isnan(min_score):
        raise InputError("min_score: expected a number, got nan")
    check_explore(explore)
    if batch.partition_by:
        raise InputError("partition_by: recommend writes no column to partition by")
    tables = {
        name: open_source(path, name) if path is not None else None
        for name, path in {"items": items, "exclude": exclude, "eligible": eligible}.items()
    }
    with model_with_feedback(model, out, feedback=feedback, items=items, users=users) as reference:
        loaded = reference.load()
        source: Source | KnownIds
        if users is None:
            source = KnownIds("user_id", loaded.user_tower_.ids.ids)
        else:
            source = open_source(users, "users", skip_bad=batch.on_bad_fragment == "skip")
            check_columns(source, "user_id")
        job = {
            "job": "recommend",
            "k": k,
            "min_score": min_score,
            "new_items_only": new_items_only,
            "explore": explore,
            "unknown": unknown,
            **{name: table and table.identity() for name, table in tables.items()},
        }

        def prepare(scratch: Scratch) -> RecommendTask:
            seen, listed = tables["exclude"], tables["eligible"]
            per_user = listed is not None and "user_id" in listed.schema.names
            candidates = Candidates.collect(
                loaded.item_tower_,
                tables["items"],
                None if per_user else listed,
                new_items_only,
                scratch,
            )
            schema = pa.schema(
                [
                    ("user_id", source.schema.field("user_id").type),
                    ("item_id", candidates.ids.type),
                    ("score", pa.float32()),
                    ("rank", pa.int32()),
                ]
            )

            def lists(name: str, table: Source | None) -> ItemLists | None:
                if table is None:
                    return None
                return ItemLists.read(table, name, candidates.ids, scratch)

            return RecommendTask(
                reference,
                candidates,
                loaded.output_,
                k,
                min_score,
                unknown,
                lists("exclude", seen),
                lists("eligible", listed if per_user else None),
                tuple(source.schema.names),
                schema,
                _bonus(reference, candidates, explore),
                # On a cluster each part has one processor; here a part uses them all.
                threads=1 if batch.engine == "ray" else None,
            )

        if batch.engine == "local":
            batch = replace(batch, workers=batch.workers or 1)
        # Features of a user, the results with ids, and a share of the lists of seen items.
        catalogue = tables["items"]
        n_items = len(loaded.item_tower_.ids) if catalogue is None else catalogue.rows
        width = loaded.user_tower_.vectors.shape[1]
        row_bytes = 4 * (source.row_bytes + 32 * min(k, n_items) + 4 * width) + 4096
        return run_batch(job, reference, source, out, prepare, batch, 1 << 16, row_bytes)


def _bonus(reference: ModelReference, candidates: Candidates, explore: float) -> np.ndarray | None:
    """Return the candidates with what exploring adds to their scores, for `best_items`."""
    if not explore:
        return None
    from simrec.model.answer.uncertainty import exploration
    from simrec.model.tower import Found
    from simrec.model.two_tower import TwoTower

    # Uncertainty is in the evidence, which the job does without otherwise.
    model = TwoTower.load(reference.path)
    # Rows past the known ones are those of a table of features.
    rows = np.where(candidates.rows < 0, len(model.item_tower_.ids), candidates.rows)
    found = Found(candidates.vectors, rows, np.zeros(len(rows), bool))
    return with_bonus(candidates.vectors, exploration(model, found, explore))


def _listed(listed: sp.csr_matrix, exclude: sp.csr_matrix | None) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the listed pairs that are not excluded."""
    rows = np.repeat(np.arange(listed.shape[0]), np.diff(listed.indptr))
    items = listed.indices.astype(np.int64)
    if exclude is None:
        return rows, items
    width = listed.shape[1]
    seen = np.repeat(np.arange(exclude.shape[0]), np.diff(exclude.indptr)) * width + exclude.indices
    keep = ~np.isin(rows * width + items, seen)
    return rows[keep], items[keep]
