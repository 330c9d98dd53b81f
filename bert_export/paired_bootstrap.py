"""Confidence intervals of a task metric, and of the loss of one model compared with another on the same rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bert_runtime.metrics.entities import entity_spans, mark_entities
from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.tasks import (
    Example,
    Outputs,
    QuestionAnswering,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)
from bert_runtime.tasks.ranking_rows import are_ranked, ranking_metrics, ranking_qrels

__all__ = ["Interval", "PairedDrop", "is_within", "paired_drop", "ratio_parts"]

_RESAMPLES = 1000
"""Resamples of the rows, of a ranking's queries or of questions' contexts (Efron & Tibshirani, An Introduction to the
Bootstrap, 13.3)."""

_PERCENTILES = (2.5, 97.5)

_MEANS = ("text-classification", "question-answering", "next-sentence-prediction")
"""Tasks whose metric is the mean of those of single examples, but for F1 over several labels and correlations."""


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PairedDrop:
    """A model compared with a reference on the same labelled rows."""

    metric: str
    rows: int
    reference: float
    """The reference's metric."""
    found: float
    """The model's."""
    found_interval: Interval
    drop_percent: float
    """How much less the model has, in percent of the reference's metric; negative where it has more, and NaN where the
    reference's is not above 0. A model whose metric is undefined has lost all."""
    drop_interval: Interval
    """Its interval over resamples of the rows, each of which both models are measured on. Where they are equal in all,
    as on rows that both get right, resamples tell nothing: then it is about that of the rule of three, by which at most
    3 of as many rows differ (Hanley & Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 1983)."""


def is_within(drop: float, limit: float) -> bool:
    """Return whether a drop is at most a limit, but for rounding: 0.92 of 1 is a little less than 8 % below."""
    return drop <= limit + 1e-9


def paired_drop(
    task: Task,
    outputs: Sequence[Outputs],
    reference_task: Task,
    reference: Sequence[Outputs],
    examples: Sequence[Example],
    seed: int = 0,
) -> PairedDrop:
    """Compare the task metric of two models by a paired percentile bootstrap over the examples.

    Documents of one query are drawn together, as are questions about one context. A query that is drawn is ranked among
    the texts of all rows.

    Args:
        task: the model's task, whose thresholds may differ from the reference's.
        outputs: the model's outputs for the inputs of all examples, in order.
        reference_task: the reference's task.
        reference: its outputs for the same inputs.
        examples: the labelled examples.
        seed: seed of the resamples.
    """
    found, expected = (_Sampled.build(*given, examples) for given in ((task, outputs), (reference_task, reference)))
    size = found.num_units
    counts = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=_RESAMPLES)
    metrics, references = found.resample(counts), expected.resample(counts)
    point, base = found.value, expected.value
    drops = _interval(np.array([_drop_percent(*pair) for pair in zip(metrics, references, strict=True)]))
    if np.array_equal(metrics, references, equal_nan=True):
        largest = _drop_percent(base - 3 / size, base)
        drops = Interval(max(-largest, _drop_percent(1.0, base)), min(largest, 100.0))
    return PairedDrop(
        metric=task.metric_for(examples),
        rows=len(examples),
        reference=base,
        found=point,
        found_interval=_interval(metrics),
        drop_percent=_drop_percent(point, base),
        drop_interval=drops,
    )


def _drop_percent(found: float, reference: float) -> float:
    if not reference > 0:
        return float("nan")
    return 100.0 if np.isnan(found) else 100 * (reference - found) / reference


def _interval(values: FloatArray) -> Interval:
    """Return the interval of the values that are defined; NaN without any."""
    if np.isnan(values).all():
        return Interval(float("nan"), float("nan"))
    low, high = np.nanpercentile(values, _PERCENTILES)
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class _Sampled:
    """The metric of a model on all examples, and on resamples."""

    value: float
    num_units: int
    """Number of examples, of a ranking's queries or of the contexts of questions, which are drawn."""
    resample: Callable[[IntArray], FloatArray]
    """Returns the metrics [R] for how often each unit is in each resample [R, units]."""

    @classmethod
    def build(cls, task: Task, outputs: Sequence[Outputs], examples: Sequence[Example]) -> "_Sampled":
        metric = task.metric_for(examples)
        value = task.score(outputs, examples)[metric]
        if isinstance(task, Reranking):
            return cls._of_parts(value, _reranked_parts(task, outputs, examples))
        if isinstance(task, SparseEmbedding | SentenceEmbedding) and are_ranked(examples):
            return cls._of_parts(value, _ranked_parts(task, outputs, examples))
        parts = ratio_parts(task, outputs, examples)
        if parts is not None and isinstance(task, QuestionAnswering):
            parts = _context_parts(parts, examples)
        if parts is not None and abs(_ratio(parts.sum(axis=0)) - value) < 1e-6:
            return cls._of_parts(value, parts)
        width = len(outputs) // len(examples)

        def score_each(counts: IntArray) -> FloatArray:
            metrics = []
            for count in counts:
                drawn = np.repeat(np.arange(len(examples)), count).tolist()
                inputs = [outputs[width * row + part] for row in drawn for part in range(width)]
                metrics.append(task.score(inputs, [examples[row] for row in drawn])[metric])
            return np.array(metrics)

        return cls(value, len(examples), score_each)

    @classmethod
    def _of_parts(cls, value: float, parts: FloatArray) -> "_Sampled":
        return cls(value, len(parts), lambda counts: np.array([_ratio(total) for total in counts @ parts]))


