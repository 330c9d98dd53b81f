"""Which tokens are read together: RoBERTa's full sentences, BERT's and ALBERT's pairs."""

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


def texts(cache: TokenCache, vocab: Path, plan: PackedSequences) -> list[str]:
    """The sequences as letters, with | between spans."""
    return ["|".join(letters(cache, vocab, span) for span in plan.sequence(each)) for each in range(len(plan))]


def all_of(cache: TokenCache) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(cache.num_documents)


def test_sentences_stay_whole_and_end_with_the_document(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa", "bb", "ccc"], ["d"], ["eeeeeeeee", "ff"]])
    plan = pack_sentences(cache, all_of(cache), 6, 0, 0, cross_documents=False)
    assert sorted(texts(cache, toy_vocab, plan)) == ["aaabb", "ccc", "d", "eeeeee", "eeeff"]
    assert plan.labels is None


def test_full_sentences_go_on_with_the_next_document(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa", "bb"], ["c", "dd"]])
    found = {
        tuple(texts(cache, toy_vocab, pack_sentences(cache, all_of(cache), room, 0, epoch)))
        for room in (7, 8, 9)
        for epoch in range(20)
    }
    # The separator takes one place: seven have room for one sentence more, six with it.
    assert found == {
        ("aaabb|c", "dd"), ("cdd|aaa", "bb"),
        ("cdd|aaa", "bb"), ("aaabb|c", "dd"),
        ("aaabb|cdd",), ("cdd|aaabb",),
    }  # fmt: skip


def test_a_separator_alone_does_not_begin_or_end_a_sequence(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["aaa"], ["bbb"], ["cc"]])
    for epoch in range(10):
        plan = pack_sentences(cache, all_of(cache), 3, 0, epoch)
        assert sorted(texts(cache, toy_vocab, plan)) == ["aaa", "bbb", "cc"]
        assert sorted(texts(cache, toy_vocab, pack_sentences(cache, all_of(cache), 4, 0, epoch))) == [
            "aaa",
            "bbb",
            "cc",
        ]


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("room", [1, 5, 24, 400])
def test_every_token_is_used_once(cache: TokenCache, room: int, cross: bool) -> None:
    documents = all_of(cache)[::2]
    plan = pack_sentences(cache, documents, room, 0, 3, cross_documents=cross)
    found = np.sort(np.concatenate([np.arange(*span) for span in plan.spans]))
    wanted = [np.arange(cache.sentence_bounds(d)[0], cache.sentence_bounds(d)[-1]) for d in documents]
    assert np.array_equal(found, np.concatenate(wanted))
    spans = np.diff(plan.first_spans)
    assert (spans >= 1).all()
    assert (spans == 1).all() or cross
    lengths = [int(np.diff(plan.sequence(each)).sum()) + spans[each] - 1 for each in range(len(plan))]
    assert max(lengths) <= room
    for begin, end in plan.spans:
        assert document_of(cache, begin) == document_of(cache, end - 1)


@pytest.mark.parametrize("room", [24, 60])
def test_a_sentence_that_fits_is_in_one_sequence(cache: TokenCache, room: int) -> None:
    plan = pack_sentences(cache, all_of(cache), room, 0, 0)
    inside = np.isin(plan.spans[:, 0], cache.sentences)
    lengths = np.diff(cache.sentences)
    # Spans that begin inside of a sentence are those that go on with one that is too long.
    for begin in plan.spans[~inside, 0]:
        assert lengths[np.searchsorted(cache.sentences, begin, side="right") - 1] > room


@PAIRS
@pytest.mark.parametrize("room", [2, 7, 40, 200])
def test_pairs_keep_to_the_room_and_to_documents(cache: TokenCache, pack: Packer, room: int) -> None:
    plan = pack(cache, all_of(cache), room, 5, 0)
    assert plan.labels is not None
    assert len(plan.spans) == 2 * len(plan) == 2 * len(plan.labels)
    lengths = np.diff(plan.spans)[:, 0].reshape(-1, 2)
    assert lengths.min() >= 1
    assert lengths.sum(axis=1).max() <= room
    for sequence, label in enumerate(plan.labels):
        (a, a_end), (b, b_end) = plan.sequence(sequence)
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
    assert np.concatenate([each for each in labels if each is not None]).mean() == pytest.approx(0.5, abs=0.015)


def test_what_a_random_text_replaced_is_used_next(tmp_path: Path, toy_vocab: Path) -> None:
    """Without cuts, the first texts and the true second ones are the document again, in order."""
    cache = toy_cache(tmp_path, toy_vocab, [["ab", "cd", "ef", "gh", "ij", "kl"], ["mn"] * 6])
    for epoch in range(30):
        plan = pack_next_sentences(cache, all_of(cache), 12, 0, epoch)
        assert plan.labels is not None
        used: dict[int, list[int]] = {0: [], 1: []}
        for sequence, label in enumerate(plan.labels):
            a, b = plan.sequence(sequence)
            used[document_of(cache, a[0])].extend(range(*a))
            if not label:
                assert a[1] == b[0]
                used[document_of(cache, a[0])].extend(range(*b))
        assert used == {0: list(range(12)), 1: list(range(12, 24))}


def test_texts_are_cut_from_the_longer_at_both_ends() -> None:
    """Two texts of 4 that share 5 places: as BERT drops one by one, the first keeps 3 and the second 2."""
    seen = set()
    for seed in range(200):
        (a, a_end), (b, b_end) = truncate_pair((0, 4), (10, 14), 5, np.random.default_rng(seed))
        assert (a_end - a, b_end - b) == (3, 2)
        seen.add((a, b))
    assert seen == {(a, b) for a in (0, 1) for b in (10, 11, 12)}


@pytest.mark.parametrize(
    ("lengths", "kept"), [((9, 2), (4, 2)), ((2, 9), (2, 4)), ((9, 7), (3, 3)), ((2, 3), (2, 3)), ((1, 50), (1, 5))]
)
def test_the_shorter_text_is_cut_last(lengths: tuple[int, int], kept: tuple[int, int]) -> None:
    (a, a_end), (b, b_end) = truncate_pair((0, lengths[0]), (100, 100 + lengths[1]), 6, np.random.default_rng(0))
    assert (a_end - a, b_end - b) == kept


def test_a_tenth_of_the_pairs_are_short(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["a"] * 20_000] * 2)
    plan = pack_sentence_order(cache, all_of(cache), 50, 0, 0)
    lengths = np.diff(plan.spans)[:, 0].reshape(-1, 2).sum(axis=1)
    assert (lengths < 50).mean() == pytest.approx(0.1, abs=0.04)


