"""The gate of a cascade: each row is judged by a calibration and a threshold that were chosen without it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from bert_export.cascade.cross_validation import NUM_FOLDS, JudgedRows, split_folds
from bert_export.cascade.threshold import Threshold, choose_threshold
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.score_calibration import METHODS, LogitCalibration
from bert_runtime.tasks import Example, Outputs, TextClassification, TextInput
from bert_runtime.tokenization import TextTokenizer

TASK = TextClassification(labels=("no", "yes"))
TOKENIZER = TextTokenizer(Tokenizer(WordLevel({"a": 0}, "a")), 8, 0)


def records(texts: list[str]) -> list[Record]:
    return [Record({"text": text, "label": "no"}, Path("rows.jsonl"), row) for row, text in enumerate(texts, start=1)]


def rows(small: NDArray[np.float64], large: NDArray[np.float64], expected: NDArray[np.int64]) -> JudgedRows:
    encoding = TOKENIZER.encode([TextInput("a")])[0]
    outputs = [[Outputs(TextInput("a"), encoding, (row,), TOKENIZER) for row in logits] for logits in (small, large)]
    return JudgedRows(
        tasks=(TASK, TASK), methods=("temperature", "temperature"), outputs=(outputs[0], outputs[1]),
        examples=[Example((TextInput("a"),), int(label)) for label in expected],
        folds=np.arange(len(expected)) % NUM_FOLDS,
    )  # fmt: skip


def noisy_rows(num_rows: int, seed: int = 0) -> JudgedRows:
    """Return rows about which the large model is mostly right, and the small one where it is sure."""
    draw = np.random.default_rng(seed)
    expected, sure = draw.integers(0, 2, num_rows), draw.uniform(0, 4, num_rows)
    is_right = draw.uniform(size=num_rows) < 1 / (1 + np.exp(-sure))
    small = np.where(is_right[:, None] == (np.arange(2) == expected[:, None]), sure[:, None], 0.0)
    large = np.where((np.arange(2) == expected[:, None]), 3.0, 0.0) + draw.normal(0, 1, (num_rows, 2))
    return rows(small, large, expected)


def test_equal_texts_are_in_one_fold_and_folds_are_equally_large() -> None:
    found = split_folds(records([f"text {index % 200}" for index in range(400)]), seed=0)
    assert (found[:200] == found[200:]).all()
    assert set(np.bincount(found)) == {40}
    assert (found != split_folds(records([f"text {index % 200}" for index in range(400)]), seed=1)).any()
    with pytest.raises(DataError, match="expected at least 60 labelled rows of different texts, found 2 in 100 rows"):
        split_folds(records(["a", "b"] * 50), seed=0)


def test_all_rows_are_judged_by_what_was_chosen_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = noisy_rows(400)
    seen: list[int] = []

    def fit(logits: Any, expected: Any) -> LogitCalibration:
        seen.append(len(expected))
        return LogitCalibration((1.0,))

    monkeypatch.setitem(METHODS, "temperature", fit)
    found = judged.judge(max_drop=2, seed=0)
    assert seen == [360] * 2 * NUM_FOLDS
    assert (found["rows"], found["folds"]) == (400, NUM_FOLDS)
    assert 0.2 < found["small_share"] < 0.95
    assert found["small"] < found["found"] <= found["reference"] + 0.02
    assert found["drop_interval"]["low"] <= found["drop_percent"] <= found["drop_interval"]["high"]


def test_a_row_that_only_its_own_fold_would_let_the_small_model_answer_is_judged_as_wrong() -> None:
    """Let the small model be right in nine folds and wrong, but as sure, in the tenth: the choice cannot know it."""
    expected = np.ones(200, np.int64)
    folds = np.arange(200) % NUM_FOLDS
    small = np.stack([np.where(folds == 0, 5.0, 0.0), np.where(folds == 0, 0.0, 5.0)], axis=1)
    judged = rows(small + np.random.default_rng(0).uniform(0, 1e-3, (200, 2)), np.tile([0.0, 5.0], (200, 1)), expected)
    assert judged.judge(max_drop=1, seed=0)["drop_percent"] > 5


def test_folds_without_a_threshold_judge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = noisy_rows(400)
    whole = judged.judge(max_drop=2, seed=0)
    assert (whole["rows"], whole["refused_folds"]) == (400, 0)
    choose, calls = choose_threshold, iter(range(NUM_FOLDS))

    def refuse_three(*given: Any) -> tuple[Threshold, bool]:
        return choose(*given)[0], next(calls) >= 3

    monkeypatch.setattr("bert_export.cascade.cross_validation.choose_threshold", refuse_three)
    found = judged.judge(max_drop=2, seed=0)
    assert (found["rows"], found["refused_folds"]) == (280, 3)
    assert found["small_share"] == pytest.approx(whole["small_share"], abs=0.05)


def test_without_any_threshold_the_large_model_answers() -> None:
    draw = np.random.default_rng(0)
    wrong, right = draw.uniform(2, 4, 200), np.zeros(200)
    judged = rows(np.stack([wrong, right], axis=1), np.tile([0.0, 5.0], (200, 1)), np.ones(200, np.int64))
    found = judged.judge(max_drop=0, seed=0)
    assert (found["small_share"], found["drop_percent"], found["refused_folds"]) == (0.0, 0.0, NUM_FOLDS)
    assert not judged.choose(max_drop=0)[1]
