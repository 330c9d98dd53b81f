"""token-classification: metrics over words, and labelled examples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bert_runtime import Model
from bert_runtime.errors import DataError
from bert_runtime.metrics import entity_f1
from bert_runtime.tasks import TokenClassification

from ..task_models import (
    LABELS,
    random_model,
    with_runner,
    wordpiece,
)
from .tagging_data import TAGS, Scripted, record

WORDS = ("hello", "zebra", "a-b", "\x07", "é", "x" * 120, "東京", "New", ",")


def labels_by_hand(model: Model, words: Sequence[str]) -> list[str]:
    """Return the label of each word's first token, found by character offsets; `O` for a word without tokens."""
    text, start, labels = " ".join(words), 0, []
    tokens = model(text).tokens
    for word in words:
        places = [i for i, (first, after) in enumerate(tokens.offsets) if after > start and first < start + len(word)]
        labels.append(LABELS[tokens.values[places[0]].argmax()] if places else "O")
        start += len(word) + 1
    return labels


@pytest.mark.parametrize("max_tokens", [16, 64])
@pytest.mark.parametrize("seed", range(3))
def test_score_is_computed_over_words_of_the_file(seed: int, max_tokens: int, toy_vocab: Path) -> None:
    model, generator = random_model(TAGS, toy_vocab, max_tokens, 5), np.random.default_rng(seed)
    sentences = [generator.choice(WORDS, generator.integers(1, 30)).tolist() for _ in range(8)]
    predicted = [labels_by_hand(model, words) for words in sentences]
    gold = [[tag if generator.random() < 0.7 else str(generator.choice(LABELS)) for tag in tags] for tags in predicted]
    examples = [model.task.example(record(*pair)) for pair in zip(sentences, gold, strict=True)]
    found = model.task.score(model.outputs([example.inputs[0] for example in examples]), examples)
    right = [one == other for pair in zip(gold, predicted, strict=True) for one, other in zip(*pair, strict=True)]
    assert found == {**entity_f1(predicted, gold), "accuracy": pytest.approx(np.mean(right))}
    assert 0.3 < found["f1"] < 1


@pytest.mark.parametrize("labels", [("O", "S-X"), ("O", "U-X"), ("O", "I-X")])
def test_entities_of_every_scheme_are_counted(labels: tuple[str, ...], toy_vocab: Path) -> None:
    task = TokenClassification(labels=labels)
    model = with_runner(Scripted(5 * np.eye(2)[[0, 1]]), task, wordpiece(toy_vocab), 16)
    example = task.example(record(["a", "b"], ["O", labels[1]]))
    assert task.metric == "f1"
    assert task.score(model.outputs(example.inputs), [example])["f1"] == 1


def test_word_without_tokens_is_wrong_if_no_label_is_outside(toy_vocab: Path) -> None:
    for labels in (("NOUN", "VERB"), ("B-X", "I-X")):
        task = TokenClassification(labels=labels)
        model = with_runner(Scripted(5 * np.eye(2)[[0]]), task, wordpiece(toy_vocab), 16)
        for tag in labels:
            example = task.example(record(["a", "\x07"], [labels[0], tag]))
            found = task.score(model.outputs(example.inputs), [example])
            assert found["accuracy"] == 0.5
            assert found.get("f1", 0) < 1


def test_unknown_tag_is_reported() -> None:
    with pytest.raises(DataError, match=r"^data\.jsonl:3: tags 'B-X' are not among the model's 5 labels"):
        TAGS.example(record(["a", "b"], ["O", "B-X"]))
