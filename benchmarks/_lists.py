"""The tasks of the lists benchmark, and one model on all of them in a process of its own."""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from _runs import Run, fit
from peers import Peer, peer_class
from peers.base import pair_matrix
from scipy import sparse

from simrec import Ratings
from simrec.data.ids import IdMap
from simrec.data.split import ColdStartSplit
from simrec.scoring.metrics import hits, ndcg_at_k, recall_at_k

N_GIVEN = 5  # ratings of a new user that are folded in
PROTOCOL = 1  # raise it when the tasks change: what was measured before is then not used again


@dataclass(frozen=True)
class Task:
    """Whom to make lists for, of which candidates, and what counts as a hit."""

    users: IdMap
    items: IdMap
    relevant: sparse.csr_matrix
    exclude: Ratings | None = None
    given: Ratings | None = None

    @classmethod
    def of(cls, held_out: Ratings, users: IdMap, items: IdMap, **rest: Any) -> "Task":
        """Take the users among `users` who have a hit among `items`."""
        relevant = pair_matrix(held_out, users, items)
        chosen = np.flatnonzero(np.diff(relevant.indptr))
        return cls(IdMap(users.take(chosen)), items, relevant[chosen], **rest)


def make_tasks(split: ColdStartSplit, liked: float, seed: int) -> dict[str, Task]:
    """Make the four tasks of a split; a hit is a held-out rating of at least `liked`."""

    def hit(ratings: Ratings) -> Ratings:
        return ratings.select(ratings.values >= liked)

    train = split.train
    given, rest = give_some(split.new_users, train.items, seed)
    new = {"items": train.items, "users": given.users, "exclude": given}
    return {
        "known_users": Task.of(hit(split.warm), train.users, train.items, exclude=train),
        "new_items": Task.of(
            hit(split.new_items), train.users, split.new_items.items.union(split.new_both.items)
        ),
        "new_users": Task.of(hit(rest), **new),
        "few_ratings": Task.of(hit(rest), **new, given=given),
    }


def give_some(new_users: Ratings, known: IdMap, seed: int) -> tuple[Ratings, Ratings]:
    """Divide the ratings of each new user at random: five to fold in, the rest to find.

    Ratings of items that are not known, and users with no more than five others, are left out.
    """
    ratings = new_users.select(known.contains(new_users.items.ids)[new_users.item_rows])
    by_user = np.lexsort((np.random.default_rng(seed).random(len(ratings)), ratings.user_rows))
    counts = np.bincount(ratings.user_rows)
    place = np.empty(len(ratings), np.int64)
    place[by_user] = np.arange(len(ratings)) - np.repeat(np.cumsum(counts) - counts, counts)
    enough = (counts > N_GIVEN)[ratings.user_rows]
    return ratings.select(enough & (place < N_GIVEN)), ratings.select(enough & (place >= N_GIVEN))


@dataclass(frozen=True)
class ListRun(Run):
    """One model on all list tasks of one split."""

    script: ClassVar[str] = __file__

    epochs: int | None = None

    def key(self) -> dict[str, Any]:
        key = {**super().key(), "protocol": PROTOCOL, "liked": self.data.liked}
        return key | ({"epochs": self.epochs} if self.epochs else {})


def measure(run: ListRun) -> dict[str, Any]:
    """Fit and make lists, here and now."""
    split = run.data.split(run.seed)
    values = split.train.values
    liked = run.data.liked if run.data.rated else 1.0
    kind = peer_class(run.model)
    kind.load()
    peer = kind((float(values.min()), float(values.max())), liked, run.seed)
    if run.epochs:
        peer.epochs = run.epochs
    result = fit(peer, split.train, *run.data.features())
    return result | list_quality(peer, make_tasks(split, liked, run.seed))


def list_quality(peer: Peer, tasks: dict[str, Task]) -> dict[str, Any]:
    """Make lists, and say how good they are."""
    result: dict[str, Any]
    result = {"ndcg@10": {}, "recall@20": {}, "n_users": {}, "n_items": {}, "lists_s": {}}
    for name, task in tasks.items():
        if name not in peer.answers or not len(task.users):
            continue
        clock = time.perf_counter()
        answering = peer if task.given is None else peer.fold_in(task.given)
        best = answering.lists(task.users, task.items, 20, task.exclude)
        result["lists_s"][name] = time.perf_counter() - clock
        hit, n_relevant = hits(best, task.relevant), np.diff(task.relevant.indptr)
        result["ndcg@10"][name] = float(ndcg_at_k(hit[:, :10], n_relevant).mean())
        result["recall@20"][name] = float(recall_at_k(hit, np.minimum(n_relevant, 20)).mean())
        result["n_users"][name], result["n_items"][name] = len(task.users), len(task.items)
    return result


if __name__ == "__main__":
    print(json.dumps(measure(ListRun.from_json(sys.argv[1]))))
