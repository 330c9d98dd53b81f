"""Packing of sentences into sequences (RoBERTa) and pairs (BERT, ALBERT)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_models import TrainingError
from bert_models.corpus import open_corpus
from bert_models.pretraining import TokenCache, tokenize_corpus
from bert_models.pretraining.packing import (
    PackedSequences,
    pack_next_sentences,
    pack_sentence_order,
    pack_sentences,
    truncate_pair,
)
from bert_models.tokenizer_files import read_tokenizer

from ..toy_corpus import document_of, letters, random_documents, toy_cache

Packer = Callable[[TokenCache, "np.ndarray[tuple[int], np.dtype[np.int64]]", int, int, int], PackedSequences]
PAIRS = pytest.mark.parametrize("pack", [pack_next_sentences, pack_sentence_order])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path) -> TokenCache:
    """300 documents, some of one sentence; some sentences are longer than the sequences below."""
    return toy_cache(tmp_path_factory.mktemp("random"), toy_vocab, random_documents(300, 30))


def texts(cache: TokenCache, vocab: Path, packed: PackedSequences) -> list[str]:
    """The sequences as letters, with | between spans."""
    return ["|".join(letters(cache, vocab, span) for span in packed.sequence(index)) for index in range(len(packed))]


def all_of(cache: TokenCache) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(cache.num_documents)


def test_doc_sentences_end_with_their_document(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa", "bb", "ccc"], ["d"], ["eeeeeeeee", "ff"]])
    packed = pack_sentences(cache, all_of(cache), 6, 0, 0, cross_documents=False)
    assert sorted(texts(cache, toy_vocab, packed)) == ["aaabb", "ccc", "d", "eeeeee", "eeeff"]
    assert packed.labels is None


def test_full_sentences_continue_with_the_next_document(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa", "bb"], ["c", "dd"]])
    found = {
        tuple(texts(cache, toy_vocab, pack_sentences(cache, all_of(cache), max_tokens, 0, epoch)))
        for max_tokens in (7, 8, 9)
        for epoch in range(20)
    }
    # The separator takes one place: seven have room for one sentence more, six with it.
    assert found == {
        ("aaabb|c", "dd"), ("cdd|aaa", "bb"),
        ("cdd|aaa", "bb"), ("aaabb|c", "dd"),
        ("aaabb|cdd",), ("cdd|aaabb",),
    }  # fmt: skip


def test_separator_does_not_start_or_end_a_sequence(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa"], ["bbb"], ["cc"]])
    for epoch in range(10):
        packed = pack_sentences(cache, all_of(cache), 3, 0, epoch)
        assert sorted(texts(cache, toy_vocab, packed)) == ["aaa", "bbb", "cc"]
        assert sorted(texts(cache, toy_vocab, pack_sentences(cache, all_of(cache), 4, 0, epoch))) == [
            "aaa",
            "bbb",
            "cc",
        ]


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 5, 24, 400])
def test_every_token_is_used_once(cache: TokenCache, max_tokens: int, cross: bool) -> None:
    documents = all_of(cache)[::2]
    packed = pack_sentences(cache, documents, max_tokens, 0, 3, cross_documents=cross)
    found = np.sort(np.concatenate([np.arange(*span) for span in packed.spans]))
    wanted = [np.arange(cache.sentence_bounds(d)[0], cache.sentence_bounds(d)[-1]) for d in documents]
    assert np.array_equal(found, np.concatenate(wanted))
    spans = np.diff(packed.first_spans)
    assert (spans >= 1).all()
    assert (spans == 1).all() or cross
    lengths = [int(np.diff(packed.sequence(i)).sum()) + spans[i] - 1 for i in range(len(packed))]
    assert max(lengths) <= max_tokens
    for begin, end in packed.spans:
        assert document_of(cache, begin) == document_of(cache, end - 1)


@pytest.mark.parametrize("max_tokens", [24, 60])
def test_sentence_that_fits_is_not_split(cache: TokenCache, max_tokens: int) -> None:
    packed = pack_sentences(cache, all_of(cache), max_tokens, 0, 0)
    inside = np.isin(packed.spans[:, 0], cache.sentences)
    lengths = np.diff(cache.sentences)
    # Only a sentence that is too long is continued in another span.
    for begin in packed.spans[~inside, 0]:
        assert lengths[np.searchsorted(cache.sentences, begin, side="right") - 1] > max_tokens


@PAIRS
@pytest.mark.parametrize("max_tokens", [2, 7, 40, 200])
def test_pairs_respect_max_tokens_and_documents(cache: TokenCache, pack: Packer, max_tokens: int) -> None:
    packed = pack(cache, all_of(cache), max_tokens, 5, 0)
    assert packed.labels is not None
    assert len(packed.spans) == 2 * len(packed) == 2 * len(packed.labels)
    lengths = np.diff(packed.spans)[:, 0].reshape(-1, 2)
    assert lengths.min() >= 1
    assert lengths.sum(axis=1).max() <= max_tokens
    for sequence, label in enumerate(packed.labels):
        (a, a_end), (b, b_end) = packed.sequence(sequence)
        first, second = document_of(cache, a), document_of(cache, b)
        assert document_of(cache, a_end - 1) == first
        assert document_of(cache, b_end - 1) == second
        if pack is pack_next_sentences:
            assert (first != second) == label
            assert label or b >= a_end
        else:
            assert first == second
            assert (b_end <= a) if label else (a_end <= b)


@PAIRS
def test_half_of_the_pairs_are_in_order(tmp_path: Path, toy_vocab: Path, pack: Packer) -> None:
    documents = [["abc"] * 400] * 5
    cache = toy_cache(tmp_path, toy_vocab, documents)
    labels = [pack(cache, all_of(cache), 12, 0, epoch).labels for epoch in range(15)]
    assert np.concatenate(
        [epoch_labels for epoch_labels in labels if epoch_labels is not None]
    ).mean() == pytest.approx(0.5, abs=0.015)


def test_replaced_continuation_starts_the_next_pair(tmp_path: Path, toy_vocab: Path) -> None:
    """Without truncation, first texts and true second texts together are the document, in order."""
    cache = toy_cache(tmp_path, toy_vocab, [["ab", "cd", "ef", "gh", "ij", "kl"], ["mn"] * 6])
    for epoch in range(30):
        packed = pack_next_sentences(cache, all_of(cache), 12, 0, epoch)
        assert packed.labels is not None
        used: dict[int, list[int]] = {0: [], 1: []}
        for sequence, label in enumerate(packed.labels):
            a, b = packed.sequence(sequence)
            used[document_of(cache, a[0])].extend(range(*a))
            if not label:
                assert a[1] == b[0]
                used[document_of(cache, a[0])].extend(range(*b))
        assert used == {0: list(range(12)), 1: list(range(12, 24))}


def test_longer_text_is_truncated_at_both_ends() -> None:
    """Two texts of 4 tokens, truncated to 5: dropping one by one, as BERT does, leaves 3 and 2."""
    seen = set()
    for seed in range(200):
        (a, a_end), (b, b_end) = truncate_pair((0, 4), (10, 14), 5, np.random.default_rng(seed))
        assert (a_end - a, b_end - b) == (3, 2)
        seen.add((a, b))
    assert seen == {(a, b) for a in (0, 1) for b in (10, 11, 12)}


@pytest.mark.parametrize(
    ("lengths", "kept"), [((9, 2), (4, 2)), ((2, 9), (2, 4)), ((9, 7), (3, 3)), ((2, 3), (2, 3)), ((1, 50), (1, 5))]
)
def test_shorter_text_is_truncated_last(lengths: tuple[int, int], kept: tuple[int, int]) -> None:
    (a, a_end), (b, b_end) = truncate_pair((0, lengths[0]), (100, 100 + lengths[1]), 6, np.random.default_rng(0))
    assert (a_end - a, b_end - b) == kept


def test_a_tenth_of_the_pairs_are_short(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["a"] * 20_000] * 2)
    packed = pack_sentence_order(cache, all_of(cache), 50, 0, 0)
    lengths = np.diff(packed.spans)[:, 0].reshape(-1, 2).sum(axis=1)
    assert (lengths < 50).mean() == pytest.approx(0.1, abs=0.04)


def test_single_sentence_is_halved_or_paired_at_random(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["abcd"], ["e"]])
    order = texts(cache, toy_vocab, pack_sentence_order(cache, all_of(cache), 20, 0, 0))
    assert order in (["ab|cd"], ["cd|ab"])
    packed = pack_next_sentences(cache, all_of(cache), 20, 0, 0)
    assert sorted(texts(cache, toy_vocab, packed)) == ["abcd|e", "e|abcd"]
    assert packed.labels is not None
    assert packed.labels.tolist() == [1, 1]


@pytest.mark.parametrize("pack", [pack_sentences, pack_next_sentences, pack_sentence_order])
def test_packing_depends_on_seed_and_epoch_only(cache: TokenCache, pack: Packer) -> None:
    first, again, later, other = (
        pack(cache, all_of(cache), 40, seed, epoch) for seed, epoch in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert np.array_equal(first.spans, again.spans)
    assert np.array_equal(first.first_spans, again.first_spans)
    assert not np.array_equal(first.spans, later.spans)
    assert not np.array_equal(first.spans, other.spans)


def test_too_few_documents_or_tokens_are_rejected(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["ab", "c"]])
    with pytest.raises(TrainingError, match="expected at least 2, found 1"):
        pack_next_sentences(cache, all_of(cache), 10, 0, 0)
    with pytest.raises(TrainingError, match="room for at least 2 tokens besides the special ones, found room for 1"):
        pack_sentence_order(cache, all_of(cache), 1, 0, 0)


def test_documents_of_one_sentence_cannot_teach_the_next_one(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["abc"]] * 120)
    with pytest.raises(TrainingError, match=r"needs documents of several sentences, found none .*--one-per-line"):
        pack_next_sentences(cache, all_of(cache), 10, 0, 0)
    cache = toy_cache(tmp_path / "more", toy_vocab, [["abc"]] * 120 + [["abc", "d"]])
    for epoch in range(10):  # whatever is drawn
        pack_next_sentences(cache, all_of(cache), 10, 0, epoch)


@pytest.mark.shared_data
@pytest.mark.slow
def test_books_give_as_many_true_as_random_pairs(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(shared_data / "vocab" / "bert-base-uncased", "bert")
    books = open_corpus([shared_data / "books" / "books.md.gz"], document_start="^# Title:")
    cache = tokenize_corpus(books, tokenizer, tmp_path)
    assert cache.num_documents == 34
    for max_tokens, epoch in ((125, 0), (509, 0), (509, 1)):
        packed = pack_next_sentences(cache, all_of(cache), max_tokens, 0, epoch)
        assert packed.labels is not None
        assert packed.labels.mean() == pytest.approx(0.5, abs=0.01)
        documents = np.searchsorted(cache.sentences[cache.documents], packed.spans[:, 0], side="right").reshape(-1, 2)
        assert np.array_equal(documents[:, 0] != documents[:, 1], packed.labels == 1)
