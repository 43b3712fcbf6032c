"""Tables with known answers that several tests learn from."""

import numpy as np
import pyarrow as pa


def saturating(n_users=160, n_items=130, p=6, d=2, share=0.35, noise=0.05, gain=2.0, seed=0):
    """Ratings 3 + 1.2 tanh of a scalar product of what features say of users and items."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n_items, p)), rng.normal(size=(n_users, p))
    A, B = rng.normal(size=(2, p, d)) / np.sqrt(p)
    truth = 3 + 1.2 * np.tanh(gain * (Z @ A) @ (X @ B).T / np.sqrt(d))
    u, i = np.nonzero(rng.random(truth.shape) < share)
    r = (truth[u, i] + noise * rng.normal(size=len(u))).astype(np.float32)
    items = pa.table({"item_id": np.arange(n_items), **{f"x{k}": X[:, k] for k in range(p)}})
    users = pa.table({"user_id": np.arange(n_users), **{f"z{k}": Z[:, k] for k in range(p)}})
    return pa.table({"user_id": u, "item_id": i, "rating": r}), items, users


def rmse(model, part):
    """Give the error of a model on ratings."""
    return float(np.sqrt(np.mean((model.predict(part, unknown="prior") - part.values) ** 2)))
