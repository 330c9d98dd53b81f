"""SQuAD metrics, by hand and compared with torchmetrics' SQuAD 1.1 and an exhaustive search for the threshold."""

import numpy as np
import pytest
from torchmetrics.functional.text import squad

from bert_runtime.metrics import answer_f1, best_threshold, exact_match, normalize_answer

WORDS = ["the", "a", "An", "red", "Red,", "fox", "fox's", "fox-trot", "1,000", "«Été»", "—", "...", "theatre"]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("The  Quick,\tbrown\n fox! ", "quick brown fox"),
        ("an apple a day", "apple day"),
        ("Theatre and another", "theatre and another"),
        ("the-end", "theend"),
        ("U.S.A.", "usa"),
        ("a.", ""),
        ("“The” end", "“ ” end"),
        ("Ünï\u00a0the\u2003Cödé", "ünï cödé"),
        ("1_000 $5.50", "1000 550"),
    ],
)
def test_normalize_answer_by_hand(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal
    assert normalize_answer(normal) == normal


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The fox", ["fox!"], 1, 1),
        ("red fox", ["fox", "the red fox"], 1, 1),
        ("red fox", ["fox"], 0, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("fox fox fox", ["fox red fox owl"], 0, 2 * 2 / (3 + 4)),
        ("fox red", ["red fox"], 0, 1),
        ("owl", ["fox", "cat"], 0, 0),
        ("", ["fox"], 0, 0),
        ("", [], 1, 1),
        ("the", [], 1, 1),
        ("fox", [], 0, 0),
        ("", ["fox", "the"], 0, 0),
        ("...", ["the", "-"], 1, 1),
        ("fox", ["the", "fox"], 1, 1),
        ("fox", ["the"], 0, 0),
    ],
)
def test_exact_match_and_f1_by_hand(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert exact_match(prediction, answers) == exact
    assert answer_f1(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize("seed", range(3))
def test_squad_metrics_match_torchmetrics(seed: int) -> None:
    """torchmetrics has the rules of SQuAD 1.1, which are the same if no gold answer is empty after normalization."""
    generator = np.random.default_rng(seed)

    def text(min_words: int) -> str:
        return " ".join(generator.choice(WORDS, size=generator.integers(min_words, 5)))

    for _ in range(60):
        prediction, answers = text(0), [f"{text(0)} end {text(1)}" for _ in range(generator.integers(1, 4))]
        prediction = prediction if generator.random() < 0.5 else f"{prediction} END"
        if generator.random() < 0.2:
            prediction = answers[-1].upper()
        target = {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "0"}
        found = squad({"prediction_text": prediction, "id": "0"}, target)
        assert 100 * exact_match(prediction, answers) == float(found["exact_match"])
        assert 100 * answer_f1(prediction, answers) == pytest.approx(float(found["f1"]), abs=1e-4)


def mean_f1(threshold: float, scores: np.ndarray, f1: np.ndarray, answerable: np.ndarray) -> float:
    rows = zip(scores, f1, answerable, strict=True)
    return sum(own if score <= threshold else float(not has) for score, own, has in rows) / len(scores)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("distinct", [3, 1000], ids=["many ties", "few ties"])
@pytest.mark.parametrize("seed", range(20))
def test_best_threshold_equals_exhaustive_search(seed: int, distinct: int, dtype: type[np.floating]) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 30))
    scores = ((generator.integers(0, distinct, count) - distinct / 2) / 7).astype(dtype)
    answerable = generator.random(count) < generator.random()
    f1 = np.where(answerable, generator.choice([0, 0.25, 0.5, 1], count), generator.random(count) < 0.2).astype(dtype)
    threshold, best = best_threshold(scores, f1, answerable)
    tried = {candidate: mean_f1(candidate, scores, f1, answerable) for candidate in (-np.inf, *sorted(scores))}
    assert best == pytest.approx(max(tried.values()))
    assert mean_f1(threshold, scores, f1, answerable) == pytest.approx(best)
    fewest = next(candidate for candidate, mean in tried.items() if mean == pytest.approx(best))
    assert (scores > threshold).tolist() == (scores > fewest).tolist()


def test_best_threshold_by_hand() -> None:
    """Answering the two questions of the lowest scores gives 1 + 0.5 + 1 + 1 of 4; the next scores are 2 and 5."""
    scores, f1 = np.array([5.0, 1.0, 9.0, 2.0]), np.array([0.0, 1.0, 0.0, 0.5])
    assert best_threshold(scores, f1, np.array([False, True, False, True])) == (3.5, 3.5 / 4)


def test_threshold_does_not_separate_equal_scores() -> None:
    """Answering at the score 1 gains 0.75 and loses 1, so it is best to answer nothing."""
    scores, f1 = np.array([1.0, 1.0, 2.0]), np.array([0.75, 0.0, 0.0])
    threshold, best = best_threshold(scores, f1, np.array([True, False, False]))
    assert (threshold, best) == (0.0, pytest.approx(2 / 3))
    assert best_threshold(np.array([1.0, 1.1, 2.0]), f1, np.array([True, False, False])) == (1.05, 2.75 / 3)


def test_threshold_is_largest_score_if_every_answer_helps() -> None:
    scores = np.array([-3.0, 4.0, 0.0])
    assert best_threshold(scores, np.array([1.0, 0.5, 0.0]), np.array([True, True, True])) == (4.0, 0.5)


def test_threshold_with_empty_predictions_answers_fewest() -> None:
    """F1 is 1 either way; the threshold with the fewest answers is chosen."""
    scores = np.array([0.0, 1.0, 2.0])
    assert best_threshold(scores, np.array([1.0, 1.0, 1.0]), np.array([True, False, False])) == (0.5, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("smallest", [0.0, -0.5, 0.1, 1e-30, 1e9, -1e9])
def test_threshold_is_below_every_score_if_no_answer_helps(smallest: float, dtype: type[np.floating]) -> None:
    scores = np.array([smallest, smallest + 1], dtype=dtype)
    threshold, best = best_threshold(scores, np.zeros(2, dtype), np.array([False, False]))
    assert (threshold, best) == (pytest.approx(float(scores[0]) - max(1, abs(smallest))), 1)
    assert (scores > threshold).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", [1.0, -1.0, 0.0, 0.1, 3e38, -3e38])
def test_threshold_separates_adjacent_floats(score: float, dtype: type[np.floating]) -> None:
    lower = np.array(score, dtype)
    scores = np.array([lower, np.nextafter(lower, np.array(np.inf, dtype))])
    threshold, best = best_threshold(scores, np.array([1.0, 0.0], dtype), np.array([True, False]))
    assert best == 1
    assert (scores > threshold).tolist() == [False, True]


def test_threshold_between_large_scores_does_not_overflow() -> None:
    scores = np.array([2e38, 3e38], dtype=np.float32)
    threshold, _ = best_threshold(scores, np.array([1.0, 0.0]), np.array([True, False]))
    assert threshold == pytest.approx(2.5e38)


def test_best_threshold_needs_finite_scores_of_one_length() -> None:
    with pytest.raises(ValueError, match="not zero"):
        best_threshold(np.empty(0), np.empty(0), np.empty(0, dtype=bool))
    with pytest.raises(ValueError, match=r"\(2,\), \(1,\) and \(2,\)"):
        best_threshold(np.zeros(2), np.zeros(1), np.zeros(2, dtype=bool))
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="finite"):
            best_threshold(np.array([0.0, bad]), np.zeros(2), np.zeros(2, dtype=bool))
