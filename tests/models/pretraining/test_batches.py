"""Padded batches of every objective: their contents, and how they depend on ranks, epochs and workers."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_models import TrainingError
from bert_models.corpus import TextFiles
from bert_models.pretraining import (
    OBJECTIVES,
    BatchSettings,
    MaskingSettings,
    PretrainingBatch,
    PretrainingBatches,
    PretrainingVocabulary,
    TokenCache,
    batch_loader,
    tokenize_corpus,
)
from bert_models.tokenizer_files import read_tokenizer

from ..toy_corpus import random_documents, toy_cache, toy_tokenizer
from ..toy_tokenizers import train_bpe

PAD, CLS, SEP, MASK = 0, 2, 3, 4


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path) -> TokenCache:
    return toy_cache(tmp_path_factory.mktemp("random"), toy_vocab, random_documents(60, 20))


@pytest.fixture(scope="module")
def vocabulary(toy_vocab: Path) -> PretrainingVocabulary:
    return PretrainingVocabulary.from_tokenizer(toy_tokenizer(toy_vocab))


def batches(cache: TokenCache, vocabulary: PretrainingVocabulary, **options: Any) -> PretrainingBatches:
    ranks = {name: options.pop(name) for name in ("rank", "world_size") if name in options}
    settings = BatchSettings(**{"max_tokens": 32, "batch_size": 8, **options})
    return PretrainingBatches(cache, np.arange(cache.num_documents), vocabulary, settings, **ranks)


def all_of(source: PretrainingBatches) -> list[PretrainingBatch]:
    return [source[number] for number in range(len(source))]


def original(batch: PretrainingBatch) -> torch.Tensor:
    """The token ids before masking."""
    return torch.where(batch.labels == -100, batch.input_ids, batch.labels)


def same(first: list[PretrainingBatch], second: list[PretrainingBatch]) -> bool:
    return len(first) == len(second) and all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b))
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batch_is_framed_padded_and_masked(
    cache: TokenCache, vocabulary: PretrainingVocabulary, objective: str, whole_words: bool
) -> None:
    masking = MaskingSettings(whole_words=whole_words)
    source = batches(cache, vocabulary, objective=objective, masking=masking)
    seen = 0
    for batch in all_of(source):
        ids = original(batch)
        seen += len(ids)
        assert {tensor.dtype for tensor in batch if tensor is not None} == {torch.int64}
        assert len({tensor.shape for tensor in batch[:4]}) == 1
        assert ids.shape[1] == batch.attention_mask.sum(dim=1).max() <= 32
        assert torch.equal(batch.attention_mask, (ids != PAD).long())
        assert torch.equal(batch.attention_mask, batch.attention_mask.sort(dim=1, descending=True).values)
        assert (ids[:, 0] == CLS).all()
        assert ((ids == CLS).sum(dim=1) == 1).all()
        lengths = batch.attention_mask.sum(dim=1)
        assert (ids[torch.arange(len(ids)), lengths - 1] == SEP).all()
        assert not np.isin(batch.labels.numpy(), vocabulary.special_ids).any()
        assert ((batch.labels != -100).sum(dim=1) >= 1).all()
        if batch.sentence_labels is None:
            assert not batch.token_type_ids.any()
        else:
            assert ((ids == SEP).sum(dim=1) == 2).all()
            after = torch.cumsum(ids == SEP, dim=1) - (ids == SEP).long()  # 1 behind the first separator
            assert torch.equal(batch.token_type_ids, (after == 1).long() * batch.attention_mask)
    assert seen == source.num_sequences
    assert (source[0].sentence_labels is None) == (objective in ("mlm", "rtd"))


def test_sequences_of_two_documents(tmp_path: Path, toy_vocab: Path, vocabulary: PretrainingVocabulary) -> None:
    tokenizer = toy_tokenizer(toy_vocab)
    cache = toy_cache(tmp_path, toy_vocab, [["ab", "c"], ["de"]])
    one = all_of(batches(cache, vocabulary, seed=1))
    assert len(one) == 1
    text = tokenizer.decode(original(one[0])[0].tolist(), skip_special_tokens=False)
    assert text in ("[CLS] a b c [SEP] d e [SEP]", "[CLS] d e [SEP] a b c [SEP]")
    two = original(batches(cache, vocabulary, objective="rtd")[0])
    found = sorted(tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in two)
    assert found == ["[CLS] a b c [SEP]", "[CLS] d e [SEP] [PAD]"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batches_depend_on_seed_and_epoch_only(
    cache: TokenCache, vocabulary: PretrainingVocabulary, objective: str
) -> None:
    source, again = (batches(cache, vocabulary, objective=objective, seed=3) for _ in range(2))
    first = all_of(source)
    assert same(first, all_of(again))
    source.set_epoch(4)
    fifth = all_of(source)
    assert not same(first, fifth)
    assert not any(torch.equal(a.labels, b.labels) for a, b in zip(first, fifth, strict=False))
    again.set_epoch(2)
    again.set_epoch(4)
    assert same(fifth, all_of(again))
    assert not same(first, all_of(batches(cache, vocabulary, objective=objective, seed=4)))


def test_static_masking_only_reorders_sequences(cache: TokenCache, vocabulary: PretrainingVocabulary) -> None:
    def rows(epoch: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        source.set_epoch(epoch)
        return [
            (tuple(ids[mask == 1].tolist()), tuple(labels[mask == 1].tolist()))
            for batch in all_of(source)
            for ids, labels, mask in zip(batch.input_ids, batch.labels, batch.attention_mask, strict=True)
        ]

    source = batches(cache, vocabulary, static_masking=True)
    first, second = rows(0), rows(1)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("batch_size", [8, 11, 20])
def test_ranks_share_the_batches_of_a_single_rank(
    cache: TokenCache, vocabulary: PretrainingVocabulary, batch_size: int
) -> None:
    """The sequences of a batch, and their masks, do not depend on the number of ranks."""

    def rows(batch: PretrainingBatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        real = batch.attention_mask.bool()
        pairs = zip(batch.input_ids, batch.labels, real, strict=True)
        return [(tuple(ids[mask].tolist()), tuple(labels[mask].tolist())) for ids, labels, mask in pairs]

    whole = all_of(batches(cache, vocabulary, batch_size=3 * batch_size))
    parts = [all_of(batches(cache, vocabulary, batch_size=batch_size, rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert len(whole) > 2
    left_over = len(whole[-1].input_ids) < 3
    assert len(parts[0]) == len(whole) - left_over
    for batch, turn in zip(whole, zip(*parts, strict=True), strict=False):
        assert [row for part in turn for row in rows(part)] == rows(batch)


def test_loader_and_pickled_copy_build_the_same_batches(cache: TokenCache, vocabulary: PretrainingVocabulary) -> None:
    source = batches(cache, vocabulary, objective="mlm+nsp")
    source.set_epoch(2)
    assert same(list(batch_loader(source)), all_of(source))
    assert same(all_of(pickle.loads(pickle.dumps(source))), all_of(source))  # as a spawned process gets it


def test_roberta_pair_has_two_separators(tmp_path: Path) -> None:
    train_bpe(tmp_path)
    tokenizer = read_tokenizer(tmp_path, "roberta")
    (tmp_path / "a.txt").write_text("the card was charged\ntwice on Monday\n\nthe parcel left\nour warehouse")
    cache = tokenize_corpus(TextFiles([tmp_path / "a.txt"]), tokenizer, tmp_path / "cache")
    # <s> 0, <pad> 1, </s> 2
    vocabulary = PretrainingVocabulary.from_tokenizer(tokenizer)
    template = vocabulary.template
    assert (template.prefix, template.middle, template.suffix, template.second_type) == ((0,), (2, 2), (2,), 0)
    batch = batches(cache, vocabulary, objective="mlm+sop", max_tokens=40)[0]
    assert not batch.token_type_ids.any()
    ids = original(batch)[0].tolist()
    assert ids.count(2) == 3
    assert ids[ids.index(2) + 1] == 2
    full = original(batches(cache, vocabulary, max_tokens=60)[0])[0].tolist()
    assert full.count(2) == 2


def test_invalid_settings_and_data_are_rejected(cache: TokenCache, vocabulary: PretrainingVocabulary) -> None:
    with pytest.raises(TrainingError, match=r"one of mlm, mlm\+nsp, mlm\+sop, rtd, found 'nsp'; batch_size must be"):
        BatchSettings(objective="nsp", batch_size=0)
    with pytest.raises(TrainingError, match="seed must lie"):
        BatchSettings(seed=-1)
    with pytest.raises(TrainingError, match="expected a rank from 0 to 1, found 2"):
        batches(cache, vocabulary, rank=2, world_size=2)
    with pytest.raises(TrainingError, match=r"60 documents make .* expected at least 900, one for"):
        batches(cache, vocabulary, rank=0, world_size=900)
    with pytest.raises(TrainingError, match="room for at least 1 token"):
        batches(cache, vocabulary, max_tokens=2)
    with pytest.raises(IndexError):
        source = batches(cache, vocabulary)
        source[len(source)]
