"""An inverted index of sparse embeddings: exact search by dot product, with a list of documents for each token."""

from collections.abc import Iterable

import numpy as np

from bert_runtime.numerics import FloatArray, IntArray

__all__ = ["SparseIndex"]


class SparseIndex:
    """Documents by the tokens that they weigh.

    Args:
        documents: weights of the N documents, in order: float [V] each, most of them 0. Only the others are kept.
        vocab_size: V.
    """

    def __init__(self, documents: Iterable[FloatArray], vocab_size: int) -> None:
        tokens: list[IntArray] = []
        weights: list[FloatArray] = []
        for vector in documents:
            found = np.flatnonzero(vector > 0)
            tokens.append(found)
            weights.append(vector[found])
        self.num_documents = len(tokens)
        counts = [len(found) for found in tokens]
        all_tokens = np.concatenate([np.empty(0, dtype=np.int64), *tokens])
        order = np.argsort(all_tokens, kind="stable")
        self._documents = np.repeat(np.arange(self.num_documents), counts)[order]
        self._weights = np.concatenate([np.empty(0, dtype=np.float32), *weights])[order]
        self._ends = np.searchsorted(all_tokens[order], np.arange(vocab_size), side="right")

    def scores(self, query: FloatArray) -> FloatArray:
        """Return the dot product of a query [V] with each document: float64 [N]."""
        scores = np.zeros(self.num_documents)
        for token in np.flatnonzero(query > 0).tolist():
            postings = slice(self._ends[token - 1] if token else 0, self._ends[token])
            scores[self._documents[postings]] += float(query[token]) * self._weights[postings]
        return scores

    def search(self, query: FloatArray, k: int) -> list[tuple[int, float]]:
        """Return the numbers and scores of the `k` best documents that share a token with a query [V], best first."""
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        return [(number, float(scores[number])) for number in best if scores[number] > 0]
