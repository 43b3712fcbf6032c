"""`TwoTower`: ratings and features in; answers for known and for new items and users out."""

import copy
import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from simrec.data.id_columns import one_or_several
from simrec.data.ratings import Ratings
from simrec.data.sides import Sides
from simrec.data.tables import TableLike
from simrec.errors import InputError
from simrec.model.answer.answers import Answers
from simrec.model.checkpoint import Run
from simrec.model.fit import fit_model
from simrec.model.params import OutputKind, check_params
from simrec.model.prepare import read_ratings
from simrec.model.update.update import Guests, State, forget, learn

logger = logging.getLogger(__name__)


@dataclass(repr=False, eq=False)
class TwoTower(Answers):
    """Recommender of two towers whose scalar product scores a user and an item.

    Ratings are fitted by sweeps over items and users in turn, the towers of new items and users by
    encoders of features against the embeddings found. An entity with ratings has the posterior of
    its embedding around its encoded features; one without has its encoded features. Lists are
    ranked by a blend of predicted ratings, implicit feedback (uptake) and popularity. One model
    answers for known users and items, new items, new users, and both new.

    With ``refine=False`` it is two `SimEc` and nothing else: item features -> ratings, then user
    features -> ratings with W_l frozen to the item embeddings, and their scalar product, which also
    ranks lists; docs/ordered.md compares the two.

    Parameters
    ----------
    embedding_dim : int or None
        Coordinates of an embedding, without biases; None for 16 in the rating part, and for what
        held-out pairs suggest in the uptake part.
    bounds : (float, float) or None
        Lowest and highest rating; None for those of the training ratings.
    epochs : int or None
        Sweeps of the rating part over both towers; None for 16.
    hidden_layers : sequence of int
        Widths of trained hidden layers of the encoders of new items and users in the rating part.
        By default encoders are linear and fitted in closed form, which is much faster.
    folds : int
        Parts in which items and users are held out to choose penalties and to fit partners.
    min_count : int
        How often a category has to occur in training to be a feature.
    knots : int
        Points of the piecewise linear curve that is learned for a number; 0 for a straight line.
    item_columns, user_columns : mapping of str to str or None
        How to encode feature columns: number, category, list, vector, date, text, sentences, image
        or ignore; see `FeatureEncoder`. Columns of items that are named here are used even if they
        tell nothing of held-out items.
    half_life : float, "auto" or None
        Days after which a pair counts half in the popularity of items; "auto" for an eighth of the
        time that the ratings span. None: all times count alike. Needs timestamps.
    refine : bool
        Whether known items and users have posteriors around their encoded features. Without,
        known items are their encoded features, and known users the last layer of the item SimEc.
    lists : bool
        Whether to learn which items are taken up, for lists. Without, lists are ranked by predicted
        ratings, and a fit takes about half of the time. Interactions without ratings need it.
    rating_output : {"auto", "identity", "sigmoid"}
        What makes a rating of a scalar product: the identity, clipped to the bounds, or a sigmoid
        between the lowest and the highest ratings; by default a sigmoid where held-out ratings
        are predicted clearly better by it.
    item_encoder, user_encoder : keras.Model or None
        Encoders of your own for new items and users: tf_keras models, Sequential or functional,
        from encoded features to `embedding_dim` + 1 linear units, embedding and bias. Copies are
        trained from their weights.
    keep_evidence : bool
        Whether to keep what later ratings, intervals and explanations need: the posteriors of all
        items and users, most of a model. Without it a model only scores.
    random_state : int
        Seed; the same seed gives the same model on the same machine.
    verbose : int
        Progress: 0 none, 1 a bar over all of the work, 2 a line for each sweep and each attempt.

    Attributes
    ----------
    towers_ : Sides of Tower
        Items and users: ids, numbers of ratings, encoders of features.
    columns_ : Columns
        Names of the columns it was trained with, by which it reads and answers.
    parts_ : dict of str to Part
        What was learned: "rating", "uptake" and "popularity", where there is data.
    rated_ : csr_matrix
        Users x items: what each user has rated, with the confidence in it.
    liked_ : csr_matrix or None
        Users x items: what each user has rated as liked. None without ratings or evidence.
    blend_ : Blend
        Weights of the components of lists.
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

    embedding_dim: int | None = None
    bounds: tuple[float, float] | None = None
    epochs: int | None = None
    hidden_layers: Sequence[int] = ()
    folds: int = 5
    min_count: int = 2
    knots: int = 10
    item_columns: Mapping[str, str] | None = None
    user_columns: Mapping[str, str] | None = None
    half_life: float | Literal["auto"] | None = None
    refine: bool = True
    lists: bool = True
    rating_output: OutputKind = "auto"
    item_encoder: Any = None
    user_encoder: Any = None
    keep_evidence: bool = True
    random_state: int = 0
    verbose: int = 0

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Name the new word for an argument that is gone."""
        if "method" in params:
            raise InputError("method: two SimEcs and nothing else are now refine=False.")
        return super().__new__(cls)

    def fit(
        self,
        ratings: Ratings | TableLike,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Learn both towers, and return self; an earlier fit is forgotten.

        Parameters
        ----------
        ratings : Ratings, table or path
            Columns user_id, item_id and, unless there are only interactions, rating.
        items, users : table or path, optional
            Features, one row for each item_id or user_id. Those without ratings are new entities
            whose features the model then knows.
        checkpoint : path, optional
            Directory in which to keep the state of the fit. Delete it once the model is saved.
        resume : bool
            Whether to go on from the checkpoint, which must be of the same data and settings.

        Examples
        --------
        >>> TwoTower(epochs=4).fit(split.train, items=data.items)
        <TwoTower(epochs=4) fitted to 2,314 ratings of 80 items by 160 users>
        """
        check_params(self.get_params())
        run = Run(path=checkpoint, resume=resume)
        taken = read_ratings(ratings, self.bounds)
        fit_model(self, taken, Sides(items, users), run)
        return self

    def fold_in(
        self,
        ratings: Ratings | TableLike | None,
        *,
        items: TableLike | None = None,
        users: TableLike | None = None,
    ) -> Self:
        """Give ratings to users and items that have none yet, without training again.

        A new entity gets the posterior of its embedding given its ratings, around what its features
        say; without ratings it is the cold answer exactly. Those who have ratings already stay as
        they are: `update` is for them. The model is changed in place and returned; `save` keeps it.

        Parameters
        ----------
        ratings : Ratings, table or path, or None
            Ratings of new users, new items, or both.
        items, users : table or path, optional
            Features of entities the model does not know. Those without are taken as average.

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
    ) -> Self:
        """Learn a day's new ratings, users and items, at a small part of the cost of a fit.

        Everyone with a new rating learns from it, known or new; a pair that is rated again counts
        as further evidence. Encoders of features stay as fitted: a category that is new is encoded
        as unknown, and counted in `updates_`. The model is changed in place and returned; when
        saved it names its parent.

        Parameters
        ----------
        ratings : Ratings, table or path
            The new ratings only.
        items, users : table or path, optional
            Features of entities the model does not know.

        Examples
        --------
        >>> model.update(split.warm).updates_[0]["ratings"]
        254
        """
        learned = self._learn(ratings, Sides(items, users), only_new=False)
        self.updates_ = [*self.updates_, {**learned, "parent": self.parent_}]
        return self

    def guests(
        self,
        ratings: Ratings | TableLike | None = None,
        *,
        users: TableLike | None = None,
        user_ids: Any = None,
    ) -> Self:
        """Return a model of a few users after further ratings; this one stays as it is.

        It has all items and only these users, so that making it costs by their ratings: for lists
        on the fly. New users learn as in `fold_in`, known ones as in `update`; items stay as they
        are.

        Parameters
        ----------
        ratings : Ratings, table or path, optional
            Ratings of known items by these users.
        users : table or path, optional
            Features of users the model does not know.
        user_ids : id or ids, optional
            Further users, known to the model.

        Examples
        --------
        >>> few = {"user_id": [9001, 9001], "item_id": [17, 24], "rating": [5.0, 1.0]}
        >>> guest = model.guests(pd.DataFrame(few))
        >>> len(guest.users_), len(guest.recommend(9001, k=3))
        (1, 3)
        """
        self._check_fitted()
        given = None if ratings is None else self._later(ratings)
        named = [] if given is None else [given.users.column]
        if users is not None:
            named.append(self.towers_.users.read(users)[1])
        if user_ids is not None:
            named.append(one_or_several(user_ids, "user_id"))
        if not named:
            raise InputError("guests: give ratings, users or user_ids.")
        state = self._kept("guests", lambda: Guests(self._state()))(named, given, users)
        guest = copy.copy(self)
        guest._set_state(state)
        guest._whole = self.whole
        return guest

    def forget(self, user_ids: Any) -> Self:
        """Remove users from the model: ids, features, vectors and all that was learned of them.

        What items have learned from their ratings is a sum over all ratings, and stays until the
        next fit without those users. Users who were folded in with known items leave nothing
        behind. The model is changed in place and returned.

        >>> model.forget([7, 8])
        <TwoTower() fitted to 2,289 ratings of 80 items by 158 users>
        """
        self._check_fitted()
        self._take_over(forget(self._state(), user_ids))
        return self

    def _state(self) -> State:
        return State(self.towers_, self.parts_, self.rated_, self.liked_)

    def _set_state(self, state: State) -> None:
        self.towers_, self.parts_ = state.towers, dict(state.parts)
        self.rated_, self.liked_ = state.rated, state.liked

    def _learn(
        self, source: Ratings | TableLike | None, tables: Sides[TableLike | None], only_new: bool
    ) -> dict[str, Any]:
        self._check_fitted()
        ratings = None if source is None else self._later(source)
        state, learned = learn(self._state(), ratings, tables, Sides(only_new, only_new))
        self._take_over(state)
        return learned

    def _later(self, source: Ratings | TableLike) -> Ratings:
        """Read ratings that came after fitting."""
        ratings = read_ratings(source, self.rating_bounds(), self.columns_)
        if "rating" in self.parts_ and not ratings.has_ratings:
            raise InputError(
                "ratings: the model has learned ratings, and these pairs have none. Give a column "
                "'rating', or fit a model to pairs without ratings."
            )
        if ratings.has_ratings and "rating" not in self.parts_:
            told = "ratings: the model has learned pairs: each of %d counts as one, however rated"
            logger.warning(told, len(ratings))
        return ratings

    def _take_over(self, state: State) -> None:
        """Become another model than the one that was saved or loaded, which is now the parent."""
        self._set_state(state)
        self.parent_, self.model_id_ = self.model_id_ or self.parent_, None


# `__new__` takes anything; the arguments are those of `__init__`.
_first, *_arguments = inspect.signature(TwoTower.__init__).parameters.values()
TwoTower.__signature__ = inspect.Signature(_arguments)  # type: ignore[attr-defined]
