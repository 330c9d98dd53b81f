"""The choice of a cascade's threshold from made-up outputs."""

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from bert_export.cascade.threshold import choose_threshold
from bert_runtime.cascade.task import CascadeTask, common_logits, confidence
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.tasks import Example, Outputs, TextClassification, TextInput
from bert_runtime.tokenization import TextTokenizer

TASK = CascadeTask(labels=("no", "yes"))
TOKENIZER = TextTokenizer(Tokenizer(WordLevel({"a": 0}, "a")), 8, 0)


def outputs(logits: FloatArray) -> list[Outputs]:
    encoding = TOKENIZER.encode([TextInput("a")])[0]
    return [Outputs(TextInput("a"), encoding, (row, np.zeros(1)), TOKENIZER) for row in logits]


@pytest.mark.parametrize(("max_drop", "share"), [(0, 0.6), (20, 0.76), (100, 1.0)])
def test_the_small_model_answers_as_much_as_the_limit_allows(max_drop: float, share: float) -> None:
    """Make the small model wrong about the 40 of 100 texts that it is least sure of, and the large one never."""
    sure = np.linspace(0.1, 4, 100)
    small = np.stack([np.where(np.arange(100) < 40, sure, 0), np.where(np.arange(100) < 40, 0, sure)], axis=1)
    large = np.tile([0.0, 5.0], (100, 1))
    examples = [Example((TextInput("a"),), 1)] * 100
    found, allowed = choose_threshold(TASK, outputs(small), outputs(large), examples, max_drop)
    assert allowed
    assert found.small_share == pytest.approx(share, abs=0.021)
    assert found.drop_percent + found.drop_error <= max_drop + 1e-9


def test_a_loss_that_later_rows_make_good_ends_the_search() -> None:
    """Make the small model wrong about 20 of 100 texts in the middle, and the large one about the 20 after them."""
    sure, index = np.linspace(4, 0.1, 100), np.arange(100)
    small_is_right, large_is_right = (index < 30) | (index >= 50), (index < 50) | (index >= 70)
    small = np.stack([np.where(small_is_right, 0, sure), np.where(small_is_right, sure, 0)], axis=1)
    large = np.stack([np.where(large_is_right, 0, 5.0), np.where(large_is_right, 5.0, 0)], axis=1)
    examples = [Example((TextInput("a"),), 1)] * 100
    found, allowed = choose_threshold(TASK, outputs(small), outputs(large), examples, max_drop=2)
    assert allowed
    assert found.small_share == pytest.approx(0.3, abs=0.021)


def test_the_best_is_found_where_none_is_allowed() -> None:
    small, large = np.tile([5.0, 0.0], (100, 1)), np.tile([0.0, 5.0], (100, 1))
    small[:, 0] += np.linspace(0, 1, 100)
    found, allowed = choose_threshold(
        TASK, outputs(small), outputs(large), [Example((TextInput("a"),), 1)] * 100, max_drop=1
    )
    assert not allowed
    assert found.small_share == pytest.approx(0.01)


def test_confidence_of_several_labels_is_that_of_the_least_certain_decision() -> None:
    task = CascadeTask(labels=("a", "b"), problem_type="multi_label")
    logits = np.array([[3.0, -0.5], [2.0, -4.0]])
    np.testing.assert_allclose(confidence(task, logits), sigmoid(np.array([0.5, 2.0])))


def test_thresholds_of_the_large_model_hold_for_the_small_one() -> None:
    small = TextClassification(labels=("a", "b"), problem_type="multi_label", thresholds=(0.2, 0.5))
    large = TextClassification(labels=("a", "b"), problem_type="multi_label", threshold=0.7)
    at_threshold = np.log(np.array([0.2, 0.5]) / np.array([0.8, 0.5]))
    np.testing.assert_allclose(sigmoid(common_logits(small, large)(at_threshold)), 0.7)
