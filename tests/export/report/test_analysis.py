"""Confusion, changed decisions and excerpts."""

import numpy as np
import pytest

from bert_export.report.analysis import confusion, differences, flips, scatter
from bert_export.report.excerpts import Excerpt, excerpt
from bert_export.report.judgements import HITS_AND_MISSES, Decision, Numbers, Table
from bert_runtime.metrics import macro_f1

LABELS = ("a", "b", "c", "never")


def decision(text: str, predicted: str, margin: float | None, expected: str = "a") -> Decision:
    return Decision(text=text, expected=expected, predicted=predicted, correct=predicted == expected, margin=margin)


def test_flips_are_ordered_by_how_sure_the_reference_was() -> None:
    reference = [decision("one", "a", 0.1), decision("two", "b", 0.9), decision("three", "a", 0.5)]
    variant = [decision("one", "b", 0.2), decision("two", "a", 0.3), decision("three", "a", 0.4)]
    found = flips(variant, reference)
    assert [flip.text.before for flip in found] == ["two", "one"]
    assert [(flip.reference.correct, flip.variant.correct) for flip in found] == [(False, True), (True, False)]
    assert (found[0].reference.margin, found[0].variant.margin) == (0.9, 0.3)


def test_confusion_lists_the_most_frequent_pairs_and_the_worst_labels() -> None:
    expected, predicted = [0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 2, 2]
    found = confusion(Table.count(LABELS, LABELS, expected, predicted))
    assert found is not None
    assert found.is_square
    assert [(pair.expected, pair.predicted, pair.count) for pair in found.most_frequent] == [
        ("a", "b", 2),
        ("b", "c", 1),
    ]
    assert {item.label for item in found.labels} == {"a", "b", "c"}
    scores = [item.f1 for item in found.labels]
    assert scores == sorted(scores)
    assert np.mean(scores) == pytest.approx(macro_f1(np.array(predicted), np.array(expected), len(LABELS)))


def test_a_table_of_hits_and_misses_has_scores_but_no_confusions() -> None:
    found = confusion(Table(rows=("x", "y"), columns=HITS_AND_MISSES, counts=np.array([[3, 1, 0], [0, 0, 2]])))
    assert found is not None
    assert not found.is_square
    assert not found.most_frequent
    assert [(item.label, item.precision, item.recall) for item in found.labels] == [("y", 0, 0), ("x", 1, 0.75)]


def test_differences_start_with_the_largest() -> None:
    expected = np.array([1.0, 2.0])
    reference = Numbers(texts=("x", "y"), expected=expected, predicted=np.array([1.0, 2.0]), name="number")
    variant = Numbers(texts=("x", "y"), expected=expected, predicted=np.array([1.1, 1.5]), name="number")
    assert [(item.text.before, item.variant) for item in differences(variant, reference)] == [("y", 1.5), ("x", 1.1)]


def test_a_scatter_of_many_points_is_an_even_sample() -> None:
    values = np.arange(5000.0)
    found = scatter(Numbers(texts=("",) * 5000, expected=values, predicted=values, name="number"))
    assert found is not None
    assert [point[0] for point in found.points[:3]] == [0, 3, 6]
    assert len(found.points) <= 2000


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("short", None, Excerpt("short", "", "")),
        ("a word here", (2, 6), Excerpt("a ", "word", " here")),
        ("x" * 1000, None, Excerpt("x" * 320 + "…", "", "")),
        ("lone \ud800", None, Excerpt("lone ?", "", "")),
    ],
)
def test_excerpts(text: str, span: tuple[int, int] | None, expected: Excerpt) -> None:
    assert excerpt(text, span) == expected


@pytest.mark.parametrize("start", [0, 7, 500, 990, 996])
def test_excerpts_of_long_texts_hold_the_focus(start: int) -> None:
    text = "".join(str(i % 10) for i in range(1000))
    found = excerpt(text, (start, start + 4))
    assert found.focus == text[start : start + 4]
    assert len(found.before + found.focus + found.after) <= 322
    assert found.before.startswith("…") == (start > 158)
