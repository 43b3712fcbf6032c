"""A `TwoTower` as a model directory, in one piece or with its users in shards, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from simrec.data.features import FeatureEncoder
from simrec.data.id_columns import IdShard
from simrec.data.ids import IdMap, in_shards
from simrec.data.sides import Columns, Side, Sides
from simrec.errors import InputError, is_number, is_whole
from simrec.model import catalogue
from simrec.model.head import Saved
from simrec.model.lists.blend import KINDS, NEW, Blend
from simrec.model.lists.components import ContentPart, EasePart, PopularityPart
from simrec.model.lists.uptake.part import UptakePart
from simrec.model.params import check_params
from simrec.model.part import Part
from simrec.model.posterior.evidence import EVIDENCE
from simrec.model.rating.part import RatingPart
from simrec.model.run.workers import ONE_WORKER, Workers, written_together
from simrec.model.tower import Tower
from simrec.scoring.output import Output
from simrec.simec.options import plain
from simrec.storage import artifacts
from simrec.storage import manifest as manifests
from simrec.storage.arrays import REMEDY, csr_arrays, id_arrays
from simrec.storage.artifacts import Artifact
from simrec.storage.rows import Array, Rows, StoredArray, shards_of

if TYPE_CHECKING:
    from simrec.model.fitted import FittedModel

Model = TypeVar("Model", bound="FittedModel")

KIND = "two_tower"
_LIKED = f"{EVIDENCE}_liked"
# Users in shards are ranges of ascending ids. What is known of a shard without reading it: users,
# those with ratings, lowest and highest id.
IDS, COUNTS, _KNOWN = "users_ids", "users_n_ratings", ("rows", "rated", "first", "last")
_MOST_SHARDS = 1_000  # each is some 25 mapped files, of which a process may have 65,530
_PARTS = (RatingPart, UptakePart, EasePart, ContentPart, PopularityPart)
# Every kind of part.
PARTS: dict[str, type[Part]] = {part.kind: part for part in _PARTS}
# Arguments that are networks: what was trained from them is in the parts.
_NETWORKS = ("item_encoder", "user_encoder")
# What was noted while fitting, and as what.
_FACTS = {"schema": dict, "chosen": dict, "history": list, "parent": str | None, "updates": list}


def save(
    model: FittedModel,
    path: str | os.PathLike[str],
    shards: int | None = None,
    workers: Workers = ONE_WORKER,
) -> str:
    """Write a fitted model, in as many shards as it was loaded from or in others; return its id.

    Each of several workers writes its own users as a shard, the first one what all share. The
    directory, on storage that all of them see, takes its place once all shards are written.
    """
    users, sizes = model.users_, model.users_.sizes
    numbers = range(len(sizes)) if shards is None else range(check_shards(shards))
    if workers.size > 1:
        if shards not in (None, workers.size):
            raise InputError(f"shards: {workers.size} workers write one each, not {shards} in all.")
        numbers = range(workers.rank, workers.rank + 1)
        sizes = (0,) * workers.rank + (len(users),) + (0,) * (workers.size - workers.rank - 1)
    elif len(numbers) != len(sizes):
        sizes = tuple(np.diff([len(users) * i // len(numbers) for i in (*numbers, len(numbers))]))
    with written_together(path, workers) as directory:
        saved = content(model, in_shards=len(sizes) > 1)
        written = None
        if len(sizes) > 1:
            mine = [_write_shard(users, saved, directory, number, sizes) for number in numbers]
            written = [one for some in workers.documents(mine) for one in some]
        found = _commit(model, saved, directory, written) if workers.rank == 0 else ""
    return workers.agreed(found)


def _commit(
    model: FittedModel, saved: Saved, directory: Path, shards: Sequence[Mapping[str, Any]] | None
) -> str:
    """Write what all shards share, or all, and the manifest; return the model id."""
    arrays = {**saved.arrays, **saved.whole("items"), **id_arrays("items_ids", model.items_.ids)}
    known: dict[str, Any] = {}
    if shards is None:
        arrays |= {**saved.whole("users"), **id_arrays(IDS, model.users_.ids)}
        n_users, n_rating = len(arrays[COUNTS]), int((arrays[COUNTS] > 0).sum())
    else:
        saved.documents["shards"] = _known(shards)
        n_users, n_rating = (sum(one[name] for one in shards) for name in ("rows", "rated"))
        known = {name: entry for shard in shards for name, entry in shard["files"].items()}
    artifacts.write(directory, arrays, saved.documents, saved.networks)
    items = arrays["items_n_ratings"]
    # Progress is no part of a model: its id is the same with and without.
    left_out = (*_NETWORKS, "verbose")
    params = {name: v for name, v in model.get_params().items() if name not in left_out}
    facts = {
        "seed": params["random_state"],
        "counts": {
            "ratings": int(items.sum()),
            "items": len(items),
            "users": n_users,
            "rated_items": int((items > 0).sum()),
            "rating_users": n_rating,
        },
        "columns": asdict(model.columns_),
        **{name: getattr(model, f"{name}_") for name in _FACTS},
    }
    return manifests.write(directory, KIND, plain(params), facts, known)


def check_shards(shards: int) -> int:
    """Return the number of shards; InputError unless a model can be divided into so many."""
    if not is_whole(shards, 1) or shards > _MOST_SHARDS:
        raise InputError(f"shards must be a whole number from 1 to {_MOST_SHARDS}, got {shards!r}.")
    return shards


def content(model: FittedModel, in_shards: bool) -> Saved:
    """Return all of a model but its ids as plain data."""
    saved = Saved()
    saved.documents |= {
        "parts": {
            name: {"kind": part.kind, "output": asdict(part.output)}
            for name, part in model.parts_.items()
        },
        "lists": {"few": model.blend_.few, "many": model.blend_.many},
    }
    for name, factors in model.blend_.factors.items():
        for side, one in factors.named():
            saved.arrays[f"lists_{name}_{side}"] = one
    for side, tower in model.towers_.named():
        saved.rows[side][f"{side}_n_ratings"] = tower.counts
        saved.sparse[side][f"{side}_features"] = tower.features
        if tower.encoder is not None:
            saved.documents[f"{side}_encoder"] = tower.encoder.to_dict()
    if model.catalogue_ is not None:
        saved.arrays[catalogue.NAME] = catalogue.stored(model.catalogue_)
    for part in model.parts_.values():
        saved.add(part.saved(in_shards))
    saved.sparse.users["rated"] = model.rated_
    if model.liked_ is not None:
        saved.sparse.users[_LIKED] = model.liked_
    return saved


def load(
    cls: type[Model],
    path: str | os.PathLike[str],
    evidence: bool = True,
    shard: int | None = None,
) -> Model:
    """Read a model directory, or the users of one shard only.

    Without `evidence` the posteriors are not read: most of it, and of no use to a job that scores.
    """
    artifact = artifacts.load(path, KIND, skip=None if evidence else EVIDENCE, shard=shard)
    with artifact.fitting_together():
        model = cls(**artifact.arguments)
        check_params(model.get_params())
        model.columns_ = Columns.from_dict(artifact.facts.get("columns", {}))
        model.towers_ = towers = Sides.of(lambda side: _tower(artifact, side, shard))
        for side, tower in towers.named():
            tower.own_column = model.columns_.of(side)
        towers.items.table = catalogue.restored(artifact, len(towers.items.ids))
        model.parts_ = {}
        for name, document in artifact.documents["parts"].items():
            kind = PARTS[document["kind"]]
            if kind.name != name:
                raise InputError(f"parts.json: {document['kind']!r} is no {name!r} part")
            model.parts_[name] = kind.restored(_output(document["output"]), artifact, towers)
        shape = (len(towers.users.ids), len(towers.items.ids))
        model.rated_ = artifact.csr_matrix("rated", shape, towers.users.ids.sizes)
        model.liked_ = None
        if f"{_LIKED}_data" in artifact.arrays:
            model.liked_ = artifact.csr_matrix(_LIKED, shape, towers.users.ids.sizes, "i")
        rating = model.parts_.get("rating")
        if isinstance(rating, RatingPart):
            model.set_params(**dict(zip(_NETWORKS, rating.own_encoders(), strict=True)))
        if not model.parts_:
            raise InputError("parts.json: the model has learned nothing")
        model.blend_ = _blend(artifact, model.parts_)
        for name, expected in _FACTS.items():
            if not isinstance(artifact.facts[name], expected):
                raise InputError(f"manifest.json: {name} is {artifact.facts[name]!r}")
            setattr(model, f"{name}_", artifact.facts[name])
    model.model_id_ = artifact.model_id
    return model


def _blend(artifact: Artifact, parts: Mapping[str, Part]) -> Blend:
    """Read the blend of the components; it has factors for every kind of entity."""

    def factors(name: str, side: Side) -> np.ndarray:
        width = parts[name.removeprefix(NEW)].heads[side].width
        array = artifact.array(f"lists_{name}_{side}", (KINDS[side], None))
        if array.shape[1] not in (1, width):
            raise InputError(f"lists_{name}_{side}: expected 1 or {width} columns")
        return array

    document = artifact.documents["lists"]
    few, many = (document[name] for name in ("few", "many"))
    if not is_number(few) or not is_number(many):
        raise InputError("lists.json: few and many are no numbers")
    names = [name for part in sorted(parts) for name in (part, f"{NEW}{part}")]
    names = sorted(name for name in names if f"lists_{name}_items" in artifact.arrays)
    if not names:
        raise InputError("lists.json: no component has a weight")
    found = {name: Sides(factors(name, "items"), factors(name, "users")) for name in names}
    return Blend(found, float(few), float(many))


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


def _tower(artifact: Artifact, side: Side, shard: int | None) -> Tower:
    """Make a tower of its parts, none of which is believed: lengths and widths must agree."""
    if side == "users" and "shards" in artifact.documents:
        ids, counts = _users_of(artifact, shard)
    else:
        ids = IdMap(artifact.ids(f"{side}_ids"))
        counts = artifact.rows(f"{side}_n_ratings", ids.sizes, (), "iu")
    fitted = artifact.documents.get(f"{side}_encoder")
    encoder = None if fitted is None else FeatureEncoder.from_dict(fitted)
    width = 0 if encoder is None else encoder.n_features_
    features = artifact.csr_matrix(f"{side}_features", (len(ids), width), ids.sizes)
    return Tower(side, ids, counts, encoder, features)


def _write_shard(
    ids: IdMap, saved: Saved, directory: Path, number: int, sizes: Sequence[int]
) -> dict[str, Any]:
    """Write one of the shards that have `sizes` users; what is stored unchanged is linked.

    Returns what is known of it as plain data, with the type of ids and the entries of its files.
    """
    start = sum(sizes[:number])

    def cut(rows: Any) -> Any:
        if [shard.shape[0] for shard in shards_of(rows)] == list(sizes):
            return shards_of(rows)[number]  # the object itself
        return rows[start : start + sizes[number]]

    arrays = {name: cut(rows) for name, rows in saved.rows.users.items()}
    for name, matrix in saved.sparse.users.items():
        arrays |= csr_arrays(name, cut(matrix))
    if list(ids.sizes) == list(sizes):
        mine = ids.shards[number]
    else:
        mine = IdShard.of(ids.take(np.arange(start, start + sizes[number])))
    arrays |= mine.stored or id_arrays(IDS, mine.ids)
    counts = arrays[COUNTS]
    rated = counts.n_positive if isinstance(counts, StoredArray) else None
    rated = int((np.asarray(counts) > 0).sum()) if rated is None else rated
    known = dict(zip(_KNOWN, (mine.rows, rated, mine.first, mine.last), strict=True))
    written = artifacts.write_shard(directory, number, len(sizes), arrays)
    return {**known, "type": str(ids.type), "files": written}


def _known(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is known of the shards without reading them."""
    types = sorted({shard["type"] for shard in shards})
    if len(types) > 1:
        raise InputError(f"user_id: shards of different types: {', '.join(types)}.")
    # Refuses ranges that overlap.
    ranges = [IdShard(one["rows"], one["first"], one["last"]) for one in shards]
    in_shards(ranges, pa.type_for_alias(types[0]))
    return {name: [shard[name] for shard in shards] for name in _KNOWN}


