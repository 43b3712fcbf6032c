"""A context encoder: embeddings from co-occurrence, for words never seen from their context.

    python pipelines/paper/context.py

Words of a made-up language belong to topics and turn up beside words of their topic. Targets are
the words' co-occurrence counts as positive pointwise mutual information, features are the contexts
a word was seen in. A word that was held out gets its embedding from its contexts, and its
neighbours are of its topic.
"""

import numpy as np

from simrec import SimEc


def corpus(rng: np.random.Generator, n_words: int, n_topics: int, n_sentences: int) -> tuple:
    """Return (sentences as rows of words, topic of each word)."""
    topics = rng.permutation(np.arange(n_words) % n_topics)
    popularity = 1 / np.arange(1, n_words + 1) ** 0.5
    chance = np.stack(
        [np.where(topics == t, popularity, 0.02 * popularity) for t in range(n_topics)]
    )
    chance /= chance.sum(1, keepdims=True)
    about = rng.integers(n_topics, size=n_sentences)
    return np.stack([rng.choice(n_words, 6, p=chance[t]) for t in about]), topics


def co_occurrence(sentences: np.ndarray, n_words: int) -> np.ndarray:
    """Return how often two words share a sentence."""
    counts = np.zeros((n_words, n_words), np.float32)
    for i in range(sentences.shape[1]):
        for j in range(sentences.shape[1]):
            if i != j:
                np.add.at(counts, (sentences[:, i], sentences[:, j]), 1)
    return counts


def main(n_words: int = 300, n_topics: int = 6, n_sentences: int = 4000) -> float:
    """Print and return how often a held-out word's nearest neighbour is of its topic."""
    rng = np.random.default_rng(0)
    sentences, topics = corpus(rng, n_words, n_topics, n_sentences)
    counts = co_occurrence(sentences, n_words)
    new = np.zeros(n_words, bool)
    new[rng.permutation(np.flatnonzero(counts.sum(1) > 0))[: n_words // 10]] = True
    known = ~new & (counts.sum(1) > 0)

    # Contexts are known words only: what can be counted for any word, old or new.
    contexts = counts[:, known]
    features = contexts / np.maximum(contexts.sum(1, keepdims=True), 1)
    own = counts[np.ix_(known, known)]
    total = own.sum()
    expected = np.maximum(own.sum(1)[:, None] * own.sum(0)[None] / total, 1e-9)
    mutual = np.log(np.maximum(own / expected, 1))  # positive pointwise mutual information

    model = SimEc(n_topics, init="least_squares", epochs=0, ridge=0.1).fit(features[known], mutual)
    Y, Y_new = model.transform(features[known]), model.transform(features[new])
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    nearest = (Y_new @ Y.T).argmax(1)
    share = float(np.mean(topics[known][nearest] == topics[new]))
    print(
        f"{new.sum()} words never trained on: the nearest neighbour is of the word's topic for "
        f"{share:.0%} of them (by chance {1 / n_topics:.0%})"
    )
    return share


if __name__ == "__main__":
    main()
