"""SQuAD metrics: exact match, F1 and the no-answer threshold, as in the official script evaluate-v2.0.py."""

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
    """Lower-case a text, remove ASCII punctuation, then English articles, and collapse white space."""
    words = _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(words.split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the normalized prediction equals one of the normalized gold answers, else 0.

    Without gold answers the question is unanswerable, and the right prediction is "".
    """
    return float(normalize_answer(prediction) in _normalized(answers))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the word F1 of a prediction with the gold answer that it matches best, in [0, 1].

    Without gold answers the question is unanswerable, and the right prediction is "".
    """
    found = normalize_answer(prediction).split()
    return max(_word_f1(found, answer.split()) for answer in _normalized(answers))


def best_threshold(
    no_answer_scores: FloatArray, f1_if_answered: FloatArray, answerable: NDArray[np.bool_]
) -> tuple[float, float]:
    """Find the threshold on the no-answer score that maximizes the mean F1.

    As in `find_best_thresh` of the official script, questions are answered in the order of their scores, and the first
    best step wins, which answers the fewest questions. Two things differ. Questions of equal score are answered
    together, because no threshold separates them. The threshold is midway between the score of the last question that
    is answered and the next one, where the official script returns the former.

    Args:
        no_answer_scores: score of "no answer" minus that of the best span, for each question [N].
        f1_if_answered: F1 of the best span for each question [N]; it may be "", too.
        answerable: whether each question has an answer [N]. An unanswered question has F1 0 if so, else 1.

    Returns:
        The threshold and the mean F1. A question is left unanswered where `no_answer_scores > threshold`. If all
        questions are answered, the threshold is the largest score; if none is, it is below the smallest by at least 1.
        It is a value of the scores' dtype, so that a cast cannot move it past a score.

    Raises:
        ValueError: N is 0, the shapes differ, or a score is not finite.
    """
    if not no_answer_scores.size or not no_answer_scores.shape == f1_if_answered.shape == answerable.shape:
        shapes = f"{no_answer_scores.shape}, {f1_if_answered.shape} and {answerable.shape}"
        raise ValueError(f"expected three arrays [N] of one length that is not zero, found the shapes {shapes}")
    if not np.isfinite(no_answer_scores).all():
        raise ValueError("expected finite no-answer scores, found infinite ones or NaN")
    scores, groups = np.unique(no_answer_scores, return_inverse=True)
    gains = np.bincount(groups, weights=f1_if_answered.astype(np.float64) - ~answerable)
    totals = np.cumsum([float((~answerable).sum()), *gains])
    num_answered = int(totals.argmax())  # in distinct scores, smallest first
    return _threshold(scores, num_answered), float(totals[num_answered] / answerable.size)


def _threshold(scores: FloatArray, num_answered: int) -> float:
    """Return a value that the first `num_answered` of ascending distinct `scores` do not exceed and the others do."""
    if num_answered == 0:
        return float(scores[0] - max(1, abs(scores[0])))  # a step that rounding cannot undo
    last = scores[num_answered - 1]
    if num_answered == len(scores):
        return float(last)
    following = scores[num_answered]
    middle = last / 2 + following / 2  # their sum may overflow
    return float(middle if last < middle < following else last)


def _normalized(answers: Sequence[str]) -> list[str]:
    """Normalize gold answers and drop empty ones; if none is left, the only answer is ""."""
    return [normal for answer in answers if (normal := normalize_answer(answer))] or [""]


def _word_f1(found: list[str], expected: list[str]) -> float:
    """Return the F1 of two multisets of words; if one is empty, 1 if both are, else 0."""
    if not found or not expected:
        return float(found == expected)
    shared = (Counter(found) & Counter(expected)).total()
    return 2 * shared / (len(found) + len(expected))
