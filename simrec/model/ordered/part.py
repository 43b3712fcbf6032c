"""How well an item will be liked, by two SimEcs: the rating part of ``method="simec"``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from simrec.data.sides import SINGULAR, Side, Sides, other
from simrec.errors import InputError
from simrec.model.contributions import encoded_by_column
from simrec.model.head import (
    Encoder,
    Network,
    Saved,
    StoredHead,
    restored_heads,
    saved_heads,
)
from simrec.model.ordered.later_ratings import solve_again
from simrec.model.ordered.sampled import by_users, users_of
from simrec.model.ordered.start import frozen_precisions, frozen_statistics
from simrec.model.ordered.two_simecs import Inputs, features_or_constant, fit_two_simecs
from simrec.model.part import Entity, LaterRatings, NewRows, Part
from simrec.model.prepare import Prepared
from simrec.model.rating.evidence import EVIDENCE
from simrec.model.rating.known_entities import Report
from simrec.model.rating.posterior import Precisions
from simrec.model.run.checkpoint import Checkpoint
from simrec.model.run.progress import Step
from simrec.model.sample import MOST_RATINGS, sample_users
from simrec.model.simecs import identity_simec, linear_simec, network_simec
from simrec.rows import Array, Sparse, columns, shards_of, without
from simrec.scoring.output import Output
from simrec.scoring.shares import Parts

if TYPE_CHECKING:
    from simrec.artifacts import Artifact
    from simrec.model.tower import Tower
    from simrec.simec.simec import SimEc

# Rounds in which the precisions of later ratings are estimated.
_ROUNDS = 8
# What the ratings of an entity add to its vector.
_OFFSET = {"items": "how it was rated", "users": "how they rated"}


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a fit beside the vectors.

    Attributes
    ----------
    columns : Sides of Sparse
        Columns of W_l as rows, one for each entity of a side's tower: items have those of the user
        SimEc, users those of the item SimEc. Entities without ratings in `fit` have an empty row.
    precisions : Sides of Precisions
        Of vectors around what features say, and of the noise, on the scale of scalar products.
    """

    columns: Sides[Sparse]
    precisions: Sides[Precisions]

    def last_layer(self, side: Side) -> np.ndarray:
        """Return W_l of the SimEc of a side: a column for each of the other that had ratings."""
        found = self.columns.other(side)
        return np.concatenate([_dense(shard.tocsr()) for shard in shards_of(found)]).T

    def grown(self, new: Sides[NewRows]) -> Kept:
        """Follow towers that have got more rows."""

        def inserted(columns: Sparse, more: NewRows) -> Sparse:
            none = sparse.csr_matrix((len(more.has_features), columns.shape[1]), dtype=np.float32)
            return more.insert(columns, none, replace=False)

        return replace(self, columns=self.columns.map(inserted, new))

    def without(self, side: Side, gone: np.ndarray) -> Kept:
        """Remove some rows of a side's tower."""
        columns = self.columns.with_side(side, without(self.columns[side], gone))
        return replace(self, columns=columns)


