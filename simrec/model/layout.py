"""Three blocks of coordinates in one vector, so that one scalar product answers all four tasks.

A block holds z = [y, b] of an entity as [y, b, 1] for an item and as [w, 1, b] for a user, whose
scalar product is y . w + b + b'. An entity is zero in the blocks that are not its own::

                 known       new items    new users
    known item   posterior   0            items beside new users
    new item     0           encoder      0
    known user   posterior   users beside new items    0
    new user     0           encoder      encoder

An entity with a few ratings that came after fitting is in between: see `item_vectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from simrec.model.fit.known_entities import ITEMS
from simrec.model.fit.networks import Network
from simrec.model.fit.rating import RatingTowers

if TYPE_CHECKING:
    from simrec.simec.simec import SimEc

Coordinates = Callable[[np.ndarray, float], np.ndarray]


def item_coordinates(z: np.ndarray, scale: float) -> np.ndarray:
    """Write [y, b] as an item's coordinates of a block, in units of the ratings."""
    return np.hstack([z * np.float32(scale), np.ones((len(z), 1), np.float32)])


def user_coordinates(z: np.ndarray, scale: float) -> np.ndarray:
    """Write [w, b] as a user's coordinates of a block."""
    one = np.ones((len(z), 1), np.float32)
    return np.hstack([z[:, :-1], one, z[:, -1:] * np.float32(scale)])


def item_embedding(block: np.ndarray, scale: float) -> np.ndarray:
    """Read [y, b] off an item's coordinates of a block."""
    return block[:, :-1] / np.float32(scale)


def user_embedding(block: np.ndarray, scale: float) -> np.ndarray:
    """Read [w, b] off a user's coordinates of a block."""
    return np.hstack([block[:, :-2], block[:, -1:] / np.float32(scale)])


def item_vectors(
    own: np.ndarray, beside: np.ndarray, warmth: np.ndarray, scale: float
) -> np.ndarray:
    """Give the vectors of items that are known to the degree of their warmth.

    One that was fitted has warmth 1, a new one 0. In between, known users meet it as both: the
    weights of what they see in it add to one.
    """
    warm = warmth.astype(np.float32)[:, None]
    own, beside = item_coordinates(own, scale), item_coordinates(beside, scale)
    return np.hstack([warm * own, (1 - warm) * own, warm * beside])


def user_vectors(
    own: np.ndarray, beside: np.ndarray, warmth: np.ndarray, scale: float
) -> np.ndarray:
    """Give the vectors of users that are known to the degree of their warmth."""
    warm = warmth.astype(np.float32)[:, None]
    own, beside = user_coordinates(own, scale), user_coordinates(beside, scale)
    return np.hstack([warm * own, beside, (1 - warm) * own])


def known_vectors(towers: RatingTowers, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Give the vectors of the rated items and of the users who rated."""
    items, users = (belief.mean for belief in towers.known.beliefs)
    return (
        item_vectors(items, towers.new_users.partners.mean, np.ones(len(items)), scale),
        user_vectors(users, towers.new_items.partners.mean, np.ones(len(users)), scale),
    )


def item_priors(vectors: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Read what features say of new items: beside known users, and beside new ones."""
    width = vectors.shape[1] // 3
    own = item_embedding(vectors[:, width : 2 * width], scale)
    return own, own


def user_priors(vectors: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Read what features say of new users: beside known items, and beside new ones."""
    width = vectors.shape[1] // 3
    beside = user_embedding(vectors[:, width : 2 * width], scale)
    return user_embedding(vectors[:, 2 * width :], scale), beside


def new_weights(towers: RatingTowers, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Give the matrices that turn features of new items and new users into vectors.

    The last row belongs to the constant feature, which carries the constants of the coordinates.
    """
    items = _weights(towers.new_items.weights, item_coordinates, scale)
    beside_items = _weights(towers.user_weights, user_coordinates, scale)
    users = _weights(towers.new_users.weights, user_coordinates, scale)
    no_item, no_user = np.zeros_like(items), np.zeros_like(users)
    return np.hstack([no_item, items, no_item]), np.hstack([no_user, beside_items, users])


def networks(towers: RatingTowers, scale: float) -> tuple[list[Network], list[Network]]:
    """Give the deep encoders of new items and new users, if there are any, in their places."""
    D = towers.known.beliefs[ITEMS].mean.shape[1]
    width = D + 1

    def place(coordinates: Coordinates, block: int) -> np.ndarray:
        full = np.zeros((D, 3 * width), np.float32)
        linear = coordinates(np.eye(D, dtype=np.float32), scale)
        linear -= coordinates(np.zeros((1, D), np.float32), scale)
        full[:, block * width : (block + 1) * width] = linear
        return full

    def placed(network: SimEc | None, coordinates: Coordinates, block: int) -> list[Network]:
        return [] if network is None else [Network(network, place(coordinates, block))]

    return (
        placed(towers.new_items.network, item_coordinates, 1),
        placed(towers.user_network, user_coordinates, 1)
        + placed(towers.new_users.network, user_coordinates, 2),
    )


def _weights(B: np.ndarray, coordinates: Coordinates, scale: float) -> np.ndarray:
    # Coordinates of a sum are the sum of coordinates, but for the constant 1, which counts once.
    constant = coordinates(np.zeros((1, B.shape[1]), np.float32), scale)
    weights = coordinates(B, scale) - constant
    weights[-1] += constant[0]
    return weights
