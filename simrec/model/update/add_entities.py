"""New entities after fitting: their ids, features and places in a tower."""

import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy import sparse

from simrec.data.ids import IdMap
from simrec.data.messages import describe
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model import catalogue
from simrec.model.part import NewRows
from simrec.model.tower import Tower, unique_ids
from simrec.storage.arrays import Insertion

logger = logging.getLogger(__name__)
_UNKNOWN = "=<unknown>"


def add_entities(tower: Tower, rated: IdMap, source: TableLike | None) -> tuple[Tower, NewRows]:
    """Add to a tower those of a table of features, and those with ratings.

    Those whom the table describes (`Tower.described`) take its features. New ids without features
    are taken as average.
    """
    side, column = tower.side, tower.id_column
    table, listed = None, tower.ids.none()
    if source is not None:
        if tower.encoder is None:
            raise InputError(f"{side}: the model was fitted without features of {side}.")
        table, ids = tower.read(source)
        listed, place = unique_ids(ids, side, describe(source, side))
        fresh = np.flatnonzero(tower.described(tower.ids.rows(listed.ids, column), table))
        table, listed = table.take(pa.array(place[fresh])), IdMap(listed.take(fresh))
    featureless = rated.ids.filter(pa.array(~tower.ids.contains(rated.ids, column)))
    if len(listed) and len(featureless):
        featureless = featureless.filter(pa.array(~listed.contains(featureless, column)))
    if len(featureless) and tower.encoder is not None:
        logger.warning(
            "%s: %d have no row of features; they are taken as average", side, len(featureless)
        )
    width = tower.features.shape[1]
    features = sparse.csr_matrix((len(listed) + len(featureless), width), dtype=np.float32)
    if table is not None and tower.encoder is not None and len(listed):
        encoded = tower.encoded(table, describe(source, side))
        features = sparse.vstack([encoded, features[len(listed) :]], format="csr")
    n_new, before = features.shape[0], tower.ids
    has_features = np.arange(n_new) < len(listed)
    if not n_new:
        return tower, NewRows(features, has_features, Insertion(), tower.counts)
    # The new ones, those with features first, in their places among all.
    everyone = before.union(listed)
    everyone = everyone.union(IdMap(featureless)) if len(featureless) else everyone
    places = np.concatenate([everyone.rows(listed.ids), everyone.rows(featureless)])
    added = np.ones(n_new, bool)
    added[: len(listed)] = ~before.contains(listed.ids)
    insert = Insertion.of(len(before), len(everyone), places, added)
    grown = replace(
        tower,
        ids=everyone,
        counts=insert(tower.counts, np.zeros(n_new, np.int64)),
        features=insert(tower.features, features),
        table=catalogue.grown(tower.table, table, insert) if side == "items" else None,
    )
    return grown, NewRows(features, has_features, insert, tower.counts)


def unknown_values(tower: Tower, new: NewRows) -> dict[str, int]:
    """Count for each column the new entities with a value that the encoder does not know."""
    if tower.encoder is None:
        return {}
    X = new.features
    found = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    return {
        name.removesuffix(_UNKNOWN): int(found[i])
        for i, name in enumerate(tower.encoder.feature_names_)
        if name.endswith(_UNKNOWN) and found[i]
    }
