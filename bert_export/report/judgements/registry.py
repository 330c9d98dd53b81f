"""The judge of each task."""

from collections.abc import Callable, Sequence
from typing import Any

from bert_export.report.judgements.answers import judge_answers
from bert_export.report.judgements.base import Judgement
from bert_export.report.judgements.labels import judge_labels, judge_multi_label
from bert_export.report.judgements.masks import judge_masks
from bert_export.report.judgements.numbers import judge_regression, judge_relevance, judge_similarities
from bert_export.report.judgements.retrieved import judge_nearest, judge_retrieved
from bert_export.report.judgements.words import judge_replaced_tokens, judge_tokens
from bert_runtime.tasks import (
    Example,
    NextSentencePrediction,
    Outputs,
    SentenceEmbedding,
    Task,
    TextClassification,
)
from bert_runtime.tasks.ranking_rows import are_ranked

__all__ = ["JUDGES", "judge"]

_Judge = Callable[[Any, Sequence[Outputs], Sequence[Example]], Judgement]


def _judge_texts(task: TextClassification, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    if task.problem_type == "multi_label":
        return judge_multi_label(task, outputs, examples)
    if task.problem_type == "regression":
        return judge_regression(outputs, examples)
    return judge_labels(task.labels, outputs, examples, task.probabilities)


def _judge_order(task: NextSentencePrediction, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    return judge_labels(task.labels, outputs, examples)


def _judge_embeddings(task: SentenceEmbedding, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    if are_ranked(examples):
        return judge_nearest(task, outputs, examples)
    return judge_similarities(outputs, examples)


def _judge_relevance(task: Task, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    return judge_relevance(outputs, examples)


JUDGES: dict[str, _Judge] = {
    "text-classification": _judge_texts,
    "token-classification": judge_tokens,
    "question-answering": judge_answers,
    "fill-mask": judge_masks,
    "next-sentence-prediction": _judge_order,
    "replaced-token-detection": judge_replaced_tokens,
    "sentence-embedding": _judge_embeddings,
    "sparse-embedding": judge_retrieved,
    "rerank": _judge_relevance,
}
"""Judges by the name of the task, for those whose data has labels."""


def judge(task: Task, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge a model's outputs for the inputs of labelled examples, in order."""
    return JUDGES[task.name](task, outputs, examples)
