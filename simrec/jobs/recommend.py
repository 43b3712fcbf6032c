"""Recommend: users in, the k best items of each out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from simrec.data.ids import IdMap
from simrec.errors import InputError
from simrec.jobs.batch import BatchOptions, run_batch
from simrec.jobs.candidates import KnownIds, candidate_items
from simrec.jobs.entities import Unknown, encode
from simrec.jobs.feedback import with_feedback
from simrec.jobs.io.claim import check_apart
from simrec.jobs.io.discover import open_source
from simrec.jobs.io.scratch import Scratch
from simrec.jobs.io.sources import Source
from simrec.jobs.models import ModelReference
from simrec.jobs.options import Path
from simrec.jobs.seen import ItemLists
from simrec.model.answer.uncertainty import check_explore
from simrec.scoring.output import Output as OutputFunction
from simrec.scoring.pairs import score_pairs
from simrec.scoring.topk import top_k


@dataclass(frozen=True)
class RecommendTask:
    """Finds the k best candidates for each user."""

    model: ModelReference
    candidate_ids: pa.Array
    candidates: np.ndarray
    output: OutputFunction
    k: int
    min_score: float | None
    unknown: Unknown
    exclude: ItemLists | None
    eligible: ItemLists | None
    columns: Sequence[str]
    schema: pa.Schema
    threads: int | None = None
    bonus: np.ndarray | None = None

    def process(self, table: pa.Table) -> tuple[pa.Table, Mapping[str, int]]:
        """Return user_id, item_id, score and rank for each user of a batch."""
        users, queries, counts = self._queries(table)
        if self.bonus is not None:
            # What exploring adds is the candidates' last coordinate.
            queries = np.hstack([queries, np.ones((len(queries), 1), np.float32)])
        exclude = self.exclude.matrix(users) if self.exclude is not None else None
        if self.eligible is not None:
            rows, items, z = _best_listed(
                queries, self.candidates, self.eligible.matrix(users), exclude, self.k
            )
        else:
            best, best_z = top_k(
                queries, self.candidates, self.k, exclude=exclude, threads=self.threads
            )
            rows, places = np.nonzero(best >= 0)
            items, z = best[rows, places], best_z[rows, places]
        if self.bonus is not None:
            z = z - self.bonus[items]
        scores = self.output(z.astype(np.float32, copy=False))
        if self.min_score is not None:
            keep = scores >= self.min_score
            rows, items, scores = rows[keep], items[keep], scores[keep]
        found = np.bincount(rows, minlength=len(queries))
        first = np.concatenate([[0], np.cumsum(found)[:-1]])
        rank = (np.arange(len(rows)) - np.repeat(first, found) + 1).astype(np.int32)
        result = pa.table(
            [
                users.take(pa.array(rows)),
                self.candidate_ids.take(pa.array(items)),
                pa.array(scores),
                pa.array(rank),
            ],
            schema=self.schema,
        )
        return result, {**counts, "users_with_fewer_than_k": int((found < self.k).sum())}

    def _queries(self, table: pa.Table) -> tuple[pa.ChunkedArray, np.ndarray, dict[str, int]]:
        """Return ids and vectors of users: known ones, and new ones by their features."""
        model = self.model.load()
        ids = table["user_id"]
        if ids.null_count:
            raise InputError(f"column user_id: {ids.null_count} missing ids. Remove those rows.")
        rows = model.users_.rows(ids)
        vectors = (
            np.asarray(model.user_vectors_[np.maximum(rows, 0)])
            if len(model.users_)
            else (np.zeros((len(rows), self.candidates.shape[1]), np.float32))
        )
        counts = {"new_users": 0, "unknown_users": 0}
        if model.user_encoder_ is not None and len(table.column_names) > 1:
            # As everywhere: fresh features count for whoever has no ratings.
            fresh = np.flatnonzero((rows < 0) | (model.user_counts_[rows] == 0))
            if len(fresh):
                _, vectors[fresh] = encode(model, "user", table.take(pa.array(fresh)))
            return ids, vectors, {**counts, "new_users": len(fresh)}
        unknown = np.flatnonzero(rows < 0)
        if len(unknown) == 0:
            return ids, vectors, counts
        counts["unknown_users"] = len(unknown)
        if self.unknown == "error":
            raise InputError(
                f"column user_id: {len(unknown)} users the model does not know, for example "
                f"{ids[int(unknown[0])].as_py()!r}. Give a table with their features, or say "
                "--unknown prior (an average user) or --unknown skip."
            )
        if self.unknown == "prior":
            vectors[unknown] = model.user_prior_
            return ids, vectors, counts
        keep = np.flatnonzero(rows >= 0)
        return ids.take(pa.array(keep)), vectors[keep], counts


def recommend(
    model: Path,
    out: Path,
    users: Path | None = None,
    items: Path | None = None,
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
    users : path, optional
        Users to recommend for: user_id, with features for new ones; all known users by default.
    items : path, optional
        The catalogue: item_id, with features for new ones; all known items by default.
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
        Rank items by their score plus so many standard deviations of what is not known of them,
        so that new ones get a chance; the score that is written is the prediction.
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
    check_explore(explore)
    if batch.partition_by:
        raise InputError("partition_by: recommend writes no column to partition by")
    given = {"items": items, "exclude": exclude, "eligible": eligible}
    check_apart(out, model=model, users=users, feedback=feedback, **given)
    tables = {
        name: open_source(path, name) if path is not None else None for name, path in given.items()
    }
    with with_feedback(model, feedback, users, items, out) as reference:
        loaded = reference.load()
        source: Source | KnownIds
        if users is None:
            source = KnownIds("user_id", loaded.users_.ids)
        else:
            source = open_source(users, "users", skip_bad=batch.on_bad_fragment == "skip")
            source.require("user_id")
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
            table = tables["eligible"]
            per_user = table if table is not None and "user_id" in table.schema.names else None
            vectors: np.ndarray
            candidates, vectors = candidate_items(
                loaded, tables["items"], None if per_user else table, new_items_only, scratch
            )
            bonus = _bonus(reference, candidates, explore)
            if bonus is not None:
                vectors = np.hstack([vectors, bonus[:, None]])
            seen = tables["exclude"]
            schema = pa.schema(
                [
                    ("user_id", source.schema.field("user_id").type),
                    ("item_id", candidates.ids.type),
                    ("score", pa.float32()),
                    ("rank", pa.int32()),
                ]
            )
            return RecommendTask(
                reference,
                candidates.ids,
                vectors,
                loaded.output_,
                k,
                min_score,
                unknown,
                ItemLists.read(seen, "exclude", candidates, scratch) if seen is not None else None,
                ItemLists.read(per_user, "eligible", candidates, scratch)
                if per_user is not None
                else None,
                tuple(source.schema.names),
                schema,
                # On a cluster each part has one processor; here a part uses them all.
                threads=1 if batch.engine == "ray" else None,
                bonus=bonus,
            )

        if batch.engine == "local":
            batch = replace(batch, workers=batch.workers or 1)
        # Features of a user, the k results with ids, and a share of the lists of seen items.
        row_bytes = 4 * (source.row_bytes + 32 * k + 4 * loaded.user_vectors_.shape[1]) + 4096
        return run_batch(job, reference, source, out, prepare, batch, 1 << 16, row_bytes)


def _bonus(reference: ModelReference, candidates: IdMap, explore: float) -> np.ndarray | None:
    """Give what exploring adds to the score of each candidate."""
    if not explore:
        return None
    from simrec.model.answer.uncertainty import exploration
    from simrec.model.tower import Found
    from simrec.model.two_tower import TwoTower

    # Uncertainty is in the evidence, which the job does without otherwise.
    model = TwoTower.load(reference.path)
    rows = model.items_.rows(candidates.ids)
    places = np.where(rows < 0, len(model.items_), rows)
    return exploration(
        model, Found(model.item_vectors_, places, np.zeros(len(rows), bool)), explore
    )


def _best_listed(
    queries: np.ndarray,
    candidates: np.ndarray,
    listed: sp.csr_matrix,
    exclude: sp.csr_matrix | None,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, item, z) of the k best listed items of each query, best first."""
    rows = np.repeat(np.arange(listed.shape[0]), np.diff(listed.indptr))
    items = listed.indices.astype(np.int64)
    if exclude is not None:
        seen_rows = np.repeat(np.arange(exclude.shape[0]), np.diff(exclude.indptr))
        width = listed.shape[1]
        keep = ~np.isin(rows * width + items, seen_rows * width + exclude.indices)
        rows, items = rows[keep], items[keep]
    z = score_pairs(queries, candidates, rows, items)
    order = np.lexsort((items, -z, rows))
    rows, items, z = rows[order], items[order], z[order]
    counts = np.bincount(rows, minlength=len(queries))
    first = np.cumsum(counts) - counts
    best = np.arange(len(rows)) - np.repeat(first, counts) < k
    return rows[best], items[best], z[best]
