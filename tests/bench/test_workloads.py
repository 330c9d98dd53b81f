"""Workloads have the lengths that reports state, and are the same on every run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_bench import Settings
from bert_bench.workloads import CORPUS, MAX_TOKENS, MEAN_TOKENS, Workload, build_workload, mixed_lengths
from bert_models import open_checkpoint
from bert_runtime import InputError
from bert_runtime.records import read_records
from bert_runtime.tasks import NextSentencePrediction, TextClassification, TextInput
from bert_runtime.tokenization import TextTokenizer

TASK = TextClassification(labels=("a", "b"))


@pytest.fixture(scope="module")
def tokenizer(classifier_checkpoint: Path) -> TextTokenizer:
    return open_checkpoint(classifier_checkpoint).text_tokenizer()


@pytest.fixture(scope="module")
def workload(tokenizer: TextTokenizer) -> Workload:
    return build_workload(TASK, tokenizer, {}, Settings(text_tokens=(20, 40, 60)))


def test_mixed_lengths_are_log_normal_around_the_stated_mean() -> None:
    lengths = np.array(mixed_lengths(20_000, seed=1))
    assert abs(lengths.mean() - MEAN_TOKENS) < 0.5
    assert lengths.max() == MAX_TOKENS
    assert lengths.min() >= 4
    assert np.median(lengths) < lengths.mean()  # a long tail to the right


def test_mixed_lengths_depend_on_the_seed_only() -> None:
    assert mixed_lengths(50, seed=3) == mixed_lengths(50, seed=3)
    assert mixed_lengths(50, seed=3) != mixed_lengths(50, seed=4)


def test_mixed_lengths_fit_the_bundle() -> None:
    assert max(mixed_lengths(1000, seed=0, max_tokens=32)) == 32


def test_same_seed_gives_the_same_texts_and_ids(tokenizer: TextTokenizer, workload: Workload) -> None:
    again = build_workload(TASK, tokenizer, {}, Settings(text_tokens=(20, 40, 60)))
    assert [case.texts for case in again.cases] == [case.texts for case in workload.cases]
    for first, second in zip(workload.shapes, again.shapes, strict=True):
        np.testing.assert_array_equal(first.batch, second.batch)


def test_another_seed_gives_other_texts(tokenizer: TextTokenizer, workload: Workload) -> None:
    other = build_workload(TASK, tokenizer, {}, Settings(text_tokens=(20, 40, 60), seed=1))
    assert other.offline[0].texts != workload.offline[0].texts


def test_texts_have_the_requested_and_stated_length(tokenizer: TextTokenizer, workload: Workload) -> None:
    for case, wanted in zip(workload.singles, (20, 40, 60), strict=True):
        (text,) = case.texts
        ((encoding,),) = tokenizer.encode([text])
        assert case.tokens == (len(encoding),)
        assert wanted - 15 < case.tokens[0] <= wanted  # the toy tokenizer spells most words letter by letter


def test_synthetic_texts_consist_of_words_of_the_corpus(workload: Workload) -> None:
    words = {word for record in read_records(CORPUS) for word in record.text().split()}
    assert words.issuperset(word for text, _ in workload.offline[0].texts for word in text.split())


def test_throughput_workload_has_mixed_lengths(workload: Workload) -> None:
    assert len(workload.offline[0].texts) == len(workload.offline[0].tokens) == Settings().num_texts
    assert len(set(workload.offline[0].tokens)) > 10


def test_shapes_and_texts_beyond_the_maximum_are_skipped_and_noted(tokenizer: TextTokenizer) -> None:
    found = build_workload(TASK, tokenizer, {}, Settings())
    assert [case.name for case in found.shapes] == ["1x16", "1x64"]
    assert [case.name for case in found.singles] == ["text14", "text64"]
    assert any("1x128, 1x384, 8x128" in note and "64 tokens" in note for note in found.notes)
    assert any("texts of 128 tokens" in note for note in found.notes)


def test_bundle_shorter_than_all_requested_lengths_is_still_measured(tokenizer: TextTokenizer) -> None:
    found = build_workload(TASK, tokenizer, {}, Settings(shapes=((1, 100),), text_tokens=(100,)))
    assert [case.name for case in found.shapes] == ["1x64"]
    assert [case.name for case in found.singles] == ["text64"]


def test_token_ids_are_in_the_vocabulary_without_padding(tokenizer: TextTokenizer, workload: Workload) -> None:
    batch = workload.shapes[0].batch
    assert batch is not None
    assert batch.input_ids.shape == (1, 16)
    assert batch.input_ids.max() < tokenizer.vocab_size
    assert batch.attention_mask.all()


def test_stages_are_those_of_the_shortest_text(tokenizer: TextTokenizer) -> None:
    found = build_workload(TASK, tokenizer, {}, Settings(text_tokens=(40, 20)))
    tokenization, model = found.stages
    assert found.singles[0].name == "text20"
    assert tokenization.texts == found.singles[0].texts
    assert model.batch is not None
    assert model.batch.input_ids.shape == (1, found.singles[0].tokens[0])


def test_given_texts_replace_the_synthetic_workload(tokenizer: TextTokenizer) -> None:
    texts = ["lost my card", "hello", "what is the weather"]
    assert build_workload(TASK, tokenizer, {"mine": texts}, Settings()).offline[0].texts == tuple(map(TextInput, texts))


def test_many_given_texts_are_sampled_in_order(tokenizer: TextTokenizer) -> None:
    texts = [f"{i:03}" for i in range(200)]
    found = build_workload(TASK, tokenizer, {"mine": texts}, replace(Settings(), num_texts=20))
    assert len(found.offline[0].texts) == 20
    assert [text for text, _ in found.offline[0].texts] == sorted(text for text, _ in found.offline[0].texts)
    assert any("20 of the 200 texts given" in note for note in found.notes)


def test_pair_task_gets_pairs(tokenizer: TextTokenizer) -> None:
    found = build_workload(
        NextSentencePrediction(), tokenizer, {"mine": ["lost my card", "hello"]}, Settings(text_tokens=(20,))
    )
    assert found.offline[0].texts == (TextInput("lost my card", "hello"), TextInput("hello", "lost my card"))
    for case in (*found.singles, found.stages[0], found.offline[0]):
        assert all(text.text_pair is not None for text in case.texts)
        assert case.tokens == tuple(len(encoding) for (encoding,) in tokenizer.encode(case.texts))
    assert found.stages[1].batch is not None
    assert found.stages[1].batch.token_type_ids.any()


def test_empty_throughput_workload_is_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match="at least one text"):
        build_workload(TASK, tokenizer, {"mine": []}, Settings())
