"""Judge numbers: regression, relevance, and cosine similarities of embeddings."""

from collections.abc import Sequence

import numpy as np

from bert_export.report.judgements.base import Judgement, Numbers, join_texts
from bert_runtime.similarity import cosine
from bert_runtime.tasks import Example, Outputs, stack_single_window
from bert_runtime.tasks.reranking import max_logits

__all__ = ["judge_regression", "judge_relevance", "judge_similarities"]


def judge_regression(outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the number of each text."""
    expected = np.array([example.target[0] for example in examples], dtype=np.float64)
    predicted = stack_single_window(outputs)[:, 0].astype(np.float64)
    texts = tuple(join_texts(*example.inputs) for example in examples)
    return Judgement(numbers=Numbers(texts=texts, expected=expected, predicted=predicted, name="predicted number"))


def judge_relevance(outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the logit of each pair of a query and a document."""
    expected = np.array([grade for example in examples for grade in example.target], dtype=np.float64)
    predicted = max_logits(outputs).astype(np.float64)
    texts = tuple(join_texts(output.input) for output in outputs)
    return Judgement(numbers=Numbers(texts=texts, expected=expected, predicted=predicted, name="predicted logit"))


def judge_similarities(outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the cosine similarity of each pair of texts."""
    vectors = stack_single_window(outputs).astype(np.float64)
    expected = np.array([example.target for example in examples], dtype=np.float64)
    texts = tuple(join_texts(*example.inputs) for example in examples)
    similarities = cosine(vectors[0::2], vectors[1::2])
    return Judgement(numbers=Numbers(texts=texts, expected=expected, predicted=similarities, name="cosine similarity"))
