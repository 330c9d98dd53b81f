"""Answers in text, compared as the official script of SQuAD 2.0 (evaluate-v2.0.py) compares them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert_runtime.numerics import FloatArray

__all__ = ["answer_f1", "best_threshold", "exact_match", "normalize_answer"]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and then without English articles, single spaces between words."""
    words = _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(words.split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the normalized prediction equals one of the normalized gold answers, else 0.

    No answers mean that the question is unanswerable: "" is then the right prediction.
    """
    return float(normalize_answer(prediction) in _normalized(answers))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of the words that prediction and gold answer share, the best over the gold answers.

    No answers mean that the question is unanswerable: "" is then the right prediction.
    """
    found = normalize_answer(prediction).split()
    return max(_word_f1(found, answer.split()) for answer in _normalized(answers))


def best_threshold(
    no_answer_scores: FloatArray, f1_if_answered: FloatArray, answerable: NDArray[np.bool_]
) -> tuple[float, float]:
    """The threshold on the no-answer score that gives the best mean F1, and this F1.

    A question is left unanswered where its score exceeds the threshold, `no_answer_scores > threshold` [N].
    `f1_if_answered` [N] is the F1 of the answer that it has otherwise, which may be "" too; without one its F1 is 1 if
    it is not `answerable` [N], else 0. As in find_best_thresh of the official script, questions are answered one after
    the other in the order of their scores, and the first best step wins, which has the fewest answers. Unlike there,
    questions of equal score are answered together, as no threshold parts them; and the threshold is not the score of
    the last question answered but half-way to the next one, the middle of the interval in which these questions decide
    alike. It is the largest score where all are answered; where none is, it lies below the smallest by 1 or more.
    It is a number of the scores' dtype, so that no cast moves it past one of them.

    Raises `ValueError` for N = 0, for arrays of unequal shapes and for scores that are not finite.
    """
    if not no_answer_scores.size or not no_answer_scores.shape == f1_if_answered.shape == answerable.shape:
        shapes = f"{no_answer_scores.shape}, {f1_if_answered.shape} and {answerable.shape}"
        raise ValueError(f"expected three arrays [N] of one length that is not zero, found the shapes {shapes}")
    if not np.isfinite(no_answer_scores).all():
        raise ValueError("expected finite no-answer scores, found infinite ones or NaN")
    scores, groups = np.unique(no_answer_scores, return_inverse=True)
    gains = np.bincount(groups, weights=f1_if_answered.astype(np.float64) - ~answerable)
    totals = np.cumsum([float((~answerable).sum()), *gains])
    num_answered = int(totals.argmax())  # of the distinct scores, the smallest first
    return _threshold(scores, num_answered), float(totals[num_answered] / answerable.size)


def _threshold(scores: FloatArray, num_answered: int) -> float:
    """A number that the first `num_answered` of ascending distinct `scores` do not exceed and the others do."""
    if num_answered == 0:
        return float(scores[0] - max(1, abs(scores[0])))  # a step that no rounding undoes
    last = scores[num_answered - 1]
    if num_answered == len(scores):
        return float(last)
    following = scores[num_answered]
    middle = last / 2 + following / 2  # their sum may overflow
    return float(middle if last < middle < following else last)


def _normalized(answers: Sequence[str]) -> list[str]:
    """The normalized gold answers; one that nothing is left of is no answer, and without any the answer is ""."""
    return [normal for answer in answers if (normal := normalize_answer(answer))] or [""]


def _word_f1(found: list[str], expected: list[str]) -> float:
    """F1 of two multisets of words; where one is empty, 1 if both are, else 0."""
    if not found or not expected:
        return float(found == expected)
    shared = (Counter(found) & Counter(expected)).total()
    return 2 * shared / (len(found) + len(expected))
