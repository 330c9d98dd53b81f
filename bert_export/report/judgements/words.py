"""Judge labels of words: token-classification and replaced-token-detection."""

from collections.abc import Sequence

import numpy as np

from bert_export.report.judgements.base import Decision, Judgement, Table, lead
from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.tasks import Example, Outputs, ReplacedTokenDetection, TokenClassification
from bert_runtime.tasks.replaced_token_detection import LABELS

__all__ = ["judge_replaced_tokens", "judge_tokens"]


def judge_tokens(task: TokenClassification, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the label of each word."""
    predictions = [
        task.predict_words(output, example.target[0]) for output, example in zip(outputs, examples, strict=True)
    ]
    return _judge_words(
        task.labels, examples, [labels for labels, _ in predictions], [scores for _, scores in predictions]
    )


def judge_replaced_tokens(
    task: ReplacedTokenDetection, outputs: Sequence[Outputs], examples: Sequence[Example]
) -> Judgement:
    """Judge for each word whether it was replaced."""
    replaced = [
        task.predict_words(output, example.target[0]) for output, example in zip(outputs, examples, strict=True)
    ]
    labels = [(scores >= task.threshold).astype(np.int64) for scores in replaced]
    return _judge_words(LABELS, examples, labels, [np.stack([1 - scores, scores], axis=1) for scores in replaced])


def _judge_words(
    labels: Sequence[str], examples: Sequence[Example], predicted: Sequence[IntArray], scores: Sequence[FloatArray]
) -> Judgement:
    """Judge predicted labels [W] with their probabilities [W, labels] for each text.

    A label of -1 stands for a word that the tokenizer drops; dropped words have no probabilities.
    """
    names = (*labels, "dropped") if any((found < 0).any() for found in predicted) else tuple(labels)
    decisions = [
        _decision(names, example, word, int(label), probabilities)
        for example, found, table in zip(examples, predicted, scores, strict=True)
        for word, (label, probabilities) in enumerate(zip(found, table, strict=True))
    ]
    known = [decision for decision in decisions if decision.probability is not None]
    expected = np.concatenate([example.target[1] for example in examples])
    return Judgement(
        decisions=tuple(decisions),
        table=Table.count(names, names, expected.tolist(), (np.concatenate(predicted) % len(names)).tolist()),
        probabilities=np.array([decision.probability for decision in known], dtype=np.float64),
        outcomes=np.array([decision.correct for decision in known], dtype=bool),
    )


def _decision(names: Sequence[str], example: Example, word: int, label: int, probabilities: FloatArray) -> Decision:
    spans, expected = example.target
    known = not np.isnan(probabilities).any()
    return Decision(
        text=example.inputs[0].text,
        span=(int(spans[word][0]), int(spans[word][1])),
        expected=names[expected[word]],
        predicted=names[label],
        correct=bool(label == expected[word]),
        probability=float(probabilities[label]) if known else None,
        margin=lead(probabilities, label) if known else None,
    )
