"""A shop with about ten ratings a user and few features, whose columns may work together."""

import numpy as np
import pyarrow as pa

_RANK = 3


def few_ratings(
    n_users: int = 3000, n_items: int = 600, interaction: float = 0.0, seed: int = 0
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return ratings, items and users.

    Half of the variance of vectors and biases comes from features. Of that half, `interaction` is
    what columns say together and not one by one.
    """
    rng = np.random.default_rng(seed)
    kind, tag = rng.integers(6, size=n_items), rng.integers(4, size=n_items)
    price, age = rng.normal(size=n_items), rng.normal(size=n_users)
    region = rng.integers(5, size=n_users)
    items = _vectors([kind, tag], price, interaction, rng)
    users = _vectors([region], age, interaction, rng)
    popularity = rng.lognormal(0, 1, n_items)
    u = np.repeat(np.arange(n_users), np.maximum(1, rng.poisson(10, n_users)))
    i = rng.choice(n_items, len(u), p=popularity / popularity.sum())
    u, i = np.divmod(np.unique(u * n_items + i), n_items)
    product = (users[u, :-1] * items[i, :-1]).sum(1) / np.sqrt(_RANK)
    liked = 3.6 + 0.35 * users[u, -1] + 0.35 * items[i, -1] + 0.4 * product
    stars = np.clip(np.round(liked + 0.8 * rng.normal(size=len(u))), 1, 5).astype(np.float32)
    return (
        pa.table({"user_id": u, "item_id": i, "rating": stars}),
        pa.table(
            {
                "item_id": np.arange(n_items),
                "kind": _names(kind),
                "tag": _names(tag),
                "price": price,
            }
        ),
        pa.table({"user_id": np.arange(n_users), "region": _names(region), "age": age}),
    )


def _vectors(
    categories: list[np.ndarray], number: np.ndarray, interaction: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw vectors and, last, biases: from features one by one, together, and of one's own."""

    def effect(codes: np.ndarray) -> np.ndarray:
        return rng.normal(size=(codes.max() + 1, _RANK + 1))[codes]

    alone = sum(map(effect, categories)) + number[:, None] * rng.normal(size=_RANK + 1)
    cell = np.ravel_multi_index(categories, [codes.max() + 1 for codes in categories])
    together = effect(categories[0]) * np.sign(number)[:, None]
    if len(categories) > 1:
        together = together + effect(cell)
    parts = [(part - part.mean(0)) / part.std(0) for part in (alone, together)]
    said = np.sqrt(1 - interaction) * parts[0] + np.sqrt(interaction) * parts[1]
    return np.sqrt(0.5) * (said + rng.normal(size=said.shape))


def _names(codes: np.ndarray) -> pa.Array:
    return pa.array([f"c{code}" for code in codes])