def _users_of(artifact: Artifact, shard: int | None) -> tuple[IdMap, Array]:
    """Return the ids of the users in shards, and their numbers of ratings; of one shard or all."""
    columns = [artifact.documents["shards"][name] for name in _KNOWN]
    if not all(isinstance(column, list) for column in columns):
        raise InputError(f"shards.json: {', '.join(_KNOWN)} must be lists")
    known = list(zip(*columns, strict=True))
    for rows, rated, *_ in known:
        if not (type(rows) is int and type(rated) is int and 0 <= rated <= rows):
            raise InputError(f"shards.json: {rated!r} of {rows!r} rows are rated")
    known = known if shard is None else [known[shard]]
    counts = artifact.rows(COUNTS, [rows for rows, *_ in known], (), "iu")
    if shard is not None:
        rows, rated, *ends = known[0]
        if (counts > 0).sum() != rated:
            raise InputError(f"{COUNTS}: not {rated} are positive")
        return IdMap(_ids(artifact, (rows, *ends), None)), counts
    names = [name for name in (IDS, f"{IDS}_offsets", f"{IDS}_text") if name in artifact.arrays]
    arrays = {name: artifact.arrays[name] for name in names}
    if not all(isinstance(one, Rows) for one in (counts, *arrays.values())):
        raise InputError("shards.json: the users are in one piece")
    found = []
    for i, (rows, rated, *ends) in enumerate(known):
        counts.shards[i].n_positive = rated
        stored = {name: array.shards[i] for name, array in arrays.items()}
        read = partial(_ids, artifact, (rows, *ends), i)
        found.append(IdShard(rows, ends[0], ends[1], read, stored))
    return in_shards(found, artifact.id_type(IDS)), counts


def _ids(artifact: Artifact, known: tuple[Any, ...], number: int | None) -> pa.Array:
    """Read the ids of a shard, whose number and ends must be those that shards.json says."""
    where = f"{artifact.path}: {IDS}, shard {number}"
    try:
        ids = IdMap(artifact.ids(IDS, number)).ids
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    found = IdShard.of(ids)
    if (found.rows, found.first, found.last) != known:
        raise InputError(f"{where}: not as shards.json says. {REMEDY}")
    return ids
