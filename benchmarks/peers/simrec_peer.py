"""SimRec itself, with its default settings."""

import copy
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

import simrec
from peers.base import Peer
from simrec import Ratings, TwoTower
from simrec.data.ids import IdMap


class SimRec(Peer):
    """`TwoTower` as anyone gets it, on whatever data."""

    name = "simrec"
    modules = ("simrec.simec.keras", "simrec.model.two_tower")
    answers = ("known_users", "new_items", "new_users", "few_ratings")

    @classmethod
    def fingerprint(cls) -> str:
        """Name the state of the code: what was measured with other code is not used again."""
        root = Path(simrec.__file__).parent
        parts = [root / "data", root / "model", root / "scoring", root / "simec"]
        digest = hashlib.sha256()
        for file in sorted(file for part in parts for file in part.rglob("*.py")):
            digest.update(file.read_bytes())
        return f"{cls.name}-{simrec.__version__}-{digest.hexdigest()[:10]}"

    def fit(self, train: Ratings, items: pa.Table | None, users: pa.Table | None) -> "SimRec":
        self.model_ = self._model().fit(train, items=items, users=users)
        return self

    def predict(self, pairs: pa.Table) -> np.ndarray:
        return self.model_.predict(pairs, unknown="prior")

    def fold_in(self, given: Ratings) -> "SimRec":
        folded = copy.copy(self)
        folded.model_ = copy.copy(self.model_).fold_in(given)
        return folded

    def lists(self, users: IdMap, items: IdMap, k: int, exclude: Ratings | None) -> np.ndarray:
        candidates = items.take(self.shuffled(items))
        found = self.model_.recommend(
            users.ids, k=k, items=candidates, exclude=exclude, unknown="prior", output="arrow"
        )
        best = np.full((len(users), k), -1)
        ranks = found["rank"].to_numpy() - 1
        best[users.rows(found["user_id"]), ranks] = items.rows(found["item_id"])
        return best

    def _model(self) -> TwoTower:
        low, high = self.bounds
        # Pairs without ratings have no bounds.
        return TwoTower(bounds=(low, high) if low < high else None, random_state=self.random_state)


class SimRecSimEc(SimRec):
    """`TwoTower(refine=False)`: the two SimEcs, and nothing added."""

    name = "simrec-simec"

    def _model(self) -> TwoTower:
        return super()._model().set_params(refine=False)
