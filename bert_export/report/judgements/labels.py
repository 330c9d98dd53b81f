"""Judge classification of whole texts: one label, two in next-sentence-prediction, or any number of them."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_export.report.judgements.base import HITS_AND_MISSES, Decision, Judgement, Table, join_texts, lead
from bert_runtime.numerics import FloatArray, sigmoid, softmax
from bert_runtime.tasks import Example, Outputs, TextClassification, stack_single_window

__all__ = ["judge_labels", "judge_multi_label"]


def judge_labels(
    labels: Sequence[str],
    outputs: Sequence[Outputs],
    examples: Sequence[Example],
    to_probabilities: Callable[[FloatArray], FloatArray] = softmax,
) -> Judgement:
    """Judge the most probable label of each text."""
    probabilities = to_probabilities(stack_single_window(outputs).astype(np.float64))
    predicted = probabilities.argmax(axis=-1)
    expected = np.array([example.target for example in examples], dtype=np.int64)
    decisions = tuple(
        Decision(
            text=join_texts(*example.inputs),
            expected=labels[target],
            predicted=labels[label],
            correct=bool(label == target),
            probability=float(scores[label]),
            margin=lead(scores, label),
        )
        for example, scores, label, target in zip(examples, probabilities, predicted, expected, strict=True)
    )
    return Judgement(
        decisions=decisions,
        table=Table.count(labels, labels, expected.tolist(), predicted.tolist()),
        probabilities=probabilities.max(axis=-1),
        outcomes=predicted == expected,
    )


def judge_multi_label(task: TextClassification, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the set of labels of each text, and the probability of every label."""
    probabilities = sigmoid(stack_single_window(outputs).astype(np.float64))
    thresholds = np.broadcast_to(np.array(task.thresholds or task.threshold), probabilities.shape)
    truth = np.zeros(probabilities.shape, dtype=bool)
    for row, example in enumerate(examples):
        truth[row, example.target] = True
    chosen = probabilities >= thresholds
    decisions = tuple(
        Decision(
            text=join_texts(*example.inputs),
            expected=_names(task.labels, truth[row]),
            predicted=_names(task.labels, chosen[row]),
            correct=bool((chosen[row] == truth[row]).all()),
            margin=float(np.abs(probabilities[row] - thresholds[row]).min()),
        )
        for row, example in enumerate(examples)
    )
    counts = np.stack([chosen & truth, ~chosen & truth, chosen & ~truth]).sum(axis=1).T
    return Judgement(
        decisions=decisions,
        table=Table(rows=task.labels, columns=HITS_AND_MISSES, counts=counts),
        probabilities=probabilities.ravel(),
        outcomes=truth.ravel(),
    )


def _names(labels: Sequence[str], chosen: np.ndarray) -> str:
    return ", ".join(label for label, is_chosen in zip(labels, chosen, strict=True) if is_chosen) or "no label"
