"""A `TwoTower` as a model directory, in one piece or with its users in shards, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from simrec import artifacts
from simrec import manifest as manifests
from simrec.data.features import FeatureEncoder
from simrec.data.ids import IdMap
from simrec.data.sides import ID_COLUMNS, Side, Sides
from simrec.errors import InputError
from simrec.model import shard_files
from simrec.model.head import Saved
from simrec.model.ordered.part import OrderedPart
from simrec.model.params import check_params
from simrec.model.part import Part
from simrec.model.rating.evidence import EVIDENCE
from simrec.model.rating.part import RatingPart
from simrec.model.shard_files import Shard, rating_counts
from simrec.model.tower import Tower
from simrec.model.uptake.part import UptakePart
from simrec.scoring.output import Output
from simrec.simec.params import plain

if TYPE_CHECKING:
    from simrec.model.two_tower import TwoTower

KIND = "two_tower"
_MOST_SHARDS = 1_000  # each is some 25 mapped files, of which a process may have 65,530
# Every kind of part.
PARTS: dict[str, type[Part]] = {part.kind: part for part in (RatingPart, OrderedPart, UptakePart)}
# Arguments that are networks: what was trained from them is in the parts.
_NETWORKS = ("item_encoder", "user_encoder")
# What was noted while fitting, and as what.
_FACTS = {
    "schema": dict,
    "chosen": dict,
    "history": list,
    "parent": str | None,
    "updates": list,
}


def save(model: TwoTower, path: str | os.PathLike[str], shards: int | None = None) -> str:
    """Write a fitted model; return its id.

    Parameters
    ----------
    model : TwoTower
        The model.
    path : path
        The directory.
    shards : int, optional
        Into how many ranges of users to divide it; by default as many as it was loaded from.
    """
    sizes = _sizes(model.users_, shards)
    with artifacts.aside(path) as directory:
        saved = content(model, in_shards=len(sizes) > 1)
        if len(sizes) > 1:
            written = [
                shard_files.write_rows(model, saved, directory, number, sizes)
                for number in range(len(sizes))
            ]
            return _commit(model, saved, directory, written)
        artifacts.write(
            directory,
            {**saved.arrays, **saved.whole("items"), **saved.whole("users")},
            {side: table_of(tower) for side, tower in model.towers_.named()},
            saved.documents,
            saved.networks,
        )
        users = model.towers_.users.counts
        return _sign(model, directory, len(users), int((np.asarray(users) > 0).sum()))


def write_shard(model: TwoTower, directory: Path, number: int, of: int) -> Shard:
    """Write the users of a model as one shard of a model directory.

    Parameters
    ----------
    model : TwoTower
        A model with the users of this shard only, and with all items.
    directory : Path
        What `artifacts.aside` gave to the process that calls `commit`.
    number, of : int
        Which shard of how many, in the order of the ids of their users.

    Returns
    -------
    Shard
        What `commit` has to know of it.
    """
    sizes = [len(model.users_) if i == number else 0 for i in range(of)]
    return shard_files.write_rows(model, content(model, True), directory, number, sizes)


def commit(model: TwoTower, directory: Path, shards: Sequence[Shard]) -> str:
    """Write what all shards share, and the manifest of all; return the model id.

    Parameters
    ----------
    model : TwoTower
        One of those whose users were written: all have the same items and settings.
    directory : Path
        What `artifacts.aside` gave; it becomes a model when that ends.
    shards : sequence of Shard
        What `write_shard` returned, in order.
    """
    return _commit(model, content(model, True), directory, shards)


def _commit(model: TwoTower, saved: Saved, directory: Path, shards: Sequence[Shard]) -> str:
    artifacts.write(
        directory,
        {**saved.arrays, **saved.whole("items")},
        {"items": table_of(model.towers_.items)},
        {**saved.documents, "shards": shard_files.document(shards)},
        saved.networks,
    )
    known = {name: entry for shard in shards for name, entry in shard.files.items()}
    n_users, n_rating = sum(shard.rows for shard in shards), sum(shard.rated for shard in shards)
    return _sign(model, directory, n_users, n_rating, known)


def check_shards(shards: int) -> None:
    """Raise InputError unless a model can be divided into so many shards."""
    whole = isinstance(shards, int | np.integer) and not isinstance(shards, bool)
    if not whole or not 1 <= shards <= _MOST_SHARDS:
        raise InputError(f"shards must be a whole number from 1 to {_MOST_SHARDS}, got {shards!r}.")


def _sizes(users: IdMap, shards: int | None) -> tuple[int, ...]:
    """Return how many users go into each shard."""
    if shards is not None:
        check_shards(shards)
    if shards is None or shards == len(users.sizes):
        return users.sizes
    n = len(users)
    return tuple(np.diff([n * i // shards for i in range(shards + 1)]).tolist())


def content(model: TwoTower, in_shards: bool) -> Saved:
    """Return all of a model but its ids as plain data."""
    saved = Saved()
    saved.documents |= {
        "parts": {
            name: {"kind": part.kind, "output": asdict(part.output)}
            for name, part in model.parts_.items()
        },
        "lists": {"uptake_weight": model.uptake_weight_},
    }
    for side, tower in model.towers_.named():
        saved.sparse[side][f"{side}_features"] = tower.features
        if tower.encoder is not None:
            saved.documents[f"{side}_encoder"] = tower.encoder.to_dict()
    for part in model.parts_.values():
        saved.add(part.saved(in_shards))
    saved.sparse.users["rated"] = model.rated_
    return saved


def table_of(tower: Tower) -> pa.Table:
    """Return the ids of a tower, with their numbers of ratings."""
    return pa.table({tower.id_column: tower.ids.ids, "n_ratings": np.asarray(tower.counts)})


def _sign(
    model: TwoTower,
    directory: Path,
    n_users: int,
    n_rating_users: int,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Write the manifest; return the model id."""
    items = np.asarray(model.towers_.items.counts)
    params = {name: v for name, v in model.get_params().items() if name not in _NETWORKS}
    facts = {
        "seed": model.random_state,
        "counts": {
            "ratings": int(items.sum()),
            "items": len(items),
            "users": n_users,
            "rated_items": int((items > 0).sum()),
            "rating_users": n_rating_users,
        },
        "schema": model.schema_,
        "chosen": model.chosen_,
        "history": model.history_,
        "parent": model.parent_,
        "updates": model.updates_,
    }
    return manifests.write(directory, KIND, plain(params), facts, known)


