"""Rows of the speed benchmark: top-k search and pair scoring, arrays in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from simrec import top_k
from simrec.scoring.pairs import score_pairs
from speed_rows.timing import Ratio, Sizes, compare, in_turns

_D, _K = 64, 10
# What top_k multiplies at a time; the bare product does the same blocks.
_QUERY_BLOCK, _ITEM_BLOCK = 1024, 2048


def vectors(n: int, seed: int) -> np.ndarray:
    """Make n vectors of no structure."""
    return np.random.default_rng(seed).standard_normal((n, _D), np.float32)


def search_matmul(sizes: Sizes) -> list[Ratio]:
    """Exact top-10 against nothing but the product of the same blocks."""
    queries, items = _problem(sizes)
    calls = {"ours": lambda: top_k(queries, items, _K), "bare": bare_product(queries, items)}
    seconds = in_turns(calls, sizes.repeats)
    name = _name(queries, items)
    return [compare(name, "bare `tf.matmul` of the same blocks", *seconds.values(), bar=1.5)]


def search_peers(sizes: Sizes) -> list[Ratio]:
    """Exact top-10 against the searches of other libraries."""
    queries, items = _problem(sizes)
    peers = {**tfrs_search(queries, items), **faiss_search(queries, items)}
    peers |= implicit_search(queries, items)
    seconds = in_turns({"ours": lambda: top_k(queries, items, _K), **peers}, sizes.repeats)
    ours, name = seconds.pop("ours"), _name(queries, items)
    bars = {"TFRS BruteForce": 2.5, "Faiss IndexFlatIP": 2.0, "implicit": 2.0}
    return [
        compare(name, peer, ours, theirs, bar=bars[peer], faster=True)
        for peer, theirs in seconds.items()
    ]


def search_exclude(sizes: Sizes) -> list[Ratio]:
    """Top-10 without the items that were seen, against top-10 of all items."""
    queries, items = _problem(sizes)
    rng = np.random.default_rng(2)
    seen = sparse.random_array(
        (len(queries), len(items)), density=100 / len(items), format="csr", rng=rng
    )
    calls = {
        "with": lambda: top_k(queries, items, _K, exclude=seen),
        "without": lambda: top_k(queries, items, _K),
    }
    seconds = in_turns(calls, sizes.repeats)
    name = f"{_name(queries, items)}, about 100 seen items each left out"
    return [compare(name, "without exclusion", *seconds.values(), bar=1.2)]


def pairs(sizes: Sizes) -> list[Ratio]:
    """Scores of pairs against gathering and multiplying in NumPy."""
    rng = np.random.default_rng(3)
    n = sizes.choose(2_000_000, 200_000)
    users, items = vectors(100_000, 0), vectors(50_000, 1)
    user_rows, item_rows = rng.integers(len(users), size=n), rng.integers(len(items), size=n)

    def bare(block: int) -> Callable[[], Any]:
        def call() -> np.ndarray:
            scores = np.empty(n, np.float32)
            for first in range(0, n, block):
                part = slice(first, first + block)
                left, right = users[user_rows[part]], items[item_rows[part]]
                scores[part] = np.einsum("nd,nd->n", left, right)
            return scores

        return call

    calls = {
        "ours": lambda: score_pairs(users, items, user_rows, item_rows),
        # NumPy at its best: all at once costs memory traffic, blocks that fit the cache do not.
        "at once": bare(n),
        "in blocks": bare(4096),
    }
    seconds = in_turns(calls, sizes.repeats)
    theirs = min(seconds["at once"], seconds["in blocks"], key=lambda s: sorted(s)[len(s) // 2])
    name = f"`score_pairs`, {n:,} pairs, d = {_D}"
    return [compare(name, "bare NumPy gather and multiply", seconds["ours"], theirs, bar=1.2)]


def bare_product(queries: np.ndarray, items: np.ndarray) -> Callable[[], Any]:
    """Multiply block by block with TensorFlow, and keep nothing."""
    from simrec.simec.keras import tf

    left = [
        tf.constant(queries[at : at + _QUERY_BLOCK]) for at in range(0, len(queries), _QUERY_BLOCK)
    ]
    right = [tf.constant(items[at : at + _ITEM_BLOCK]) for at in range(0, len(items), _ITEM_BLOCK)]

    def call() -> None:
        for some in left:
            for others in right:
                product = tf.matmul(some, others, transpose_b=True)
        product.numpy()

    return call


def tfrs_search(queries: np.ndarray, items: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Search with the layer that TFRS has for it, in batches that fit into memory."""
    from simrec.simec.keras import tf, tfrs

    layer = tfrs.layers.factorized_top_k.BruteForce(k=_K).index(tf.constant(items))
    blocks = [tf.constant(queries[at : at + 256]) for at in range(0, len(queries), 256)]
    return {"TFRS BruteForce": lambda: [layer(block)[1].numpy() for block in blocks]}


def faiss_search(queries: np.ndarray, items: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Search with a flat Faiss index."""
    import faiss

    index = faiss.IndexFlatIP(items.shape[1])
    index.add(items)
    return {"Faiss IndexFlatIP": lambda: index.search(queries, _K)}


def implicit_search(queries: np.ndarray, items: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Search with the function that implicit's models use to recommend."""
    from implicit.cpu.topk import topk

    return {"implicit": lambda: topk(items, queries, _K, num_threads=0)}


def _problem(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    return vectors(sizes.choose(4096, 512), 0), vectors(sizes.choose(100_000, 20_000), 1)


def _name(queries: np.ndarray, items: np.ndarray) -> str:
    return f"`top_k`, {len(items):,} items, {len(queries):,} queries, d = {_D}, k = {_K}"
