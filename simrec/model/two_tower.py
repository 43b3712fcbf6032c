"""`TwoTower`: ratings and features in; answers for known and for new items and users out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from simrec.data.ratings import Ratings
from simrec.data.tables import TableLike, read_table
from simrec.errors import InputError
from simrec.model import files as two_tower_files
from simrec.model.answer.recommend import recommend
from simrec.model.answer.uncertainty import standard_deviations
from simrec.model.fit.objectives import OBJECTIVES
from simrec.model.fit.prepare import prepare
from simrec.model.life import Life
from simrec.model.run.checkpoint import Run
from simrec.model.run.progress import Progress
from simrec.model.tower import Unknown
from simrec.scoring.pairs import score_pairs
from simrec.simec.params import Params

if TYPE_CHECKING:
    from simrec.model.export.faiss_index import Index
    from simrec.model.export.formats import Format

logger = logging.getLogger(__name__)

_LEAST = {"embedding_dim": 1, "epochs": 1, "folds": 2, "min_count": 1, "knots": 0}


class TwoTower(Life, Params):
    """Recommender of two similarity encoders whose scalar product scores a user and an item.

    The item tower is learned against the users, the user tower against the items with its last
    layer frozen to their embeddings. An entity with ratings has the posterior of its embedding
    around what its features say; one without has what its features say. One model answers for
    known users and items, new items, new users, and both new.

    Parameters
    ----------
    embedding_dim : int or None
        Coordinates of an embedding, without biases; None for 16, or 32 for ranking.
    bounds : (float, float) or None
        Lowest and highest rating; None for those of the training ratings.
    objective : {"rating", "ranking"}
        What to learn: ratings, or which items a user likes among all.
    threshold : float or None
        Rating from which an item is liked, for ranking; None for three quarters of the way up
        the bounds.
    epochs : int or None
        Sweeps over both towers; None for 16, or 20 for ranking.
    hidden_layers : sequence of int
        Widths of the hidden layers of the encoders of new items and users; none for linear ones,
        which are fitted much faster and usually do as well.
    folds : int
        Parts in which items and users are held out to choose penalties and to fit partners.
    min_count : int
        How often a category has to occur in training to be a feature.
    knots : int
        Points of the piecewise linear curve that is learned for a number; 0 for a straight line.
    item_columns, user_columns : mapping of str to str or None
        How to encode feature columns: number, category, list, vector, text or ignore.
    random_state : int
        Seed; the same seed gives the same model on the same machine.
    verbose : int
        Progress: 0 none, 1 a bar, 2 a line for each epoch.

    Attributes
    ----------
    item_tower_, user_tower_ : Tower
        The fitted towers.
    items_, users_ : IdMap
        All ids the model knows.
    item_vectors_, user_vectors_ : ndarray
        Their vectors; a score is `output_` of the scalar product of two of them.
    item_counts_, user_counts_ : ndarray
        Ratings of each in training.
    item_prior_, user_prior_ : ndarray
        Vectors of an average item and user.
    item_encoder_, user_encoder_ : FeatureEncoder or None
        From feature tables to feature rows.
    output_ : Output
        From scalar products to ratings.
    history_ : list of dict
        What was logged of each epoch.
    chosen_ : dict
        What fitting chose by itself, and the errors it expects.
    evidence_ : Evidence or None
        What is believed of each entity, so that later ratings can be added; None for ranking.
    model_id_, parent_ : str or None
        Id of the model as it was last saved or loaded, and of the one it was updated from.
    updates_ : list of dict
        What each update has learned.

    Examples
    --------
    >>> from simrec import TwoTower, cold_start_split, make_synthetic
    >>> data = make_synthetic(n_users=200, n_items=100, n_ratings=4000)
    >>> split = cold_start_split(Ratings.from_arrow(data.ratings))
    >>> model = TwoTower().fit(split.train, items=data.items, users=data.users)
    >>> model.predict(split.new_items.to_arrow()).shape == (len(split.new_items),)
    True
    """

    def __init__(
        self,
        embedding_dim: int | None = None,
        bounds: tuple[float, float] | None = None,
        objective: Literal["rating", "ranking"] = "rating",
        threshold: float | None = None,
        epochs: int | None = None,
        hidden_layers: Sequence[int] = (),
        folds: int = 5,
        min_count: int = 2,
        knots: int = 10,
        item_columns: Mapping[str, str] | None = None,
        user_columns: Mapping[str, str] | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.embedding_dim = embedding_dim
        self.bounds = bounds
        self.objective = objective
        self.threshold = threshold
        self.epochs = epochs
        self.hidden_layers = hidden_layers
        self.folds = folds
        self.min_count = min_count
        self.knots = knots
        self.item_columns = item_columns
        self.user_columns = user_columns
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        ratings: Ratings | TableLike,
        items: TableLike | None = None,
        users: TableLike | None = None,
        callbacks: Sequence[Any] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        strategy: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> TwoTower:
        """Learn both towers; an earlier fit is forgotten.

        Parameters
        ----------
        ratings : Ratings, table or path
            Columns user_id, item_id, rating; for ranking the ratings may be left out.
        items, users : table or path, optional
            Features, one row for each item_id or user_id. Those without ratings are new entities
            whose features the model then knows.
        callbacks : sequence of keras.callbacks.Callback, optional
            Called after each epoch with its "loss" (the noise left, in units of the ratings), and
            after each attempt to encode new entities with the error on those held out,
            "val_new_items" or "val_new_users".
        log_dir : path, optional
            Where to write logs for TensorBoard.
        strategy : tf.distribute.Strategy, optional
            Workers to divide the users between, such as a MultiWorkerMirroredStrategy. Each
            worker calls fit with the same tables, and all end with the same model.
        checkpoint : path, optional
            Directory in which to keep the state of the fit. Delete it once the model is saved.
        resume : bool
            Whether to go on from the checkpoint, which must be of the same data and settings.

        Returns
        -------
        TwoTower
            Itself.
        """
        self._check()
        run = Run.of(self, strategy, checkpoint, resume)
        data = prepare(self, ratings, items, users)
        fit, embedding_dim, epochs = OBJECTIVES[self.objective]
        embedding_dim, epochs = self.embedding_dim or embedding_dim, self.epochs or epochs
        first = run.group.rank == 0  # of several workers, one shows how far they are
        verbose, log_dir = self.verbose if first else 0, log_dir if first else None
        with Progress(epochs, verbose, callbacks, log_dir) as progress:
            fitted = fit(self, data, embedding_dim, epochs, progress.epoch, run)
        self.item_tower_, self.user_tower_ = fitted.items, fitted.users
        self.output_, self.chosen_ = fitted.output, fitted.chosen
        self.evidence_ = fitted.evidence
        self.model_id_, self.parent_, self.updates_ = None, None, []
        self.history_ = progress.history
        self.schema_ = data.schema
        for name, value in self.chosen_.items():
            logger.info("chosen: %s = %s", name, value)
        return self

    def predict(
        self,
        pairs: TableLike | Ratings,
        items: TableLike | None = None,
        users: TableLike | None = None,
        unknown: Unknown = "error",
        return_std: bool = False,
    ) -> Any:
        """Predict the ratings of pairs; for ranking, the probability that they are liked.

        Parameters
        ----------
        pairs : table, path or Ratings
            Columns user_id and item_id.
        items, users : table or path, optional
            Features of ids the model does not know.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features: refuse, or answer for an
            average item or user.
        return_std : bool
            Whether to give a standard deviation beside each prediction: of the rating around
            it, hence with the noise of ratings, and larger the less is known of item and user.

        Returns
        -------
        numpy.ndarray, or two of them
            A float32 for each pair, within the bounds (0 to 1 for ranking); with `return_std` the
            predictions and their standard deviations.
        """
        self._check_fitted()
        source = pairs.to_arrow() if isinstance(pairs, Ratings) else pairs
        table = read_table(source, ["user_id", "item_id"], name="pairs", allow_empty=True)
        found_users = self.user_tower_.find(table["user_id"], users, unknown)
        found_items = self.item_tower_.find(table["item_id"], items, unknown)
        scores = score_pairs(
            found_users.vectors,
            found_items.vectors,
            found_users.rows,
            found_items.rows,
            self.output_,
        )
        return (
            (scores, standard_deviations(self, found_users, found_items)) if return_std else scores
        )

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        items: Any = None,
        exclude: Ratings | TableLike | None = None,
        unknown: Unknown = "error",
        explore: float = 0.0,
    ) -> pa.Table:
        """Recommend the k best items to each user.

        Parameters
        ----------
        users : ids, table or path, optional
            For whom: a list or array of ids, or a table with user_id and, for new users, their
            features. All users the model knows by default.
        k : int
            How many for each; fewer where there are not as many candidates.
        items : ids, table or path, optional
            The candidates, likewise. All items the model knows by default.
        exclude : Ratings, table or path, optional
            Pairs (user_id, item_id) that are not to be recommended, such as the ratings.
        unknown : {"error", "prior"}
            What to do with an id that has neither ratings nor features.
        explore : float
            Rank items by an upper confidence bound: the score plus so many standard deviations of
            what is not known of the item (the user's part is the same for all items, and the noise
            of ratings is nothing to explore), so that new items get a chance.

        Returns
        -------
        pyarrow.Table
            Columns user_id, item_id, score and rank (from 1), users in the order given. Of equal
            scores the item that comes first among the candidates comes first. The score is the
            prediction also where `explore` ranks by more.
        """
        self._check_fitted()
        return recommend(self, users, k, items, exclude, unknown, explore)

    def embed_items(self, items: TableLike) -> pa.Table:
        """Give the vectors of items: columns item_id and vector."""
        self._check_fitted()
        return self.item_tower_.vector_table(items)

    def embed_users(self, users: TableLike) -> pa.Table:
        """Give the vectors of users: columns user_id and vector."""
        self._check_fitted()
        return self.user_tower_.vector_table(users)

    def export(
        self,
        path: str | os.PathLike[str],
        format: Format,
        side: Literal["item", "user"] | None = None,
        items: TableLike | None = None,
        users: TableLike | None = None,
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
        index : {"auto", "flat", "hnsw", "ivf"}
            Kind of the Faiss index; "auto" chooses by the number of items.
        unknown : {"error", "prior"}
            What a SavedModel does with an unknown user without features.

        Returns
        -------
        dict
            What was written; for "faiss" with the recall@10 of the index against exact search.
        """
        from simrec.model.export.formats import export

        self._check_fitted()
        return export(self, path, format, side, items, users, index, unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a directory: no pickle, no code."""
        self._check_fitted()
        two_tower_files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TwoTower:
        """Read a model written by `save`; nothing in the directory is executed."""
        return two_tower_files.load(cls, path)

    def _check(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in ("embedding_dim", "epochs"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be a whole number from {least} on, got {value!r}.")
        for width in self.hidden_layers:
            if isinstance(width, bool) or not isinstance(width, int | np.integer) or width < 1:
                raise InputError(f"hidden_layers must be widths from 1 on, got {width!r}.")
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be 'rating' or 'ranking', got {self.objective!r}.")