def load(
    cls: type[TwoTower],
    path: str | os.PathLike[str],
    evidence: bool = True,
    shard: int | None = None,
) -> TwoTower:
    """Read a model directory.

    Parameters
    ----------
    cls : type
        `TwoTower`.
    path : path
        The directory.
    evidence : bool
        Whether to read the posteriors, which are most of it and of no use to a job that scores.
    shard : int, optional
        Read the users of this shard only.
    """
    artifact = artifacts.load(path, KIND, skip=None if evidence else EVIDENCE, shard=shard)
    with artifact.fitting_together():
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in artifact.config.items()
        }
        model = cls(**config)
        check_params(model.get_params())
        restore(model, artifact, shard)
        rating = model.parts_.get("rating")
        if isinstance(rating, OrderedPart):
            model.item_encoder, model.user_encoder = rating.own_encoders()
        model.uptake_weight_ = float(artifact.documents["lists"]["uptake_weight"])
        if not model.parts_:
            raise InputError("parts.json: the model has learned nothing")
        if not np.isfinite(model.uptake_weight_):
            raise InputError("lists.json: the weight of uptake is no number")
        for name, kind in _FACTS.items():
            if not isinstance(artifact.facts[name], kind):
                raise InputError(f"manifest.json: {name} is {artifact.facts[name]!r}")
            setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def restore(model: TwoTower, artifact: artifacts.Artifact, shard: int | None = None) -> None:
    """Give a model the towers and the parts of a directory."""
    model.towers_ = towers = Sides.of(lambda side: _tower(artifact, side, shard))
    model.parts_ = {
        name: _part(name, document, artifact, towers)
        for name, document in artifact.documents["parts"].items()
    }
    shape = (len(towers.users.ids), len(towers.items.ids))
    model.rated_ = artifact.csr_matrix("rated", shape, towers.users.ids.sizes)


def _part(
    name: str, document: Mapping[str, Any], artifact: artifacts.Artifact, towers: Sides[Tower]
) -> Part:
    kind = PARTS[document["kind"]]
    if kind.name != name:
        raise InputError(f"parts.json: {document['kind']!r} is no {name!r} part")
    return kind.restored(_output(document["output"]), artifact, towers)


def _output(document: Mapping[str, Any]) -> Output:
    output = Output(**document)
    bounds = [output.lower, output.upper]
    numbers = [output.shift] if bounds == [None, None] else [output.shift, *bounds]
    if (
        not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers)
        or output.kind not in get_args(get_type_hints(Output)["kind"])
        or (output.bounded and not output.lower <= output.upper)  # type: ignore[operator]
    ):
        raise InputError(f"output: {document} is no output function")
    return output


def _tower(artifact: artifacts.Artifact, side: Side, shard: int | None) -> Tower:
    """Make a tower of its parts, none of which is believed: lengths and widths must agree."""
    table = artifact.tables[side]
    if side == "users" and "shards" in artifact.documents:
        ids, counts = shard_files.ids_and_counts(artifact, table, shard)
    else:
        ids, counts = IdMap(table[ID_COLUMNS[side]]), rating_counts(table, f"{side}.arrow")
    document = artifact.documents.get(f"{side}_encoder")
    encoder = None if document is None else FeatureEncoder.from_dict(document)
    width = 0 if encoder is None else encoder.n_features_
    features = artifact.csr_matrix(f"{side}_features", (len(ids), width), ids.sizes)
    return Tower(side, ids, counts, encoder, features)
