"""`TwoTower`: ratings and features in; answers for known and for new items and users out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from simrec.data.ids import IdMap
from simrec.data.ratings import Ratings
from simrec.data.sides import SINGULAR, Side, Sides
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.model import files
from simrec.model.answer.explain import explain
from simrec.model.answer.ranking import RankBy, ranked_parts, ranking
from simrec.model.answer.recommend import choose, exclusions, recommend, without_ratings
from simrec.model.answer.score import list_score
from simrec.model.answer.similar import similar
from simrec.model.divided import put_together
from simrec.model.fit import EPOCHS, Settings, fit_parts, stages_of
from simrec.model.head import Found, Head
from simrec.model.ordered.part import OrderedPart
from simrec.model.params import check_params
from simrec.model.part import Part
from simrec.model.prepare import Encoding, prepare, rated_pairs, read_ratings
from simrec.model.rating.output import OutputKind
from simrec.model.rating.part import RatingPart
from simrec.model.run.checkpoint import Run
from simrec.model.run.divide import own_users
from simrec.model.run.progress import Progress
from simrec.model.tower import Tower, Unknown
from simrec.model.update.update import State, forget, learn
from simrec.rows import Sparse
from simrec.scoring.pairs import score_pairs
from simrec.simec.params import Params, r_squared

if TYPE_CHECKING:
    from simrec.model.export.faiss_index import Index
    from simrec.model.export.formats import Format
    from simrec.simec.simec import SimEc

logger = logging.getLogger(__name__)

TableKind = Literal["pandas", "arrow"]


class TwoTower(Params):
    """Recommender of two towers whose scalar product scores a user and an item.

    Ratings are fitted by sweeps over items and users in turn, the towers of new items and users by
    encoders of features against the embeddings found; uptake, what users take up at all, by
    alternating least squares over all pairs. An entity with ratings has the posterior of its
    embedding around what its features say; one without has what its features say. One model
    answers for known users and items, new items, new users, and both new.

    With ``method="simec"`` two `SimEc` are trained one after the other, and nothing is added to
    them: item features -> ratings, then user features -> ratings with W_l frozen to the item
    embeddings, both with a sigmoid within the bounds; docs/ordered.md compares the two.

    Parameters
    ----------
    embedding_dim : int or None
        Coordinates of an embedding, without biases; None for 16 in the rating part, and for what
        held-out pairs suggest in the uptake part.
    bounds : (float, float) or None
        Lowest and highest rating; None for those of the training ratings.
    epochs : int or None
        Sweeps of the rating part over both towers; None for 16. Of ``method="simec"`` the most
        iterations of each SimEc; None for 200.
    hidden_layers : sequence of int
        Widths of trained hidden layers of the encoders of new items and users in the rating part.
        By default encoders are fitted in closed form, which is much faster: linear, or with one
        hidden layer that is drawn at random where held-out entities clearly gain by it.
    folds : int
        Parts in which items and users are held out to choose penalties and to fit partners.
    min_count : int
        How often a category has to occur in training to be a feature.
    knots : int
        Points of the piecewise linear curve that is learned for a number; 0 for a straight line.
    item_columns, user_columns : mapping of str to str or None
        How to encode feature columns: number, category, list, vector, text or ignore.
    half_life : float, "auto" or None
        Days after which a pair counts half in the popularity of its item, which is what users of
        whom nothing is known are shown; "auto" for an eighth of the time that the ratings span.
        None: all times count alike. Needs timestamps.
    method : {"default", "simec"}
        How ratings are learned: with all that is known to help, or by two SimEcs as they are.
    rating_output : {"auto", "identity", "sigmoid"}
        What makes a rating of a scalar product: the identity, clipped to the bounds, or a sigmoid
        between the lowest and the highest ratings; by default a sigmoid where held-out ratings
        are predicted clearly better by it. With ``method="simec"`` it is a sigmoid within the
        bounds.
    item_encoder, user_encoder : keras.Model or None
        Encoders of your own for ``method="simec"``: tf_keras models, Sequential or functional, from
        encoded features to `embedding_dim` linear units. Copies are trained from their weights.
    keep_evidence : bool
        Whether to keep what later ratings, intervals and explanations need: the posteriors of all
        items and users, most of a model. Without it a model only scores.
    random_state : int
        Seed; the same seed gives the same model on the same machine.
    verbose : int
        Progress: 0 none, 1 a bar over all of the work, 2 a line for each sweep and each attempt.

    Attributes
    ----------
    items_, users_ : IdMap
        All ids the model knows.
    towers_ : Sides of Tower
        Items and users: ids, numbers of ratings, encoders of features.
    parts_ : dict of str to Part
        What was learned: "rating", "uptake".
    rated_ : csr_matrix or SparseRows
        Users x items: what each user has rated, with the confidence in it.
    uptake_weight_ : float
        Weight of uptake in lists, where the predicted rating has weight 1.
    history_ : list of dict
        What was logged of each sweep, and of each choice on held-out entities.
    chosen_ : dict
        What fitting chose by itself, and the errors it expects.
    schema_ : dict
        Kind of each column of features, by side.
    model_id_, parent_ : str or None
        Id of the model as it was last saved or loaded, and of the one it was updated from.
    updates_ : list of dict
        What each update has learned.

    Examples
    --------
    Those of the methods go on from this one.

    >>> from simrec import TwoTower, cold_start_split, make_synthetic
    >>> data = make_synthetic(n_users=200, n_items=100, n_ratings=4000)
    >>> split = cold_start_split(Ratings.from_arrow(data.ratings))
    >>> model = TwoTower().fit(split.train, items=data.items, users=data.users)
    >>> model.predict(split.new_items.to_arrow()).shape == (len(split.new_items),)
    True
    """

    towers_: Sides[Tower]
    parts_: dict[str, Part]
    rated_: Sparse
    uptake_weight_: float
    history_: list[dict[str, float]]
    chosen_: dict[str, Any]
    schema_: dict[str, dict[str, str]]
    model_id_: str | None
    parent_: str | None
    updates_: list[dict[str, Any]]

    def __init__(
        self,
        embedding_dim: int | None = None,
        bounds: tuple[float, float] | None = None,
        epochs: int | None = None,
        hidden_layers: Sequence[int] = (),
        folds: int = 5,
        min_count: int = 2,
        knots: int = 10,
        item_columns: Mapping[str, str] | None = None,
        user_columns: Mapping[str, str] | None = None,
        half_life: float | Literal["auto"] | None = None,
        method: Literal["default", "simec"] = "default",
        rating_output: OutputKind = "auto",
        item_encoder: Any = None,
        user_encoder: Any = None,
        keep_evidence: bool = True,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.embedding_dim = embedding_dim
        self.bounds = bounds
        self.epochs = epochs
        self.hidden_layers = hidden_layers
        self.folds = folds
        self.min_count = min_count
        self.knots = knots
        self.item_columns = item_columns
        self.user_columns = user_columns
        self.half_life = half_life
        self.method = method
        self.rating_output = rating_output
        self.item_encoder = item_encoder
        self.user_encoder = user_encoder
        self.keep_evidence = keep_evidence
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        ratings: Ratings | TableLike,
        y: Any = None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        callbacks: Sequence[Any] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        strategy: Any = None,
        divided: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        scratch: str | os.PathLike[str] | None = None,
    ) -> TwoTower:
        """Learn both towers; an earlier fit is forgotten.

        Parameters
        ----------
        ratings : Ratings, table or path
            Columns user_id, item_id and, unless there are only interactions, rating.
        y : array of float, optional
            The ratings, where they are not a column; scikit-learn gives them so.
        items, users : table or path, optional
            Features, one row for each item_id or user_id. Those without ratings are new entities
            whose features the model then knows.
        callbacks : sequence of keras.callbacks.Callback, optional
            Called after each epoch with its "loss" (the noise left, in units of the ratings; where
            the output is a sigmoid this and the next are taken by its average slope), and
            after each attempt to encode new entities with the error on those held out,
            "val_new_items" or "val_new_users".
        log_dir : path, optional
            Where to write logs for TensorBoard.
        strategy : tf.distribute.Strategy or Workers, optional
            Workers to divide the users between, such as a MultiWorkerMirroredStrategy. Each
            worker calls fit with the same tables, and all end with the same model.
        divided : bool
            Whether each worker gives the ratings and features of its own users only, ranges of
            ascending ids in the order of the workers, and ends with a model of its own users: a
            shard, as `save` writes it.
        checkpoint : path, optional
            Directory in which to keep the state of the fit. Delete it once the model is saved.
        resume : bool
            Whether to go on from the checkpoint, which must be of the same data and settings.
        memory : str or int, optional
            Memory to work in, such as 4GB, or a number of bytes. Arrays that are as long as the
            users then live in files and are worked on in blocks; the model is the same.
        scratch : path, optional
            Directory for these files, which have no names and are gone with the process; that of
            temporary files by default.

        Returns
        -------
        TwoTower
            Itself.

        Examples
        --------
        >>> TwoTower(epochs=4).fit(split.train, items=data.items)
        <TwoTower(epochs=4) fitted to 2,314 ratings of 80 items by 160 users>
        """
        check_params(self.get_params())
        run = Run.of(strategy, checkpoint, resume, memory, scratch)
        columns = Sides(self.item_columns, self.user_columns)
        encoding = Encoding(columns, self.min_count, self.knots)
        taken = read_ratings(rated_pairs(ratings, y), self.bounds)
        if not divided:
            taken, users = own_users(taken, users, run.workers)
        data = prepare(taken, self.bounds, Sides(items, users), encoding, run.workers)
        data.scratch = run.scratch
        settings = Settings(
            self.embedding_dim,
            self.epochs or EPOCHS[self.method],
            self.folds,
            tuple(self.hidden_layers),
            self.random_state,
            self.method,
            self.rating_output,
            Sides(self.item_encoder, self.user_encoder),
            self.keep_evidence,
            self.half_life,
        )
        first = run.workers.rank == 0  # of several workers, one shows how far they are
        verbose, log_dir = self.verbose if first else 0, log_dir if first else None
        stages = stages_of(settings, data.ratings.has_ratings)
        with Progress(stages, verbose, callbacks, log_dir) as progress:
            kept = run.checkpoint(self.get_params(), data)
            fitted = fit_parts(data, settings, kept, progress)
        self.parts_, self.uptake_weight_ = fitted.parts, fitted.uptake_weight
        self.chosen_ = fitted.chosen
        self.towers_ = data.sides.map(lambda side: side.tower)
        self.rated_ = data.rated()
        self.history_, self.schema_ = progress.history, data.schema
        self.model_id_, self.parent_, self.updates_ = None, None, []
        if not divided:
            put_together(self, run.workers)
        for name, value in self.chosen_.items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            logger.info("chosen: %s = %s", name, shown)
        return self

    def predict(
        self,
        pairs: Any,
        item_id: Any = None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        unknown: Unknown = "error",
        return_std: bool = False,
    ) -> Any:
        """Predict the ratings of pairs; without ratings in training, the probability of uptake.

        Parameters
        ----------
        pairs : table, path or Ratings; or an id
            Columns user_id and item_id; or one user_id, with `item_id`.
        item_id : id, optional
            The item, where `pairs` is one user.
        items, users : table or path, optional
            Features of ids the model does not know.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features: refuse, or answer for an
            average item or user.
        return_std : bool
            Whether to return a standard deviation for each prediction: of the rating around it,
            hence with the noise of ratings, and larger the less is known of item and user. With a
            sigmoid it is smaller near its ends.

        Returns
        -------
        numpy.ndarray, or two of them
            A float32 for each pair, within the bounds; with `return_std` the predictions and their
            standard deviations.

        Examples
        --------
        >>> model.predict(split.warm).dtype, model.predict(split.warm).shape
        (dtype('float32'), (254,))
        >>> bool(1 < model.predict(7, 17)[0] < 5)  # one user, one item
        True
        >>> mean, std = model.predict(split.warm, return_std=True)
        >>> unheard_of = {"user_id": [7], "item_id": [999]}
        >>> model.predict(pd.DataFrame(unheard_of), unknown="prior").shape
        (1,)
        """
        self._check_fitted()
        source = pairs.to_arrow() if isinstance(pairs, Ratings) else pairs
        if item_id is not None:
            source = pa.table({"user_id": [pairs], "item_id": [item_id]})
        table = read_table(source, ["user_id", "item_id"], name="pairs", allow_empty=True)
        tables = Sides(items, users)

        def find(side: Side) -> Found:
            ids = table[f"{SINGULAR[side]}_id"]
            return self.towers_[side].find(ids, tables[side], unknown)

        found = Sides.of(find)
        part = self.predictor()
        vectors = part.heads.map(lambda head, where: head.gathered(where), found)
        z = score_pairs(vectors.users[0], vectors.items[0], vectors.users[1], vectors.items[1])
        scores = part.output(z)
        if not return_std:
            return scores
        rating = self._rating("return_std")

        def variance(side: Side) -> np.ndarray:
            return rating.variance(side, found[side], self.towers_[side].counts, "return_std")

        return scores, rating.std(z, variance("users") + variance("items"), "return_std")

    def score(
        self,
        ratings: Ratings | TableLike,
        y: Any = None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> float:
        """Return how well the model predicts ratings, as one number; `evaluate` says more.

        Parameters
        ----------
        ratings : Ratings, table or path
            Ratings that the model was not fitted to. Ids of which nothing is known are predicted as
            average ones.
        y : array of float, optional
            The ratings, where they are not a column.
        items, users : table or path, optional
            Features of ids the model does not know.

        Returns
        -------
        float
            The share of the variance of the ratings that is explained (R^2): 1 at best, 0 for the
            mean. Of a model without ratings the NDCG@10 of its lists, where the pairs are the hits.

        Examples
        --------
        >>> 0 < model.score(split.warm) < 1
        True
        """
        self._check_fitted()
        given = read_ratings(rated_pairs(ratings, y), None)
        if "rating" not in self.parts_ or not given.has_ratings:
            heads, _ = self.ranking("both")
            return list_score(given, self.towers_, heads, self.rated_, k=10)
        found = self.predict(given, items=items, users=users, unknown="prior")
        return r_squared(given.values, found)

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        items: Any = None,
        new_items_only: bool = False,
        exclude: Ratings | TableLike | Literal["rated"] | None = "rated",
        rank_by: RankBy = "both",
        unknown: Unknown = "error",
        explore: float = 0.0,
        output: TableKind = "pandas",
    ) -> Any:
        """Recommend the k best items to each user.

        Parameters
        ----------
        users : id, ids, table or path, optional
            For whom: an id, a list or array of ids, or a table with user_id and, for new users,
            their features. All users the model knows by default.
        k : int
            How many for each; fewer, or none, where there are not as many candidates.
        items : id, ids, table or path, optional
            The candidates, likewise. All items the model knows by default.
        new_items_only : bool
            Whether to recommend only candidates without any ratings.
        exclude : "rated", None, Ratings, table or path
            What is not to be recommended. By default what a user has rated; None to leave nothing
            out; a table of pairs (user_id, item_id) to leave those out as well.
        rank_by : {"both", "rating", "uptake"}
            Rank by what a user will take up and like, by the predicted rating, or by uptake alone.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        explore : float
            Rank by score + explore * posterior standard deviation of the item, an upper confidence
            bound, so that new items get a chance. The user's deviation is the same for all items,
            and noise is nothing to explore.
        output : {"pandas", "arrow"}
            What to return: a pandas frame or an Arrow table.

        Returns
        -------
        pandas.DataFrame or pyarrow.Table
            Columns user_id, item_id, score and rank (from 1), users in the order given. Of equal
            scores the item that comes first among the candidates comes first. The score is the
            predicted rating before its output (not confined to the bounds; with a sigmoid, its
            logit) plus the weight of uptake times its logit; of one part, either of them. It does
            not contain what `explore` adds.

        Examples
        --------
        >>> model.recommend(7, k=2).columns.tolist()
        ['user_id', 'item_id', 'score', 'rank']
        >>> len(model.recommend([7, 8], k=3, new_items_only=True))
        6
        >>> table = model.recommend(data.users, items=[1, 17, 24], exclude=None, output="arrow")
        >>> table.num_rows
        600
        """
        self._check_fitted()
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k must be a whole number from 1 on, got {k!r}.")
        given = Sides(items, users)
        chosen = Sides.of(lambda side: choose(self.towers_[side], given[side], unknown))
        if new_items_only:
            chosen = Sides(without_ratings(*chosen.items, self.towers_.items), chosen.users)
        seen = None
        if exclude is not None:
            more = None if isinstance(exclude, str) and exclude == "rated" else exclude
            seen = exclusions(chosen, self.rated_, more)
        if explore and rank_by == "uptake":
            raise InputError("explore: ratings are explored, not uptake; rank by both or rating.")
        bonus = self.exploration(chosen.items[1], explore)
        heads, shift = self.ranking(rank_by)
        k = max(1, min(int(k), len(chosen.items[0])))  # before memory is taken for it
        return _table(recommend(chosen, heads, k, seen, bonus, shift), output)

    def ranking(self, rank_by: RankBy) -> tuple[Sides[Head], float]:
        """Return the vectors whose scalar product ranks, and what is added to it for the score.

        Examples
        --------
        >>> heads, shift = model.ranking("both")
        >>> users, items = heads.users.vectors, heads.items.vectors
        >>> users.shape[1] == items.shape[1]
        True
        """
        return ranking(self._parts(rank_by))

    def exploration(self, items: Found, explore: float) -> np.ndarray | None:
        """Return explore * posterior standard deviation of items; None where it is 0.

        Examples
        --------
        >>> known = model.towers_.items.everyone()
        >>> model.exploration(known, 1.0).shape
        (100,)
        >>> model.exploration(known, 0.0) is None
        True
        """
        number = isinstance(explore, int | float | np.number) and not isinstance(explore, bool)
        if not number or not np.isfinite(explore) or explore < 0:
            raise InputError(f"explore must be a number from 0 on, got {explore!r}.")
        if not explore:
            return None
        rating = self._rating("explore")
        variance = rating.variance("items", items, self.towers_.items.counts, "explore")
        return (explore * np.sqrt(variance)).astype(np.float32)

    def embed_items(
        self, items: Any = None, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the vectors of items, all known ones by default: columns item_id and vector.

        Examples
        --------
        >>> model.embed_items().columns.tolist(), len(model.embed_items())
        (['item_id', 'vector'], 100)
        """
        return _table(self._embed("items", items, rank_by), output)

    def embed_users(
        self, users: Any = None, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the vectors of users, all known ones by default: columns user_id and vector.

        Examples
        --------
        >>> len(model.embed_users([7, 8], rank_by="rating"))
        2
        """
        return _table(self._embed("users", users, rank_by), output)

    def fold_in(
        self,
        ratings: Ratings | TableLike | None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> TwoTower:
        """Give ratings to users and items that have none yet, without training again.

        A new entity gets the posterior of its embedding given its ratings, around what its features
        say; without ratings it is the cold answer exactly. Those who have ratings already stay as
        they are: `update` is for them. The model is changed in place; `save` keeps it.

        Parameters
        ----------
        ratings : Ratings, table or path, or None
            Ratings of new users, new items, or both.
        items, users : table or path, optional
            Features of entities the model does not know. Those without are taken as average.

        Returns
        -------
        TwoTower
            Itself.

        Examples
        --------
        >>> few = split.new_users.select(split.new_users.user_rows < 5)
        >>> model.fold_in(few)
        <TwoTower() fitted to 2,348 ratings of 80 items by 165 users>
        """
        self._learn(ratings, Sides(items, users), only_new=True)
        return self

    def update(
        self,
        ratings: Ratings | TableLike,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> TwoTower:
        """Learn a day's new ratings, users and items, at a small part of the cost of a fit.

        Everyone with a new rating learns from it, known or new; the posteriors so far stand for
        all ratings before. A pair that is rated again counts as further evidence. Encoders and
        the columns of features stay as fitted: a category that is new is encoded as unknown, and
        counted in `updates_`. The model is changed in place; when saved it names its parent.

        Parameters
        ----------
        ratings : Ratings, table or path
            The new ratings only.
        items, users : table or path, optional
            Features of entities the model does not know.

        Returns
        -------
        TwoTower
            Itself.

        Examples
        --------
        >>> model.update(split.warm).updates_[0]["ratings"]
        254
        """
        learned = self._learn(ratings, Sides(items, users), only_new=False)
        self.updates_ = [*self.updates_, {**learned, "parent": self.parent_}]
        return self

    def forget(self, user_ids: Any) -> TwoTower:
        """Remove users from the model: ids, features, vectors and all that was learned of them.

        What items have learned from the ratings of users, in `fit`, in `update`, or when they were
        folded in together, is a sum over all their ratings and stays until the next fit without
        those users. Users who were folded in with known items leave nothing behind.

        Parameters
        ----------
        user_ids : id or ids
            Whom to forget.

        Returns
        -------
        TwoTower
            Itself.

        Examples
        --------
        >>> model.forget([7, 8])
        <TwoTower() fitted to 2,289 ratings of 80 items by 158 users>
        """
        self._check_fitted()
        self._take_over(forget(self._state(), user_ids))
        return self

    def explain(
        self,
        user_id: Any,
        item_id: Any,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        rank_by: RankBy | None = None,
        unknown: Unknown = "error",
        output: TableKind = "pandas",
    ) -> Any:
        """Return what adds how much to the score of a user and an item.

        A part of the user and a part of the item that act together share their product equally.

        Parameters
        ----------
        user_id, item_id : id
            The pair.
        items, users : table or path, optional
            Features of an id the model does not know.
        rank_by : {"both", "rating", "uptake"}, optional
            Which score to explain; by default that of `predict`.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        output : {"pandas", "arrow"}
            What to return: a pandas frame or an Arrow table.

        Returns
        -------
        pandas.DataFrame or pyarrow.Table
            A row for the mean and for each part of the item and of the user: side, feature, value,
            bias (what it adds for any partner), taste (what it adds for this one) and
            contribution, their sum. Contributions sum to the score before its output: to the
            rating, not confined to the bounds; where the output is a sigmoid (see `chosen_`) to its
            logit, and without ratings to that of uptake.

        Examples
        --------
        >>> why = model.explain(7, 17)
        >>> why.columns.tolist()
        ['side', 'feature', 'value', 'bias', 'taste', 'contribution']
        >>> bool(abs(why["contribution"].sum() - model.predict(7, 17)[0]) < 1e-4)
        True
        """
        self._check_fitted()
        parts = [(self.predictor(), 1.0)] if rank_by is None else self._parts(rank_by)
        ids, tables = Sides(item_id, user_id), Sides(items, users)
        return _table(explain(self.towers_, parts, ids, tables, unknown), output)

    def similar_items(
        self, item: Any, k: int = 10, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the items that the same users take up and like.

        Parameters
        ----------
        item : id, ids, mapping or table
            Ids the model knows, or the features of one item.
        k : int
            How many for each.
        rank_by : {"both", "rating", "uptake"}
            Which scores to compare.
        output : {"pandas", "arrow"}
            What to return: a pandas frame or an Arrow table.

        Returns
        -------
        pandas.DataFrame or pyarrow.Table
            Columns item_id, similarity (from -1 to 1: the cosine between the scores that users
            give to both, biases aside) and rank; for several items also for_item_id.

        Examples
        --------
        >>> model.similar_items(17, k=2).columns.tolist()
        ['item_id', 'similarity', 'rank']
        >>> len(model.similar_items([17, 24], k=2))
        4
        """
        self._check_fitted()
        return _table(similar("items", self.towers_, self._parts(rank_by), item, k), output)

    def similar_users(
        self, user: Any, k: int = 10, rank_by: RankBy = "both", output: TableKind = "pandas"
    ) -> Any:
        """Return the users who take up and like the same items; see `similar_items`.

        Examples
        --------
        >>> len(model.similar_users(7, k=3))
        3
        """
        self._check_fitted()
        return _table(similar("users", self.towers_, self._parts(rank_by), user, k), output)

    def export(
        self,
        path: str | os.PathLike[str],
        format: Format,
        *,
        side: Literal["item", "user"] | None = None,
        items: TableLike | None = None,
        users: TableLike | None = None,
        rank_by: RankBy = "both",
        index: Index = "auto",
        unknown: Unknown = "error",
    ) -> dict[str, Any]:
        """Write the model for another system, as a directory.

        Parameters
        ----------
        path : path
            The directory; an earlier export there is replaced.
        format : {"savedmodel", "tower", "parquet", "faiss"}
            The user tower over an index of the items as a SavedModel, one tower as a SavedModel,
            vectors whose inner product is the score, or an index of Faiss over the items.
        side : {"item", "user"}, optional
            The tower; of "parquet" both by default.
        items, users : table or path, optional
            Whom to export instead of all known ones, with features of those not known.
        rank_by : {"both", "rating", "uptake"}
            Which score to export; see `recommend`.
        index : {"auto", "flat", "hnsw", "ivf"}
            Kind of the Faiss index; "auto" chooses by the number of items.
        unknown : {"error", "prior"}
            What a SavedModel does with an unknown user without features.

        Returns
        -------
        dict
            What was written; for "faiss" with the recall@10 of the index against exact search.

        Examples
        --------
        >>> written = model.export("vectors", "parquet")
        >>> written["items"], written["users"]
        (100, 200)
        """
        from simrec.model.export.formats import export

        self._check_fitted()
        heads, shift = self.ranking(rank_by)
        parts = self._parts(rank_by)
        return export(
            self.towers_,
            heads,
            shift,
            path,
            format,
            side,
            Sides(items, users),
            index,
            unknown,
            self.model_id_ or "",
            parts[0][0].output if len(parts) == 1 else None,
        )

    def report(
        self,
        ratings: Ratings | TableLike,
        out: str | os.PathLike[str],
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> dict[str, Any]:
        """Write a page that says whether to ship the model, what to do next, and why.

        Parameters
        ----------
        ratings : Ratings, table or path
            The ratings it was fitted to.
        out : path
            The HTML file to write; an earlier report there is replaced.
        items, users : table or path, optional
            The features it was fitted with.

        Returns
        -------
        dict
            See `simrec.report`, which has more options.

        Examples
        --------
        >>> page = model.report(split.train, "report.html", items=data.items, users=data.users)
        >>> page["out"], len(page["tasks"])
        ('report.html', 4)
        """
        from simrec import report  # evaluation lies above the model: by the door of the package

        self._check_fitted()
        return report(self, ratings, out, items=items, users=users)

    def save(self, path: str | os.PathLike[str], shards: int | None = None) -> None:
        """Write the model to a directory: no pickle, no code.

        Parameters
        ----------
        path : path
            The directory; an earlier model there is replaced in one step.
        shards : int, optional
            Into how many ranges of users to divide its files; by default as many as it was loaded
            from, or one. Shards that have not changed since are linked instead of written.

        Examples
        --------
        >>> model.save("model")
        >>> model.model_id_ == TwoTower.load("model").model_id_
        True
        >>> model.save("model", shards=8)
        """
        self._check_fitted()
        self.model_id_ = files.save(self, path, shards)

    @classmethod
    def load(cls, path: str | os.PathLike[str], shard: int | None = None) -> TwoTower:
        """Read a model written by `save`; nothing in the directory is executed.

        Of a model in shards a user's files are read when that user is first asked for.

        Parameters
        ----------
        path : path
            The directory.
        shard : int, optional
            Read only the users of this shard, counted from 0, and all items.

        Examples
        --------
        >>> model.save("model")
        >>> TwoTower.load("model")
        <TwoTower() fitted to 2,314 ratings of 80 items by 160 users>
        """
        return files.load(cls, path, shard=shard)

    @property
    def items_(self) -> IdMap:
        """All item ids the model knows.

        Examples
        --------
        >>> len(model.items_), model.items_.rows([1, 999]).tolist()
        (100, [0, -1])
        """
        return self.towers_.items.ids

    @property
    def users_(self) -> IdMap:
        """All user ids the model knows.

        Examples
        --------
        >>> len(model.users_)
        200
        """
        return self.towers_.users.ids

    @property
    def item_simec_(self) -> SimEc:
        """The item tower as a `SimEc`: item features against W_l, what was learned of the users.

        With ``method="simec"`` the SimEc that was trained, whose W_l are the known users. By
        default the encoder of new items in closed form, whose W_l is [w, 1] of the posterior means
        of the users; `transform` gives embeddings and biases in units of the ratings' spread.

        Examples
        --------
        >>> model.item_simec_.last_layer_.shape  # embedding and bias x users with ratings
        (17, 160)
        """
        return self._simec("items")

    @property
    def user_simec_(self) -> SimEc:
        """The user tower as a `SimEc`: user features against W_l frozen to the item embeddings.

        Examples
        --------
        >>> model.user_simec_.last_layer_.shape
        (17, 80)
        """
        return self._simec("users")

    def _simec(self, side: Side) -> SimEc:
        self._check_fitted()
        part = self.parts_.get("rating")
        if not isinstance(part, RatingPart | OrderedPart):
            raise InputError(f"{SINGULAR[side]}_simec_: the model was fitted without ratings.")
        return part.simec(side)

    def _parts(self, rank_by: RankBy) -> list[tuple[Part, float]]:
        """Return the parts that a ranking is the weighted sum of."""
        return ranked_parts(self.parts_, self.uptake_weight_, rank_by)

    def predictor(self) -> Part:
        """Return the part that `predict` answers by.

        Examples
        --------
        >>> model.predictor().name
        'rating'
        """
        return self.parts_["rating"] if "rating" in self.parts_ else self.parts_["uptake"]

    def _rating(self, what: str) -> RatingPart:
        part = self.parts_.get("rating")
        if isinstance(part, OrderedPart):
            raise InputError(
                f"{what}: method='simec' has vectors and no posteriors. Fit with method='default'."
            )
        if not isinstance(part, RatingPart):
            raise InputError(f"{what}: the model was fitted without ratings, and has no variance.")
        return part

    def _embed(self, side: Side, given: Any, rank_by: RankBy) -> pa.Table:
        self._check_fitted()
        tower = self.towers_[side]
        ids, found = choose(tower, given, "error")
        vectors = self.ranking(rank_by)[0][side].of(found)
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return pa.table({tower.id_column: ids, "vector": lists})

    def _state(self) -> State:
        return State(self.towers_, self.parts_, self.rated_)

    def _learn(
        self, source: Ratings | TableLike | None, tables: Sides[TableLike | None], only_new: bool
    ) -> dict[str, Any]:
        self._check_fitted()
        ratings = None if source is None else read_ratings(source, self.rating_bounds())
        if ratings is not None and "rating" in self.parts_ and not ratings.has_ratings:
            raise InputError(
                "ratings: the model has learned ratings, and these pairs have none. Give a column "
                "'rating', or fit a model to pairs without ratings."
            )
        state, learned = learn(self._state(), ratings, tables, only_new)
        self._take_over(state)
        return learned

    def _take_over(self, state: State) -> None:
        """Become another model than the one that was saved or loaded, which is now the parent."""
        self.towers_, self.parts_, self.rated_ = state.towers, dict(state.parts), state.rated
        self.parent_, self.model_id_ = self.model_id_ or self.parent_, None

    def rating_bounds(self) -> tuple[float, float] | None:
        """Return the bounds of later ratings; None where there are none to hold them to.

        Examples
        --------
        >>> model.rating_bounds()
        (0.5, 5.0)
        """
        part = self.parts_.get("rating")
        if not isinstance(part, RatingPart | OrderedPart):
            return None
        low, high = part.bounds
        return None if low == high else (low, high)

    def _fitted_to(self) -> str | None:
        if not hasattr(self, "parts_"):
            return None
        what = "ratings" if "rating" in self.parts_ else "interactions"
        n = self.towers_.map(lambda tower: int((tower.counts > 0).sum()))
        return f"{self.rated_.nnz:,} {what} of {n.items:,} items by {n.users:,} users"

    def _check_fitted(self) -> None:
        if not hasattr(self, "parts_"):
            raise InputError("this TwoTower is not fitted yet: call fit, or TwoTower.load.")


def _table(table: pa.Table, output: TableKind) -> Any:
    if output not in ("pandas", "arrow"):
        raise InputError(f"output must be 'pandas' or 'arrow', got {output!r}.")
    return table.to_pandas() if output == "pandas" else table
