"""Retrieval metrics of ranked documents: nDCG, MRR and recall, as trec_eval, BEIR and MTEB compute them.

Relevance is graded: a judgement of 1 or more is relevant (trec_eval's `-l 1`), 0, a negative one, or none is not.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_runtime.numerics import FloatArray

__all__ = [
    "RETRIEVAL_METRIC",
    "Qrels",
    "Run",
    "ndcg",
    "rank_documents",
    "recall",
    "reciprocal_rank",
    "retrieval_metrics",
]

Qrels = Mapping[str, Mapping[str, float]]
"""Relevance of the judged documents of each query: query id → document id → grade."""

Run = Mapping[str, Mapping[str, float]]
"""Scores of the retrieved documents of each query: query id → document id → score, best is highest."""

RETRIEVAL_METRIC = "ndcg_at_10"
"""The metric of BEIR and MTEB, by which models are compared."""


def rank_documents(scores: Mapping[str, float], k: int | None = None) -> list[str]:
    """Return the ids of the `k` best documents, best first; by default of all.

    Scores are compared as float32, and documents of equal score are in descending order of their ids, as in trec_eval.
    That order depends neither on the order of `scores` nor on the judgements.
    """
    values = np.fromiter(scores.values(), np.float32, len(scores)).tolist()
    ranking = sorted(zip(values, scores, strict=True), reverse=True)
    return [document for _, document in ranking[:k]]


def ndcg(ranking: Sequence[str], relevance: Mapping[str, float], k: int | None = None) -> float:
    """Return the normalized discounted cumulative gain at rank `k` (Järvelin and Kekäläinen, TOIS 2002), in [0, 1].

    The gain is linear, `rel / log2(rank + 1)`, as in trec_eval, and so in BEIR and MTEB; scikit-learn's is the same.
    (With `2^rel − 1`, as in learning to rank, results of binary judgements are equal and of graded ones differ.)

    Args:
        ranking: ids of the retrieved documents, best first.
        relevance: grade of each judged document. The ideal ranking is made of all of them, retrieved or not.
        k: number of ranks that count; by default all.

    Returns:
        0 where no document is relevant.
    """
    gains = [max(0.0, relevance.get(document, 0.0)) for document in ranking[:k]]
    ideal = sorted((grade for grade in relevance.values() if grade > 0), reverse=True)[:k]
    return _dcg(gains) / _dcg(ideal) if ideal else 0.0


def _dcg(gains: Sequence[float]) -> float:
    """Return the sum of gains, best rank first, each divided by log2(rank + 1)."""
    values: FloatArray = np.array(gains, dtype=np.float64)
    return float((values / np.log2(np.arange(2, len(values) + 2))).sum())


def reciprocal_rank(ranking: Sequence[str], relevance: Mapping[str, float], k: int | None = None) -> float:
    """Return 1 / rank of the first relevant document, 0 where none is among the first `k`; see `ndcg`."""
    ranks = (rank for rank, document in enumerate(ranking[:k], 1) if relevance.get(document, 0) >= 1)
    return 1 / rank if (rank := next(ranks, 0)) else 0.0


def recall(ranking: Sequence[str], relevance: Mapping[str, float], k: int | None = None) -> float:
    """Return the share of the relevant documents that are among the first `k`, 0 where there are none; see `ndcg`."""
    relevant = _relevant(relevance)
    return len(relevant & set(ranking[:k])) / len(relevant) if relevant else 0.0


def _relevant(relevance: Mapping[str, float]) -> set[str]:
    return {document for document, grade in relevance.items() if grade >= 1}


def retrieval_metrics(
    run: Run,
    qrels: Qrels,
    *,
    ndcg_at: Iterable[int] = (10,),
    mrr_at: Iterable[int] = (10,),
    recall_at: Iterable[int] = (1, 10, 100),
) -> dict[str, float]:
    """Return the means of the metrics over all queries that have a relevant document.

    Queries without one are left out, as in MTEB and sentence-transformers. A query that `run` lacks counts as 0
    (trec_eval's `-c`).

    Args:
        run: scores of the retrieved documents; those of queries without judgements are not read.
        qrels: the judgements.
        ndcg_at: ranks of nDCG.
        mrr_at: ranks of the mean reciprocal rank.
        recall_at: ranks of recall.

    Returns:
        Metrics by MTEB's names, such as `ndcg_at_10`, in the order of the arguments; NaN where no query has a relevant
        document.
    """
    functions = {"ndcg": ndcg, "mrr": reciprocal_rank, "recall": recall}
    cutoffs = {"ndcg": ndcg_at, "mrr": mrr_at, "recall": recall_at}
    measures = {f"{name}_at_{k}": (functions[name], k) for name, ks in cutoffs.items() for k in ks}
    judged = {query: relevance for query, relevance in qrels.items() if _relevant(relevance)}
    values = np.zeros((len(judged), len(measures)))
    for index, (query, relevance) in enumerate(judged.items()):
        ranking = rank_documents(run.get(query, {}))
        values[index] = [function(ranking, relevance, k) for function, k in measures.values()]
    means = values.mean(axis=0) if judged else np.full(len(measures), np.nan)
    return dict(zip(measures, means.tolist(), strict=True))
