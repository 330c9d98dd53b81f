"""Judge which text of a file is found for each query."""

from collections.abc import Sequence

import numpy as np

from bert_export.report.judgements.base import Decision, Judgement, Table
from bert_runtime.tasks import Example, Outputs, SparseEmbedding

__all__ = ["judge_retrieved"]

_RANKS = (1, 10, 100)
"""Last rank of each outcome but the last one."""
_OUTCOMES = ("1st", "2nd to 10th", "11th to 100th", "later")


def judge_retrieved(task: SparseEmbedding, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the best of all second texts for each row's first text, by dot product."""
    texts, index = task.index(outputs)
    numbers = {text: number for number, text in enumerate(texts)}
    targets: dict[str, set[str]] = {}  # a query's rows may have different texts, all of which are right
    for query, example in zip(outputs[0::2], examples, strict=True):
        targets.setdefault(query.input.text, set()).add(example.target)
    decisions: list[Decision] = []
    outcomes: list[int] = []
    for query, example in zip(outputs[0::2], examples, strict=True):
        scores = index.scores(query.arrays[0])
        best = texts[int(scores.argmax())]
        right = targets[query.input.text]
        better = np.flatnonzero(scores > scores[numbers[example.target]])
        rank = 1 + sum(texts[number] not in right for number in better)
        decisions.append(
            Decision(text=query.input.text, expected=example.target, predicted=best, correct=best in right)
        )
        outcomes.append(int(np.searchsorted(_RANKS, rank)))
    table = Table.count(("rank of the right text",), _OUTCOMES, [0] * len(outcomes), outcomes)
    return Judgement(decisions=tuple(decisions), table=table)
