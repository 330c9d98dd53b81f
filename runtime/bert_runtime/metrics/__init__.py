"""Task metrics in NumPy and the standard library, used in training, in the exporter's INT8 check and in `evaluate`.

They are implemented here because `evaluate` runs where only NumPy is installed. The tests compare them with
torchmetrics, trec_eval, and independent implementations of the rules of conlleval and SQuAD.
"""

from bert_runtime.metrics.calibration import ReliabilityBin, expected_calibration_error, reliability_bins
from bert_runtime.metrics.classification import (
    accuracy,
    best_micro_f1_threshold,
    macro_f1,
    micro_f1,
    multi_label_macro_f1,
)
from bert_runtime.metrics.correlation import pearson, spearman
from bert_runtime.metrics.drift import logit_drift
from bert_runtime.metrics.entities import entity_f1, entity_spans, mark_entities
from bert_runtime.metrics.retrieval import (
    RETRIEVAL_METRIC,
    Qrels,
    Run,
    ndcg,
    rank_documents,
    recall,
    reciprocal_rank,
    retrieval_metrics,
)
from bert_runtime.metrics.squad import answer_f1, best_threshold, exact_match, normalize_answer

__all__ = [
    "RETRIEVAL_METRIC",
    "Qrels",
    "ReliabilityBin",
    "Run",
    "accuracy",
    "answer_f1",
    "best_micro_f1_threshold",
    "best_threshold",
    "entity_f1",
    "entity_spans",
    "exact_match",
    "expected_calibration_error",
    "logit_drift",
    "macro_f1",
    "mark_entities",
    "micro_f1",
    "multi_label_macro_f1",
    "ndcg",
    "normalize_answer",
    "pearson",
    "rank_documents",
    "recall",
    "reciprocal_rank",
    "reliability_bins",
    "retrieval_metrics",
    "spearman",
]