def test_a_lone_sentence_is_halved_or_gets_a_random_text(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["abcd"], ["e"]])
    order = texts(cache, toy_vocab, pack_sentence_order(cache, all_of(cache), 20, 0, 0))
    assert order in (["ab|cd"], ["cd|ab"])
    plan = pack_next_sentences(cache, all_of(cache), 20, 0, 0)
    assert sorted(texts(cache, toy_vocab, plan)) == ["abcd|e", "e|abcd"]
    assert plan.labels is not None
    assert plan.labels.tolist() == [1, 1]


@pytest.mark.parametrize("pack", [pack_sentences, pack_next_sentences, pack_sentence_order])
def test_a_plan_follows_from_seed_and_epoch(cache: TokenCache, pack: Packer) -> None:
    first, again, later, other = (
        pack(cache, all_of(cache), 40, seed, epoch) for seed, epoch in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert np.array_equal(first.spans, again.spans)
    assert np.array_equal(first.first_spans, again.first_spans)
    assert not np.array_equal(first.spans, later.spans)
    assert not np.array_equal(first.spans, other.spans)


def test_next_sentences_need_two_documents_and_room(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["ab", "c"]])
    with pytest.raises(TrainingError, match="expected at least 2, found 1"):
        pack_next_sentences(cache, all_of(cache), 10, 0, 0)
    with pytest.raises(TrainingError, match="room for at least 2 tokens besides the special ones, found room for 1"):
        pack_sentence_order(cache, all_of(cache), 1, 0, 0)


@pytest.mark.shared_data
@pytest.mark.slow
def test_books_give_as_many_true_as_random_pairs(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(shared_data / "vocab" / "bert-base-uncased", "bert")
    books = open_corpus([shared_data / "books" / "books.md.gz"], document_start="^# Title:")
    cache = tokenize_corpus(books, tokenizer, tmp_path)
    assert cache.num_documents == 34
    for room, epoch in ((125, 0), (509, 0), (509, 1)):
        plan = pack_next_sentences(cache, all_of(cache), room, 0, epoch)
        assert plan.labels is not None
        assert plan.labels.mean() == pytest.approx(0.5, abs=0.01)
        documents = np.searchsorted(cache.sentences[cache.documents], plan.spans[:, 0], side="right").reshape(-1, 2)
        assert np.array_equal(documents[:, 0] != documents[:, 1], plan.labels == 1)
