"""Judge the words that fill masks."""

from collections.abc import Sequence

import numpy as np

from bert_export.report.judgements.base import Decision, Judgement, Table, lead
from bert_runtime.numerics import softmax
from bert_runtime.tasks import Example, FillMask, Outputs

__all__ = ["judge_masks"]

_RANKS = (1, 5, 10, 100)
"""Last rank of each outcome but the last one."""
_OUTCOMES = ("1st", "2nd to 5th", "6th to 10th", "11th to 100th", "later")


def judge_masks(task: FillMask, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the most probable token of the vocabulary for each mask; masks that truncation removed are left out."""
    decisions: list[Decision] = []
    outcomes: list[int] = []
    for output, example in zip(outputs, examples, strict=True):
        text, start = output.input.text, 0
        # Not strict: truncation may have removed the last masks.
        for logits, word in zip(output.arrays[0], example.target, strict=False):
            start = text.index(task.mask_token, start)
            span = (start, start := start + len(task.mask_token))
            expected = task.single_token_id(word, output.vocabulary)
            probabilities = softmax(logits.astype(np.float64))
            best = int(probabilities.argmax())
            rank = 1 + int((logits > logits[expected]).sum())
            decisions.append(
                Decision(
                    text=text,
                    span=span,
                    expected=word,
                    predicted=output.vocabulary.decode([best]).strip(),
                    correct=rank == 1,
                    probability=float(probabilities[best]),
                    margin=lead(probabilities, best),
                )
            )
            outcomes.append(int(np.searchsorted(_RANKS, rank)))
    return Judgement(
        decisions=tuple(decisions),
        table=Table.count(("rank of the right word",), _OUTCOMES, [0] * len(outcomes), outcomes),
        probabilities=np.array([decision.probability for decision in decisions]),
        outcomes=np.array([decision.correct for decision in decisions], dtype=bool),
    )
