"""One small model for all tests of the service and of what it exposes."""

from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """Synthetic films: data, split, a fitted model and its directory."""
    from simrec import Ratings, TwoTower, cold_start_split, make_synthetic

    data = make_synthetic(n_users=120, n_items=80, n_ratings=2400)
    split = cold_start_split(Ratings.from_arrow(data.ratings), random_state=0)
    model = TwoTower(embedding_dim=4, epochs=4, random_state=0)
    model.fit(split.train, items=data.items, users=data.users)
    path = tmp_path_factory.mktemp("shop") / "model"
    model.save(path)
    return SimpleNamespace(data=data, split=split, model=model, path=path)
