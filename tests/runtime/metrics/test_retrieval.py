"""Retrieval metrics, by hand and compared with trec_eval (package pytrec-eval-terrier)."""

import math

import numpy as np
import pytest
import pytrec_eval

from bert_runtime.metrics import (
    ndcg,
    rank_documents,
    recall,
    reciprocal_rank,
    retrieval_metrics,
)

RANKING = ["x", "b", "y", "a"]
GRADES = {"a": 3, "b": 1, "c": 2, "y": 0, "x": -1}
"""Of a query with three relevant documents, of which `c` is not retrieved."""


def test_ndcg_by_hand() -> None:
    """Gains 1 at rank 2 and 3 at rank 4; ideally 3, 2 and 1 at ranks 1 to 3."""
    found = 1 / math.log2(3) + 3 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(RANKING, GRADES) == pytest.approx(found / ideal)
    assert ndcg(RANKING, GRADES, 2) == pytest.approx((1 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert ndcg(["a", "c", "b"], GRADES, 10) == 1


def test_other_metrics_by_hand() -> None:
    """Relevant documents at ranks 2 and 4, one is missing."""
    assert reciprocal_rank(RANKING, GRADES) == 1 / 2
    assert reciprocal_rank(RANKING, GRADES, 1) == 0
    assert recall(RANKING, GRADES, 3) == pytest.approx(1 / 3)
    assert recall(RANKING, GRADES) == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", [ndcg, reciprocal_rank, recall])
@pytest.mark.parametrize("grades", [{}, {"x": 0}], ids=["not judged", "nothing relevant"])
def test_nothing_relevant_or_retrieved_is_zero(metric: object, grades: dict[str, float]) -> None:
    assert callable(metric)
    assert metric(RANKING, grades) == 0
    assert metric([], GRADES) == 0


def test_ties_are_in_descending_order_of_the_ids() -> None:
    assert rank_documents({"a": 1.0, "c": 1.0, "d": 2.0, "b": 1.0}) == ["d", "c", "b", "a"]
    assert rank_documents({"b": 1.0, "c": 1.0, "a": 1.0, "d": 2.0}, k=2) == ["d", "c"]
    assert rank_documents({"a": 1 + 1e-10, "b": 1.0}) == ["b", "a"], "equal as float32"


def test_means_are_over_queries_with_a_relevant_document() -> None:
    """One query is right, one is missing from the run, one has nothing relevant, one is not judged."""
    qrels = {"right": {"a": 1}, "missing": {"a": 1}, "empty": {"a": 0}}
    run = {"right": {"a": 2.0, "b": 1.0}, "empty": {"a": 1.0}, "unknown": {"a": 1.0}}
    found = retrieval_metrics(run, qrels, recall_at=(1,))
    assert found == {"ndcg_at_10": 0.5, "mrr_at_10": 0.5, "recall_at_1": 0.5}
    assert math.isnan(retrieval_metrics(run, {"empty": {"a": 0}})["ndcg_at_10"])


def random_judgements(seed: int) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Return qrels with grades from -1 to 3 and a run whose scores have many ties."""
    generator = np.random.default_rng(seed)
    documents = [f"doc{number}" for number in range(60)]
    qrels, run = {}, {}
    for query in map(str, range(40)):
        judged, retrieved = generator.choice(documents, 15, replace=False), generator.choice(documents, 50, False)
        qrels[query] = dict(zip(judged.tolist(), generator.integers(-1, 4, 15).tolist(), strict=True)) | {"doc0": 1}
        run[query] = dict(zip(retrieved.tolist(), (generator.integers(0, 12, 50) / 7).tolist(), strict=True))
    return qrels, run


@pytest.mark.parametrize("seed", range(5))
def test_metrics_match_trec_eval(seed: int) -> None:
    qrels, run = random_judgements(seed)
    names = {"ndcg_at_": "ndcg_cut_", "recall_at_": "recall_"}
    judge = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.1,3,10", "recall.1,3,10", "recip_rank"})
    expected = judge.evaluate(run)
    found = retrieval_metrics(run, qrels, ndcg_at=(1, 3, 10), mrr_at=(60,), recall_at=(1, 3, 10))
    assert found.pop("mrr_at_60") == pytest.approx(np.mean([measures["recip_rank"] for measures in expected.values()]))
    for name, value in found.items():
        prefix, k = name[: name.rindex("_") + 1], name[name.rindex("_") + 1 :]
        other = np.mean([measures[names[prefix] + k] for measures in expected.values()])
        assert value == pytest.approx(other, abs=1e-12), name
