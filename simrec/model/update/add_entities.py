"""Entities that come after fitting: let into a tower, with what their features say of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.tables import TableLike, describe, read_table
from simrec.errors import InputError
from simrec.model.tower import Tower, id_values, once

logger = logging.getLogger(__name__)
_UNKNOWN = "=<unknown>"


@dataclass(eq=False)
class Arrivals:
    """The entities of one side after new ones have come.

    Attributes
    ----------
    tower : Tower
        With vectors and no ratings for those who are new.
    order : numpy.ndarray
        Where each row of the tower was before; new ones count on from the end.
    vectors : numpy.ndarray
        Vectors of the new ones, in the order in which they were added.
    has_features : numpy.ndarray of bool
        Which of them have any.
    unknown : dict of str to int
        For each column, the new ones with a value that the encoder does not know.
    """

    tower: Tower
    order: np.ndarray
    vectors: np.ndarray
    has_features: np.ndarray
    unknown: dict[str, int] = field(default_factory=dict)


def arrive(tower: Tower, rated: IdMap, source: TableLike | None) -> Arrivals:
    """Let entities into a tower: those of a table of features, and those with ratings.

    Ids without ratings so far whose features are given take them; those with ratings keep what
    they are. New ids without features are taken as average.
    """
    name, column = f"{tower.name}s", tower.id_column
    table, listed = None, None
    if source is not None:
        if tower.encoder is None:
            raise InputError(f"{name}: the model was fitted without features of {name}.")
        table = read_table(source, name=name)
        label = describe(source, name)
        listed, place = once(id_values(table, column, label), tower.name, label)
        rows = tower.ids.rows(listed.ids, column)
        # The known with ratings have no use for features.
        fresh = np.flatnonzero((rows < 0) | (tower.counts[rows] == 0))
        table, listed = table.take(pa.array(place[fresh])), IdMap(listed.take(fresh))
    strangers = rated.ids.filter(pa.array(~tower.ids.contains(rated.ids, column)))
    if listed is not None and len(strangers):
        strangers = strangers.filter(pa.array(~listed.contains(strangers, column)))
    vectors, features = [], []
    if table is not None and tower.encoder is not None and len(table):
        features.append(tower.encoder.transform(table, name))
        vectors.append(tower.encode_features(features[0]))
    if len(strangers):
        if tower.encoder is not None:
            logger.warning(
                "%s: %d have no row of features; they are taken as average", name, len(strangers)
            )
        width = 0 if tower.encoder is None else tower.encoder.n_features_
        features.append(sparse.csr_matrix((len(strangers), width), dtype=np.float32))
        vectors.append(np.broadcast_to(tower.prior, (len(strangers), len(tower.prior))))
    if not vectors:
        none = np.empty((0, tower.vectors.shape[1]), np.float32)
        return Arrivals(tower, np.arange(len(tower.ids)), none, np.empty(0, bool))
    added = np.concatenate(vectors), sparse.vstack(features, format="csr")
    return _joined(tower, listed, strangers, *added)


def _joined(
    tower: Tower,
    listed: IdMap | None,
    strangers: pa.Array,
    vectors: np.ndarray,
    features: sparse.csr_matrix,
) -> Arrivals:
    """Put the new ones, those with features first, in their places among all."""
    ids, n = tower.ids, len(tower.ids)
    for more in (listed, IdMap(strangers) if len(strangers) else None):
        ids = ids if more is None else ids.union(more)
    order = np.empty(len(ids), np.int64)
    order[ids.rows(tower.ids.ids)] = np.arange(n)
    n_listed = 0 if listed is None else len(listed)
    if listed is not None:
        order[ids.rows(listed.ids)] = n + np.arange(n_listed)
    if len(strangers):
        order[ids.rows(strangers)] = n + n_listed + np.arange(len(strangers))
    n_new = len(vectors)
    grown = replace(
        tower,
        ids=ids,
        counts=np.concatenate([tower.counts, np.zeros(n_new, np.int64)])[order],
        vectors=np.concatenate([tower.vectors, vectors])[order].astype(np.float32, copy=False),
        features=sparse.vstack([tower.features, features], format="csr")[order],
    )
    has_features = np.arange(n_new) < n_listed
    return Arrivals(grown, order, vectors, has_features, _unknown(tower, features))


def _unknown(tower: Tower, X: sparse.csr_matrix) -> dict[str, int]:
    if tower.encoder is None:
        return {}
    found = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return {
        name.removesuffix(_UNKNOWN): int(found[i])
        for i, name in enumerate(tower.encoder.feature_names_)
        if name.endswith(_UNKNOWN) and found[i]
    }