def _ratio(total: FloatArray) -> float:
    return float(total[0] / total[1]) if total[1] else 0.0


def ratio_parts(task: Task, outputs: Sequence[Outputs], examples: Sequence[Example]) -> FloatArray | None:
    """Return each example's share of numerator and denominator [examples, 2] of a metric that is a ratio of sums.

    `None` for a metric that is not, such as a correlation.
    """
    if isinstance(task, TextClassification) and task.problem_type == "multi_label":
        rows = [_label_f1_parts(task, *pair) for pair in zip(outputs, examples, strict=True)]
    elif isinstance(task, TokenClassification):
        rows = [_word_parts(task, *pair) for pair in zip(outputs, examples, strict=True)]
    elif task.name in _MEANS and getattr(task, "problem_type", "") != "regression":
        rows = [
            (task.score([output], [example])[task.metric], 1.0)
            for output, example in zip(outputs, examples, strict=True)
        ]
    else:
        return None
    return np.array(rows, dtype=np.float64)


def _context_parts(parts: FloatArray, examples: Sequence[Example]) -> FloatArray:
    """Add up the parts of questions about the same context [examples, 2] → [contexts, 2]: they are not independent."""
    _, contexts = np.unique([str(example.inputs[0].text_pair) for example in examples], return_inverse=True)
    return np.stack([np.bincount(contexts, weights=part) for part in parts.T], axis=1)


def _ranked_parts(
    task: SparseEmbedding | SentenceEmbedding, outputs: Sequence[Outputs], examples: Sequence[Example]
) -> FloatArray:
    """Return each query's metric among the texts of all rows, and 1 [queries, 2]."""
    run, qrels, metric = task.rank(outputs, examples), ranking_qrels(examples), task.metric_for(examples)
    rows = [(ranking_metrics(run, {query: answers})[metric], 1.0) for query, answers in qrels.items()]
    return np.array(rows, dtype=np.float64)


def _reranked_parts(task: Reranking, outputs: Sequence[Outputs], examples: Sequence[Example]) -> FloatArray:
    """Return each query's metric and 1 [queries, 2]; without a relevant document both are 0, as in the mean.

    Rows of one query are ranked together, so that what is drawn are queries.
    """
    grades = [grade for example in examples for grade in example.target]
    queries: dict[str, list[tuple[Outputs, float]]] = {}
    for output, grade in zip(outputs, grades, strict=True):
        queries.setdefault(output.input.text, []).append((output, grade))
    parts = []
    for rows in queries.values():
        ranked, relevance = [output for output, _ in rows], [grade for _, grade in rows]
        value = task.score(ranked, [Example(tuple(output.input for output in ranked), relevance)])[task.metric]
        parts.append((0.0, 0.0) if np.isnan(value) else (value, 1.0))
    return np.array(parts, dtype=np.float64)


def _label_f1_parts(task: TextClassification, output: Outputs, example: Example) -> tuple[float, float]:
    """Return 2 · true positives, and predicted + expected labels."""
    thresholds = np.array(task.thresholds or task.threshold)
    predicted = set(np.flatnonzero(task.probabilities(output.arrays[0]) >= thresholds).tolist())
    return 2 * len(predicted & set(example.target)), len(predicted) + len(set(example.target))


def _word_parts(task: TokenClassification, output: Outputs, example: Example) -> tuple[float, float]:
    """Return the parts of entity F1, or of the accuracy over words."""
    words, labels = example.target
    predicted, _ = task.predict_words(output, words)
    if not mark_entities(task.labels):
        return float((predicted == labels).sum()), len(labels)
    names = (*task.labels, "O")
    spans = [set(entity_spans([names[label] for label in part])) for part in (predicted, labels)]
    return 2 * len(spans[0] & spans[1]), len(spans[0]) + len(spans[1])
