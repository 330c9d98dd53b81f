"""Search of sparse embeddings: the inverted index gives the dot products, and `retrieve` the best documents."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_runtime.records.retrieval import RetrievalData
from bert_runtime.retrieval import evaluate_retrieval, retrieve
from bert_runtime.sparse_index import SparseIndex
from bert_runtime.tasks import SparseEmbedding
from bert_runtime.tokenization import Batch

from .task_models import RandomRunner, with_runner, wordpiece


def sparse(count: int, width: int, seed: int) -> NDArray[np.float32]:
    """Return vectors of which most values are 0."""
    rng = np.random.default_rng(seed)
    return (rng.random((count, width)) * (rng.random((count, width)) < 0.2)).astype(np.float32)


def test_scores_are_dot_products() -> None:
    documents, queries = sparse(30, 50, 0), sparse(5, 50, 1)
    index = SparseIndex(documents, 50)
    for query in queries:
        np.testing.assert_allclose(index.scores(query), documents @ query, atol=1e-6)
        found = index.search(query, 4)
        assert [number for number, _ in found] == np.argsort(-(documents @ query), kind="stable")[:4].tolist()


def test_documents_without_a_common_token_are_not_found() -> None:
    index = SparseIndex([np.array([0, 0, 1.0]), np.zeros(3), np.array([2.0, 0, 0])], 3)
    assert index.search(np.array([1.0, 0, 0]), 3) == [(2, 2.0)]
    assert index.search(np.zeros(3), 3) == []
    assert SparseIndex([], 3).search(np.ones(3), 3) == []


class BagOfWords(RandomRunner):
    """A weight of 1 for every token of the text."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        weights = np.zeros((len(batch.input_ids), self.width[0]), dtype=np.float32)
        for row, ids, mask in zip(weights, batch.input_ids, batch.attention_mask, strict=True):
            row[ids[mask == 1][1:-1]] = 1
        return weights


def test_retrieve_finds_the_texts_with_the_words_of_the_query(toy_vocab: Path) -> None:
    model = with_runner(BagOfWords(400), SparseEmbedding(vocab_size=400), wordpiece(toy_vocab), 64)
    data = RetrievalData(
        corpus={"a": "my card is lost", "b": "the train is late", "c": "the bank is old"},
        queries={"1": "where is my card", "2": "late train"},
        qrels={"1": {"a": 1}, "2": {"b": 1}},
        path=Path("qrels.tsv"),
    )
    assert retrieve(model, data)["2"] == {"b": 2.0}
    assert list(retrieve(model, data, top_k=2)["1"]) == ["a", "b"]
    assert evaluate_retrieval(model, data)["ndcg_at_10"] == 1
    assert retrieve(model.with_options(min_weight=1), data) == {"1": {}, "2": {}}
