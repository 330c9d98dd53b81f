"""Judge which text of a file is found for each query."""

from collections.abc import Iterable, Sequence

import numpy as np

from bert_export.report.judgements.base import Decision, Judgement, Table
from bert_runtime.numerics import FloatArray
from bert_runtime.similarity import similarity_matrix
from bert_runtime.tasks import Example, Outputs, SentenceEmbedding, SparseEmbedding
from bert_runtime.tasks.ranking_rows import ranking_qrels

__all__ = ["judge_nearest", "judge_retrieved"]

_RANKS = (1, 10, 100)
"""Last rank of each outcome but the last one."""
_OUTCOMES = ("1st", "2nd to 10th", "11th to 100th", "later")


def judge_retrieved(task: SparseEmbedding, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the best of all second texts for each row's first text, by dot product."""
    texts, index = task.index(outputs)
    return _judge_ranking(texts, (index.scores(task.limited(query.arrays[0])) for query in outputs[0::2]), examples)


def judge_nearest(task: SentenceEmbedding, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the nearest of all second texts to each row's first text, by the task's similarity."""
    vectors = task.float_vectors(outputs)
    texts = {example.target: 2 * row + 1 for row, example in enumerate(examples)}
    documents = vectors[[*texts.values()]]
    scores = (similarity_matrix(query[None], documents, task.similarity)[0] for query in vectors[0::2])
    return _judge_ranking(list(texts), scores, examples)


def _judge_ranking(texts: Sequence[str], scores: Iterable[FloatArray], examples: Sequence[Example]) -> Judgement:
    """Judge rankings of N distinct texts by the scores of each row's query with them, float [N]."""
    numbers, qrels = {text: number for number, text in enumerate(texts)}, ranking_qrels(examples)
    decisions: list[Decision] = []
    outcomes: list[int] = []
    for found, example in zip(scores, examples, strict=True):
        query, best = example.inputs[0].text, texts[int(found.argmax())]
        right = qrels[query]
        better = np.flatnonzero(found > found[numbers[example.target]])
        rank = 1 + sum(texts[number] not in right for number in better.tolist())
        decisions.append(Decision(text=query, expected=example.target, predicted=best, correct=best in right))
        outcomes.append(int(np.searchsorted(_RANKS, rank)))
    table = Table.count(("rank of the right text",), _OUTCOMES, [0] * len(outcomes), outcomes)
    return Judgement(decisions=tuple(decisions), table=table)
