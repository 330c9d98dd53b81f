"""Evaluation of a model on a retrieval data set: nDCG, MRR and recall."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice

import numpy as np

from bert_runtime.batching.streaming import CHUNK_SIZE
from bert_runtime.errors import DataError, InputError
from bert_runtime.metrics import Run, retrieval_metrics
from bert_runtime.model import Model
from bert_runtime.numerics import Float32Array, FloatArray
from bert_runtime.records.retrieval import RetrievalData
from bert_runtime.similarity import nearest_neighbors
from bert_runtime.sparse_index import SparseIndex
from bert_runtime.tasks import SentenceEmbedding, SparseEmbedding
from bert_runtime.vector_quantization import unpacked_embeddings

__all__ = ["evaluate_retrieval", "retrieve", "run_of_vectors", "score_run"]

_TOP_K = 100
"""Documents that are retrieved for each query: as many as `recall_at_100` needs."""

_BLOCK = 2048
"""Documents that are embedded and searched at a time."""

_Progress = Callable[[int], None]


def evaluate_retrieval(
    model: Model,
    data: RetrievalData,
    progress: _Progress = lambda done: None,
    *,
    candidates: Run | None = None,
) -> dict[str, float]:
    """Return nDCG, MRR and recall of a model that retrieves the documents of a corpus for each query.

    Args:
        model: see `retrieve`.
        data: the data set.
        progress: called with the number of texts that have been processed since the last call.
        candidates: see `retrieve`.

    Returns:
        nDCG and MRR at 10, recall at 1, 10 and 100, by the names of `retrieval_metrics`.

    Raises:
        InputError: the model's task does not retrieve, or a text cannot be processed.
        DataError: no query has a relevant document, or none of the candidates is of this data set.
    """
    return score_run(retrieve(model, data, candidates=candidates, progress=progress), data)


def score_run(run: Run, data: RetrievalData) -> dict[str, float]:
    """Return the metrics of retrieved documents; raise `DataError` where no query has a relevant one."""
    metrics = retrieval_metrics(run, data.qrels)
    if any(value != value for value in metrics.values()):
        raise DataError(f"{data.path}: expected a query with a relevant document (grade 1 or more), found none")
    return metrics


def retrieve(
    model: Model,
    data: RetrievalData,
    *,
    candidates: Run | None = None,
    top_k: int = _TOP_K,
    progress: _Progress = lambda done: None,
) -> dict[str, dict[str, float]]:
    """Search the corpus exactly for each query, or rerank what another model has retrieved.

    The model's prompt called `query` is put in front of queries, and that called `document`, `passage` or `corpus` in
    front of documents. Without such a prompt, or where the model was configured with a `prompt`, its own is in front.
    Models whose pooling leaves prompts out (`include_prompt`) get none. A query that is a document of the corpus does
    not retrieve itself.

    Args:
        model: a model for sentence-embedding or sparse-embedding, or with `candidates` one that scores pairs. Sparse
            embeddings are compared by dot product.
        data: the data set.
        candidates: documents to rerank for each query, such as `bert_runtime.records.retrieval.read_run` returns; only
            for models that score pairs.
        top_k: documents to retrieve for each query.
        progress: see `evaluate_retrieval`.

    Returns:
        The score of each retrieved document, by the ids of query and document.

    Raises:
        InputError: see `evaluate_retrieval`.
        DataError: none of the candidates is of this data set.
    """
    task = model.task
    if candidates is not None:
        return _reranked(model, data, candidates, progress)
    if isinstance(task, SparseEmbedding):
        return _retrieve_sparse(model, task, data, top_k, progress)
    if not isinstance(task, SentenceEmbedding):
        raise InputError(
            "retrieval needs a model for sentence-embedding or sparse-embedding, or one that scores pairs and the "
            f"candidates that it reranks (--first-stage), found one for {task.name}"
        )
    queries = np.concatenate(list(_blocks(model, task.for_queries(), data.queries.values(), progress)))
    documents = _blocks(model, task.for_documents(), data.corpus.values(), progress)
    return run_of_vectors(queries, documents, data, task.similarity, top_k)


def run_of_vectors(
    queries: FloatArray, documents: Iterable[FloatArray], data: RetrievalData, similarity: str, top_k: int = _TOP_K
) -> dict[str, dict[str, float]]:
    """Search vectors of a data set, see `retrieve`.

    Args:
        queries: vectors of the queries, in order: float [N, H].
        documents: vectors of the documents, in order, a part at a time: float [M, H] each.
        data: the data set.
        similarity: one of `bert_runtime.similarity.SIMILARITIES`.
        top_k: documents to retrieve for each query.
    """
    found, ids = nearest_neighbors(queries, documents, top_k + 1, similarity), list(data.corpus)
    return {
        query: _without_itself(query, zip([ids[index] for index in indices], scores, strict=True), data, top_k)
        for query, indices, scores in zip(data.queries, found.indices.tolist(), found.scores.tolist(), strict=True)
    }


def _without_itself(
    query: str, retrieved: Iterable[tuple[str, float]], data: RetrievalData, top_k: int
) -> dict[str, float]:
    """Return the best documents of a query, without the one that it is itself.

    Queries of ArguAna and Quora are documents of the corpus, under the same ids: the best one tells nothing there.
    BEIR and MTEB leave it out, too.
    """
    return dict(
        islice(((document, score) for document, score in retrieved if not data.is_itself(query, document)), top_k)
    )


def _reranked(model: Model, data: RetrievalData, candidates: Run, progress: _Progress) -> dict[str, dict[str, float]]:
    """Score the candidates of each query; those that the corpus lacks are left out, unless these are all."""
    if not any(document in data.corpus for query in data.queries for document in candidates.get(query, {})):
        raise DataError(
            f"{data.path}: expected candidates for its {len(data.queries)} queries that are documents of the corpus, "
            "found none; retrieve them from this data set (--run-output)"
        )
    run = {}
    for query, text in data.queries.items():
        ids = [
            document
            for document in candidates.get(query, {})
            if document in data.corpus and not data.is_itself(query, document)
        ]
        ranked = model.rank(text, [data.corpus[document] for document in ids]) if ids else []
        run[query] = {ids[item.index]: item.logit for item in ranked}
        progress(1)
    return run


def _retrieve_sparse(
    model: Model, task: SparseEmbedding, data: RetrievalData, top_k: int, progress: _Progress
) -> dict[str, dict[str, float]]:
    """Search sparse embeddings of a data set by dot product, see `retrieve`."""

    def weights(texts: Iterable[str]) -> Iterator[FloatArray]:
        iterator = iter(texts)
        while block := list(islice(iterator, CHUNK_SIZE)):
            yield from (task.limited(outputs.arrays[0]) for outputs in model.outputs(block))
            progress(len(block))

    index, ids = SparseIndex(weights(data.corpus.values()), task.vocab_size), list(data.corpus)
    return {
        query: _without_itself(
            query, ((ids[number], score) for number, score in index.search(vector, top_k + 1)), data, top_k
        )
        for query, vector in zip(data.queries, weights(data.queries.values()), strict=True)
    }


def _blocks(model: Model, task: SentenceEmbedding, texts: Iterable[str], progress: _Progress) -> Iterator[Float32Array]:
    """Yield the vectors of texts, as numbers to compare: float32 [up to `_BLOCK`, H]."""
    configured, iterator = copy(model), iter(texts)
    configured.task = task
    while block := list(islice(iterator, _BLOCK)):
        yield unpacked_embeddings(configured.encode(block), task.embedding_precision, task.dimensions)
        progress(len(block))
