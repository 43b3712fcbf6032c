"""What the service is asked: typed requests, of which the OpenAPI page is made."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema
from pydantic_core.core_schema import custom_error_schema

from simrec.errors import InputError

# Limits of a request; a batch job is for more.
MOST_K, MOST_RATINGS, MOST_IDS, MOST_ROWS, MOST_COLUMNS = 1_000, 500, 10_000, 1_000, 500
_LARGEST = 2**63 - 1


def _expected(what: str) -> GetPydanticSchema:
    """Say what a field takes in one sentence, at its own path, where it takes one of several."""
    text = f"Input should be {what}"
    made = partial(custom_error_schema, custom_error_type="expected", custom_error_message=text)
    return GetPydanticSchema(lambda kind, schema: made(schema(kind)))


def whole(given: Any) -> Any:
    """Take 1.0 for 1, as JSON does."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Id = Annotated[
    Annotated[int, Field(strict=True, ge=-_LARGEST, le=_LARGEST)]
    | Annotated[str, Field(max_length=500)],
    BeforeValidator(whole),
    _expected("a whole number or a string of at most 500 characters"),
]
Row = Annotated[dict[str, Any], Field(max_length=MOST_COLUMNS)]
# Within float32, which models hold
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
RankBy = Literal["both", "rating", "uptake"]


class Request(BaseModel):
    """What all requests share: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    model: Literal["a", "b"] = Field("a", description="which model, where two are served")


class Rating(BaseModel):
    """A rating of an item; without a value, that it was taken up.

    Of a model of pairs without ratings, each counts as taken up, whatever its value.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    item_id: Id
    rating: Number | None = None


class Who(Request):
    """A user: known by id, by features, by a few ratings, or by any mixture of them."""

    user_id: Id | None = None
    features: Row | None = Field(None, description="columns of the users table, of a new user")
    ratings: list[Rating] = Field(
        default_factory=list,
        max_length=MOST_RATINGS,
        description="folded in for this request alone",
    )
    unknown: Literal["error", "prior"] = Field(
        "error", description="of a user_id of which nothing is known: refuse, or an average user"
    )


class Recommend(Who):
    """Ask for a list."""

    k: int = Field(10, ge=1, le=MOST_K)
    items: list[Id] | None = Field(None, max_length=MOST_IDS, description="candidates; all items")
    where: dict[str, Any] | None = Field(
        None, examples=[{"year": {">=": 1990}, "genres": {"contains": "War"}}]
    )
    at_most: dict[str, Annotated[int, Field(ge=1)]] | None = Field(None, max_length=20)
    diversity: float = Field(0.0, ge=0, le=1)
    explore: float = Field(0.0, ge=0, le=1e6)
    sample: Annotated[
        bool | Annotated[int, Field(ge=0, le=2**63 - 1)],
        _expected("true, false or a seed from 0 on"),
    ] = Field(False, description="draw the list (Thompson sampling), by a seed of your own or any")
    exclude: list[Id] = Field(default_factory=list, max_length=MOST_IDS)
    exclude_rated: bool = True
    rank_by: RankBy = "both"
    reasons: bool = False
    uncertainty: bool = False


class Score(Who):
    """Ask for predicted ratings of items."""

    items: list[Id] = Field(
        default_factory=list, max_length=MOST_IDS, description="those of item_features if none"
    )
    item_features: list[Row] = Field(
        default_factory=list, max_length=MOST_ROWS, description="item_id and features of new items"
    )
    uncertainty: bool = False

    def asked(self) -> list[Any]:
        """Return the ids that are asked for."""
        found: list[Any] = list(self.items)
        found = found or [row.get("item_id") for row in self.item_features]
        if not found or None in found:
            raise InputError("score: give items, or item_features with an item_id in each row.")
        return found


class Similar(Request):
    """Ask for neighbours of an item or of a user."""

    item_id: Id | None = None
    user_id: Id | None = None
    features: Row | None = Field(None, description="of a new item, instead of an id")
    k: int = Field(10, ge=1, le=MOST_K)
    rank_by: RankBy = "both"


class Explain(Who):
    """Ask what adds how much to a score."""

    item_id: Id
    item_features: Row | None = None
    rank_by: RankBy | None = None


class Embed(Request):
    """Ask for vectors."""

    item_ids: list[Id] = Field(default_factory=list, max_length=MOST_IDS)
    user_ids: list[Id] = Field(default_factory=list, max_length=MOST_IDS)
    items: list[Row] = Field(default_factory=list, max_length=MOST_ROWS)
    users: list[Row] = Field(default_factory=list, max_length=MOST_ROWS)
    rank_by: RankBy = "both"


class Audience(Request):
    """Ask for the best users of an item."""

    item_id: Id | None = None
    features: Row | None = Field(None, description="of a new item, instead of an id")
    k: int = Field(10, ge=1, le=MOST_K)
    rank_by: RankBy = "both"
    groups: bool = Field(False, description="values of users' columns that the audience has most")
    histogram: bool = Field(False, description="predicted ratings over all users")


class Ask(Who):
    """Ask what to ask a user."""

    k: int = Field(5, ge=1, le=100)
    items: list[Id] | None = Field(None, max_length=MOST_IDS)
    popularity: bool = Field(True, description="false where the user knows all of `items`")


class Entities(Request):
    """New items or users, with their ids and features."""

    rows: list[Row] = Field(min_length=1, max_length=MOST_ROWS)


class Event(BaseModel):
    """What a user did: a rating, or an event with a value, such as a click."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    user_id: Id
    item_id: Id
    rating: Number | None = None
    event: str | None = Field(None, max_length=100)
    value: float | None = None
    timestamp: float | None = Field(None, description="seconds since 1970; now by default")
    list_id: str | None = Field(None, max_length=100)


class Feedback(Request):
    """Ratings and events; acknowledged once they are on disk."""

    events: list[Event] = Field(min_length=1, max_length=MOST_ROWS)


class History(Request):
    """Ask what a user has rated."""

    user_id: Id
    k: int = Field(20, ge=1, le=MOST_K)
