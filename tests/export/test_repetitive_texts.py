"""Repetitive inputs: one word of the tokenizer's own vocabulary each, as inputs of every task."""

from pathlib import Path

import numpy as np
import pytest

from bert_export.repetitive_texts import repetitive_batches, single_token_words
from bert_models import open_checkpoint
from bert_runtime.tasks import (
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

TASKS = [
    SentenceEmbedding(dimensions=32),
    TextClassification(labels=("a", "b")),
    TokenClassification(labels=("a", "b")),
    FillMask(mask_token="[MASK]", mask_token_id=4),
    QuestionAnswering(),
    NextSentencePrediction(),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.name))
def test_every_input_repeats_one_word(task: Task, classifier_checkpoint: Path) -> None:
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(32, task.windows)
    batches = repetitive_batches(task, tokenizer)
    sequences = [
        ids[mask == 1] for batch in batches for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    assert len(sequences) > 5
    for sequence in sequences:
        assert len(sequence) == 32  # as long as the tokenizer allows
        assert np.bincount(sequence).max() >= 26  # but for [CLS], [SEP] and a [MASK]


def test_prompts_stand_in_front(classifier_checkpoint: Path) -> None:
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(32)
    (prompt_id,) = tokenizer.token_ids("card")
    for batch in repetitive_batches(SentenceEmbedding(dimensions=32, prompt="card "), tokenizer):
        assert set(batch.input_ids[:, 1]) == {prompt_id}


def test_words_are_single_tokens_of_the_vocabulary(classifier_checkpoint: Path) -> None:
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(32)
    words = single_token_words(tokenizer, 8)
    assert len(set(words)) == len(words) == 8
    assert all(tokenizer.token_ids(word) for word in words)
    assert not any("[" in word or "#" in word for word in words)  # neither special tokens nor parts of words