@dataclass(eq=False)
class OrderedPart(Part):
    """Predicted ratings: the scalar product of two SimEcs, through a sigmoid within the bounds.

    ============  ===================================================================
    known item    what the item SimEc says of its features (without features, its row)
    new item      what the item SimEc says of its features
    known user    the column of W_l that the item SimEc has learned for them
    new user      what the user SimEc says of their features
    ============  ===================================================================

    Without features a new entity is an average one.

    Attributes
    ----------
    kept : Kept or None
        What later ratings need; None in a model that only scores.
    trained : Sides of SimEc or None
        The SimEcs as they were trained; None in a model that was loaded or only scores.
    """

    kept: Kept | None
    trained: Sides[SimEc] | None = None
    name: ClassVar[str] = "rating"
    kind: ClassVar[str] = "two_simecs"

    @classmethod
    def fit(
        cls,
        data: Prepared,
        embedding_dim: int,
        epochs: int,
        hidden_layers: tuple[int, ...],
        encoders: Sides[Any],
        rng: np.random.Generator,
        report: Report,
        steps: Sides[Step],
        keep_evidence: bool = True,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[OrderedPart, dict[str, Any]]:
        """Learn from ratings; return the part, and what was chosen on the way."""
        low, high = data.bounds
        if not low < high:
            raise InputError(f"bounds: all ratings are {low:g}; give bounds=(lowest, highest).")
        if embedding_dim < 3:
            raise InputError(
                f"embedding_dim must be at least 3 with method='simec', got {embedding_dim}: two "
                "coordinates begin as the biases of items and users."
            )
        # All users unless they are very many: networks learn from a sample, on every worker.
        sample = sample_users(data, MOST_RATINGS, rng)
        R = sparse.csr_matrix(by_users(sample.ratings).T)

        def inputs(side: Side) -> Inputs:
            own, X = encoders[side], sample.X[side][:, :-1]
            if own is not None and not X.shape[1]:
                raise InputError(f"{SINGULAR[side]}_encoder needs a table of {side} to encode.")
            # An identity, or a constant, needs no hidden layers.
            deep = hidden_layers if own is None and X.shape[1] else ()
            return Inputs(X, sample.groups[side][:-1], deep, own)

        given = Sides.of(inputs)
        with threadpool_limits(1, "blas"):  # as in the fit of `RatingPart`
            two = fit_two_simecs(
                R, given, (low, high), embedding_dim, epochs, rng, steps, data.workers, checkpoint
            )
            simecs = Sides(two.items, two.users)
            # Known items are Y, as W_l of the user SimEc has it; known users are W_l of the item
            # SimEc.
            vectors = Sides(two.users.last_layer_.T, two.items.last_layer_.T)
            means = Sides(vectors.items, two.users.transform(features_or_constant(given.users.X)))
            output = two.items.output_
            precisions = Sides(
                _precisions(R, means.items, vectors.users, output),
                _precisions(sparse.csr_matrix(R.T), means.users, vectors.items, output),
            )

            users = users_of(data, sample, vectors, two.users, precisions.users, output)
            vectors = Sides(vectors.items, users)

        def head(side: Side) -> StoredHead:
            prepared = data.sides[side]
            share = prepared.counts / prepared.workers.total(float(prepared.counts.sum()))
            average = prepared.workers.sum(share @ vectors[side])
            encoder = _encoder(simecs[side], prepared.X.shape[1] - 1, average)
            return prepared.head(np.ascontiguousarray(vectors[side]), encoder)

        chosen: dict[str, Any] = {}
        for side, choice in two.chosen.named():
            singular = SINGULAR[side]
            chosen |= {
                f"{singular}_iterations": choice.iterations,
                f"{singular}_penalty": choice.factor,
            }
            if np.isfinite(choice.rmse):
                chosen[f"expected_rmse_new_{side}"] = choice.rmse
                report({f"val_new_{side}": choice.rmse})
        if not keep_evidence:
            return cls(Sides.of(head), output, None), chosen
        columns = vectors.map(
            lambda found, side: _spread_out(
                np.ascontiguousarray(found.T), side.rated_rows, len(side.tower.ids)
            ),
            data.sides,
        )
        kept = Kept(columns, precisions)
        return cls(Sides.of(head), output, kept, simecs), chosen

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest rating."""
        assert self.output.lower is not None and self.output.upper is not None
        return self.output.lower, self.output.upper

    def own_encoders(self) -> Sides[Any]:
        """Return the trained encoders of the user's own; None where they are built in."""

        def own(head: StoredHead) -> Any:
            return head.encoder.networks[0].simec.encoder if head.encoder.networks else None

        return self.heads.map(own)

    def simec(self, side: Side) -> SimEc:
        """Return the SimEc of a side: as trained, or rebuilt from plain data."""
        if self.trained is not None:
            return self.trained[side]
        last_layer = self._kept(f"{SINGULAR[side]}_simec_").last_layer(side)
        encoder = self.heads[side].encoder
        if encoder.networks:
            return network_simec(encoder.networks[0].simec.encoder_, last_layer, self.output)
        if side == "items" and len(encoder.weights) == 1:  # no features: a row for each item
            table = np.ascontiguousarray(self._kept("item_simec_").last_layer("users").T)
            return identity_simec(table, last_layer, self.output)
        return linear_simec(encoder.weights, last_layer, self.output)

    def _kept(self, what: str) -> Kept:
        if self.kept is None:
            raise InputError(f"{what}: the model holds vectors only. Fit with keep_evidence=True.")
        return self.kept

    def with_new(self, new: Sides[NewRows]) -> OrderedPart:
        """Make room for new entities: what their features say."""

        def grown(head: StoredHead, more: NewRows) -> StoredHead:
            return head.grown(head.vectors_of_new(more.features, more.has_features), more.insert)

        kept = self._kept("fold_in").grown(new)
        return replace(self, heads=self.heads.map(grown, new), kept=kept)

    def with_ratings(
        self,
        counts: Sides[Array],
        later: LaterRatings,
        rated: Sparse,
        only_new: bool,
    ) -> tuple[OrderedPart, Sides[np.ndarray]]:
        """Solve again for those who have learned, with their partners frozen: items, then users.

        A rating counts once: for the one of the two with fewer ratings before, of equals for the
        user. Otherwise both would move to explain it, and together too far.
        """
        part = self
        before = later.rows.map(lambda rows, count: count[rows], counts)
        to_items = before.items < before.users
        uses = Sides(to_items, ~to_items)
        if only_new:
            uses = uses.map(lambda use, count: use & (count == 0), before)
        learned = uses.map(lambda use, rows: np.unique(rows[use]), later.rows)
        for side in ("items", "users"):
            if len(learned[side]):
                part = part._solved(side, learned[side], later, uses[side], rated)
        return part, learned

    def _solved(
        self,
        side: Side,
        rows: np.ndarray,
        later: LaterRatings,
        use: np.ndarray,
        rated: Sparse,
    ) -> OrderedPart:
        head, partners = self.heads[side], np.asarray(self.heads.other(side).vectors)
        every = rated[rows] if side == "users" else columns(rated, rows)
        shape = (len(self.heads[side].vectors), len(partners))
        place = (later.rows[side], later.rows.other(side))
        given = sparse.csr_matrix((np.ones(len(use), np.float32), place), shape=shape)
        before = sparse.csr_matrix((every > 0).astype(np.float32) - (given[rows] > 0))
        before.eliminate_zeros()
        used = (later.values[use].astype(np.float32), (place[0][use], place[1][use]))
        values = sparse.csr_matrix(used, shape=shape)[rows]
        precisions = self._kept("update").precisions[side]
        vectors = solve_again(head.vectors[rows], before, values, partners, precisions, self.output)
        return replace(self, heads=self.heads.with_side(side, head.changed(rows, vectors)))

    def without(self, side: Side, gone: np.ndarray) -> OrderedPart:
        """Remove some rows of a side, also from W_l."""
        heads = self.heads.with_side(side, self.heads[side].without(gone))
        kept = None if self.kept is None else self.kept.without(side, gone)
        return replace(self, heads=heads, kept=kept, trained=None)

    def explained(self, entity: Entity, vector: np.ndarray) -> Parts:
        """Take a vector apart: average, feature columns, and what ratings add."""
        side, x = entity.side, entity.features
        vector = np.asarray(vector, np.float64)
        names, values = [f"average {SINGULAR[side]}"], [""]
        pieces = np.asarray(self.heads[side].prior, np.float64)[None]
        if x is None:
            pieces = vector[None]
        elif entity.encoder is None or x.nnz:
            pieces = encoded_by_column(entity.encoder, x, self.heads[side].encoder)
            columns = {} if entity.encoder is None else entity.encoder.words(x)
            names, values = [*names, *columns], [*values, *columns.values()]
        rest = vector - pieces.sum(0)
        if entity.count:
            names, values = [*names, _OFFSET[side]], [*values, f"{entity.count:,} ratings"]
            pieces = np.concatenate([pieces, rest[None]])
        return Parts(names, values, pieces, np.zeros(len(vector)))

    def comparable(self, side: Side, vectors: np.ndarray) -> np.ndarray:
        """Return vectors less that of an average entity, hence without what all have in common."""
        return vectors - self.heads[side].prior

    def saved(self, in_shards: bool = False) -> Saved:
        """Return heads, last layers and precisions as plain data."""
        saved = saved_heads(self.name, self.heads)
        if self.kept is not None:
            for side, precisions in self.kept.precisions.named():
                start = f"{self.name}_{EVIDENCE}_{side}"
                saved.arrays |= {f"{start}_L": precisions.L, f"{start}_t": np.array(precisions.t)}
                if in_shards:
                    saved.sparse[side][f"{start}_last_layer"] = self.kept.columns[side]
                    continue
                entries = np.diff(self.kept.columns.other(side).tocsr().indptr)
                saved.arrays[f"{start}_last_layer"] = self.kept.last_layer(side)
                saved.arrays[f"{start}_columns"] = np.flatnonzero(entries)
        return saved

    @classmethod
    def restored(cls, output: Output, artifact: Artifact, towers: Sides[Tower]) -> OrderedPart:
        """Rebuild the part from what `saved` returned."""
        heads = restored_heads(cls.name, artifact, towers)
        start, d = f"{cls.name}_{EVIDENCE}", heads.items.width
        if not output.bounded or output.kind != "sigmoid" or output.lower == output.upper:
            raise InputError(f"{cls.name}: {output} is not bounded")
        if f"{start}_items_L" not in artifact.arrays:
            return cls(heads, output, None)

        def precisions(side: Side) -> Precisions:
            L = np.array(artifact.array(f"{start}_{side}_L", (d, d)))
            return Precisions(L, float(artifact.array(f"{start}_{side}_t", ())))

        def columns(side: Side) -> Sparse:
            name, ids = f"{start}_{side}_last_layer", towers[side].ids
            if f"{name}_data" in artifact.arrays:
                return artifact.csr_matrix(name, (len(ids), d), ids.sizes)
            name = f"{start}_{other(side)}"
            last_layer = artifact.array(f"{name}_last_layer", (d, None))
            rows = artifact.array(f"{name}_columns", (last_layer.shape[1],), "i")
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(ids):
                raise InputError(f"{name}_columns: a row is out of range")
            if (np.diff(rows) <= 0).any():
                raise InputError(f"{name}_columns: rows are not ascending")
            return _spread_out(last_layer, rows, len(ids))

        return cls(heads, output, Kept(Sides.of(columns), Sides.of(precisions)))


def _spread_out(last_layer: np.ndarray, rows: np.ndarray, n: int) -> sparse.csr_matrix:
    """Put the columns of W_l at their rows among n."""
    d = len(last_layer)
    starts = np.zeros(n + 1, np.int64)
    starts[rows + 1] = d
    indices = np.tile(np.arange(d, dtype=np.int32), len(rows))
    values = np.ascontiguousarray(last_layer.T).reshape(-1)
    return sparse.csr_matrix((values, indices, np.cumsum(starts)), shape=(n, d))


def _dense(columns: sparse.csr_matrix) -> np.ndarray:
    """Return the rows that are not empty, which must be full."""
    entries = np.diff(columns.indptr)
    if not np.isin(entries, (0, columns.shape[1])).all():
        raise InputError("W_l: a column is neither there nor absent")
    return columns.data.reshape(-1, columns.shape[1])


def _encoder(simec: SimEc, n_features: int, average: np.ndarray) -> Encoder:
    """Return what a SimEc says of features; without features it is an average entity."""
    weights = np.zeros((n_features + 1, simec.embedding_dim), np.float32)
    if simec.hidden_layers or simec.encoder is not None:
        return Encoder(weights, [Network(simec, np.eye(simec.embedding_dim, dtype=np.float32))])
    if simec.feature_kind_ == "identity":
        weights[0] = average
        return Encoder(weights)
    kernel, bias = simec.encoder_.get_weights()
    if n_features:
        weights[:-1], weights[-1] = kernel, bias
    else:
        weights[0] = kernel[0] + bias
    return Encoder(weights)


def _precisions(
    R: sparse.csr_matrix, means: np.ndarray, partners: np.ndarray, output: Output
) -> Precisions:
    """Estimate how far vectors lie from what features say, and the noise, in R's rows."""
    _, stats = frozen_statistics(R, np.ascontiguousarray(partners), output)
    found = Precisions.start(partners.shape[1])
    for _ in range(_ROUNDS):
        found = frozen_precisions(stats, means, found, R.nnz)
    return found
