"""Copies of training rows with similar words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_export.compression.augmentation import SimilarWords, augmented_rows, num_copies, shares_of_copies
from bert_runtime.records import Record

# Words by direction: red and blue are alike, as are one and two; cart shares a piece with car.
PIECES = {"red": [0], "blue": [1], "one": [2], "two": [3], "car": [4], "cart": [4, 5], "unknown": [], "long": [0] * 4}
ANGLES = np.array([0.0, 5.0, 90.0, 95.0, 180.0, 180.0])
EMBEDDINGS = np.stack([np.cos(np.radians(ANGLES)), np.sin(np.radians(ANGLES))], axis=1).astype(np.float32)


def record(**fields: Any) -> Record:
    return Record(fields, Path("rows.csv"), 1)


def similar(*records: Record) -> SimilarWords:
    return SimilarWords(records, lambda word: PIECES[word], EMBEDDINGS)


def test_similar_words_are_the_nearest_that_share_no_piece() -> None:
    words = similar(record(text="red blue, one two", text_pair="car cart"), record(tokens=["unknown", "long"]))
    assert words.of("red") == ["blue", "one", "two", "car", "cart"]
    assert words.of("two")[0] == "one"
    assert "cart" not in words.of("car")
    assert words.of("unknown") == words.of("long") == words.of("green") == []
    assert similar(record(tokens=["unknown"])).of("unknown") == []


def test_copies_have_other_words_and_no_labels() -> None:
    rows = [record(text="red, one (car)!", label="x"), record(tokens=["red", "unknown", "two"], tags=["A", "B", "C"])]
    copies = augmented_rows(rows, similar(*rows), 9, np.ones(len(rows)), seed=0)
    assert 9 < len(copies) <= 18
    assert {frozenset(copy.fields) for copy in copies} == {frozenset({"text"}), frozenset({"tokens"})}
    words = [copy.fields["tokens"] for copy in copies if "tokens" in copy.fields]
    assert {len(row) for row in words} == {3}
    assert all(row[1] == "unknown" for row in words)
    texts = {copy.fields["text"] for copy in copies if "text" in copy.fields}
    assert len(texts) > 1
    assert all(text.count(",") == text.count("(") == text.count(")!") == 1 for text in texts)
    assert (
        copies
        == augmented_rows(rows, similar(*rows), 9, np.ones(len(rows)), seed=0)
        != augmented_rows(rows, similar(*rows), 9, np.ones(len(rows)), seed=1)
    )


def test_copies_of_scored_pairs_keep_that_they_are_scored() -> None:
    """Pairs without a score are queries and answers, in front of which an embedding model's prompts are put."""
    rows = [record(text="red one", text_pair="two", score=3)]
    (copy, *_) = augmented_rows(rows, similar(*rows), 9, np.ones(1), seed=0)
    assert copy.fields["score"] == 3


def test_copies_that_equal_their_row_are_left_out() -> None:
    rows = [record(text="red one", label="x"), record(text="unknown", tokens=[101, 5]), record(tokens=[{"t": "red"}])]
    copies = augmented_rows(rows, similar(*rows), 9, np.ones(len(rows)), seed=0)
    assert 0 < len(copies) < 9
    assert all(copy.fields["text"] != "red one" for copy in copies)


@pytest.mark.parametrize(
    ("rows", "budget_s", "copies"), [(100, 60.0, 9), (12_543, 3600.0, 9), (50_000, 3600.0, 4), (50_000, 600.0, 0)]
)
def test_there_are_as_many_copies_as_there_may_be_time_for(rows: int, budget_s: float, copies: int) -> None:
    assert num_copies(rows, budget_s) == copies


def test_copies_are_as_long_as_the_rows_of_dev() -> None:
    phrases, sentences = [record(text="red")] * 90, [record(text="red one car two blue one car two")] * 10
    shares = shares_of_copies([*phrases, *sentences], sentences * 5)
    assert shares.tolist() == pytest.approx([0.0] * 90 + [10.0] * 10)
    assert shares_of_copies(phrases, phrases).tolist() == shares_of_copies(phrases, sentences).tolist() == [1.0] * 90
    shares = shares_of_copies([*phrases, *sentences], [*phrases[:20], *sentences, *sentences])
    assert shares.mean() == pytest.approx(1.0)
    assert shares[-1] / shares[0] == pytest.approx(9.0)
    rows = [*phrases[:2], *sentences]
    copies = augmented_rows(rows, similar(*rows), 9, np.array([0.0, 6.0, *[0.6] * 10]), seed=0)
    lengths = [len(copy.fields["text"].split()) for copy in copies]
    assert lengths.count(8) == pytest.approx(0.6 * 9 * 10, abs=5)
    assert 0 < lengths.count(1) <= 54  # words that were not replaced make no copy
