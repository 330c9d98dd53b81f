"""Pack the sentences of a token cache into sequences or pairs of at most a number of tokens.

Packing reads the ends of sentences and documents, not the tokens, and keeps a few numbers per sequence, so it takes
little memory compared with the corpus. Tokens are read when a batch is built.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bert_models.errors import TrainingError
from bert_models.pretraining.token_cache import TokenCache
from bert_runtime.numerics import IntArray

__all__ = ["PackedSequences", "pack_next_sentences", "pack_sentence_order", "pack_sentences", "truncate_pair"]


SHORT_SEQ_PROB = 0.1
"""Fraction of pairs with a random, shorter target length: `short_seq_prob` of BERT's `create_pretraining_data.py`."""

_MANY_DOCUMENTS = 100
"""Documents of which one at least should have two sentences: fewer may be short by chance. A judgement."""

_Span = tuple[int, int]


@dataclass(frozen=True)
class PackedSequences:
    """The sequences of one epoch, L in number, as spans of the cache's tokens.

    A sequence has P ≥ 1 spans: the two texts of a pair, or else parts of different documents.
    """

    spans: IntArray
    """Begin and end of every span among the cache's tokens, int64 [sum of all P, 2]."""
    first_spans: IntArray
    """Index of each sequence's first span, int64 [L + 1]."""
    labels: IntArray | None
    """For pairs, int64 [L]: 0 for the true order, 1 for a random second text or swapped texts."""

    def __len__(self) -> int:
        return len(self.first_spans) - 1

    def sequence(self, index: int) -> IntArray:
        """Return the spans of a sequence, int64 [P, 2]."""
        return self.spans[self.first_spans[index] : self.first_spans[index + 1]]


def pack_sentences(
    cache: TokenCache, documents: IntArray, max_tokens: int, seed: int, epoch: int, *, cross_documents: bool = True
) -> PackedSequences:
    """Pack consecutive whole sentences, as many as fit; every token of `documents` is in exactly one sequence.

    With `cross_documents`, this is RoBERTa's FULL-SENTENCES (arXiv:1907.11692, section 4.2): documents follow each
    other in an order that depends on the epoch, with a separator token between them. Without, it is RoBERTa's
    DOC-SENTENCES, where a sequence ends with its document. Only a sentence longer than a sequence is split.

    Args:
        cache: the tokenized corpus.
        documents: indices of the documents to pack, int64 [D].
        max_tokens: maximum tokens of a sequence, separators included, other special tokens not.
        seed: seed of the order of documents.
        epoch: epoch, which changes the order.
        cross_documents: whether a sequence may continue with the next document.

    Raises:
        TrainingError: `max_tokens` is below 1.
    """
    _check_max_tokens(max_tokens, minimum=1)
    spans, first_spans, free = array("q"), array("q", [0]), max_tokens
    for document in _shuffle(documents, seed, epoch):
        bounds = cache.sentence_bounds(document)
        position, end = int(bounds[0]), int(bounds[-1])
        if not cross_documents and free < max_tokens:
            first_spans.append(len(spans) // 2)
            free = max_tokens
        elif free < max_tokens:
            free -= 1  # the separator
        while position < end:
            stop = int(bounds[np.searchsorted(bounds, position + free, side="right") - 1]) if free > 0 else position
            if stop <= position and _is_empty(spans, first_spans):
                stop = position + free  # a sentence longer than a sequence
            if stop > position:
                spans.extend((position, stop))
                free -= stop - position
                position = stop
            if position < end:
                first_spans.append(len(spans) // 2)
                free = max_tokens
    if not _is_empty(spans, first_spans):
        first_spans.append(len(spans) // 2)
    return PackedSequences(_to_numpy(spans).reshape(-1, 2), _to_numpy(first_spans), None)


def pack_next_sentences(
    cache: TokenCache, documents: IntArray, max_tokens: int, seed: int, epoch: int
) -> PackedSequences:
    """Pack pairs for next-sentence prediction (BERT, arXiv:1810.04805, section 3.1 and appendix A.2).

    The first text starts where the pair before ended. In half of the pairs the second text follows it (label 0); in the
    other half it starts anywhere in another document (label 1), and the text that it replaces starts the next pair. A
    tenth of the pairs have a random, shorter target length. A pair above `max_tokens` is truncated, see
    `truncate_pair`. A sentence of more than half of `max_tokens` counts as several. A sentence that is left over at the
    end of a document gets a random second text, as in BERT.

    Args:
        cache: the tokenized corpus.
        documents: indices of the documents to pack, int64 [D].
        max_tokens: maximum tokens of a pair, special tokens not included.
        seed: seed of all random choices.
        epoch: epoch, which changes the choices.

    Raises:
        TrainingError: `max_tokens` is below 2, there are fewer than 2 documents, or none has two sentences.
    """
    _check_max_tokens(max_tokens, minimum=2)
    if len(documents) < 2:
        raise TrainingError(
            f"next-sentence prediction takes its wrong continuations from other documents: expected at least 2, found "
            f"{len(documents)}; check how documents are separated"
        )
    generator, units = np.random.default_rng([seed, epoch]), _unit_reader(cache, max_tokens // 2)
    indices = {int(document): index for index, document in enumerate(documents)}
    spans, labels, has_several = array("q"), array("q"), False
    for document in _shuffle(documents, seed, epoch):
        bounds, first = units(document), 0
        while first < len(bounds) - 1:
            target_length = _target_length(max_tokens, generator)
            end = _chunk_end(bounds, first, target_length)
            is_single = end - first == 1
            has_several |= not is_single
            middle = end if is_single else first + int(generator.integers(1, end - first))
            a, b = (int(bounds[first]), int(bounds[middle])), (int(bounds[middle]), int(bounds[end]))
            is_random = is_single or generator.random() < 0.5
            if is_random:
                other = int(generator.integers(len(documents) - 1))
                other += other >= indices[document]
                b = _random_span(units(int(documents[other])), target_length - (a[1] - a[0]), generator)
            first = middle if is_random else end
            _add_pair(spans, a, b, max_tokens, generator)
            labels.append(int(is_random))
    if len(documents) >= _MANY_DOCUMENTS and not has_several:
        raise TrainingError(
            "next-sentence prediction needs documents of several sentences, found none in which one follows another; "
            "separate documents otherwise (with --one-per-line, each line is one), or choose another objective"
        )
    return _build_pairs(spans, labels)


def pack_sentence_order(
    cache: TokenCache, documents: IntArray, max_tokens: int, seed: int, epoch: int
) -> PackedSequences:
    """Pack pairs for sentence-order prediction (ALBERT, arXiv:1909.11942, section 3.1).

    Two texts follow each other in a document; in half of the pairs they are swapped (label 1). Target lengths and
    truncation are those of `pack_next_sentences`. A sentence that is left over at the end of a document is halved, or
    skipped if it is a single token.

    Args:
        cache: the tokenized corpus.
        documents: indices of the documents to pack, int64 [D].
        max_tokens: maximum tokens of a pair, special tokens not included.
        seed: seed of all random choices.
        epoch: epoch, which changes the choices.

    Raises:
        TrainingError: `max_tokens` is below 2.
    """
    _check_max_tokens(max_tokens, minimum=2)
    generator, units = np.random.default_rng([seed, epoch]), _unit_reader(cache, max_tokens // 2)
    spans, labels = array("q"), array("q")
    for document in _shuffle(documents, seed, epoch):
        bounds, first = units(document), 0
        while first < len(bounds) - 1:
            end = _chunk_end(bounds, first, _target_length(max_tokens, generator))
            begin, stop = int(bounds[first]), int(bounds[end])
            is_single = end - first == 1
            middle = (begin + stop) // 2 if is_single else int(bounds[first + int(generator.integers(1, end - first))])
            first = end
            if middle == begin:
                continue
            is_swapped = generator.random() < 0.5
            texts = ((middle, stop), (begin, middle)) if is_swapped else ((begin, middle), (middle, stop))
            _add_pair(spans, *texts, max_tokens, generator)
            labels.append(int(is_swapped))
    return _build_pairs(spans, labels)


def _check_max_tokens(max_tokens: int, minimum: int) -> None:
    if max_tokens < minimum:
        raise TrainingError(
            f"expected max_tokens with room for at least {minimum} tokens besides the special ones, found room for "
            f"{max_tokens}"
        )


def _shuffle(documents: IntArray, seed: int, epoch: int) -> list[int]:
    """Return the documents in the order of an epoch."""
    order: list[int] = np.random.default_rng([seed, epoch, 1]).permutation(documents).tolist()
    return order


def _to_numpy(values: "array[int]") -> IntArray:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)


def _is_empty(spans: "array[int]", first_spans: "array[int]") -> bool:
    """Return whether the sequence that is being packed has no span yet."""
    return len(spans) // 2 == first_spans[-1]


def _build_pairs(spans: "array[int]", labels: "array[int]") -> PackedSequences:
    return PackedSequences(_to_numpy(spans).reshape(-1, 2), 2 * np.arange(len(labels) + 1), _to_numpy(labels))


def _unit_reader(cache: TokenCache, max_length: int) -> Callable[[int], IntArray]:
    """Return a function from a document to the bounds [n + 1] of its units: sentences, split evenly above `max_length`.

    Without the split, a long paragraph would fill a sequence alone and so never have its true continuation.
    """

    @lru_cache(maxsize=128)
    def units(document: int) -> IntArray:
        bounds = cache.sentence_bounds(document)
        lengths = np.diff(bounds)
        counts = -(-lengths // max_length)
        parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        cuts = np.repeat(bounds[:-1], counts) + np.repeat(lengths, counts) * parts // np.repeat(counts, counts)
        return np.append(cuts, bounds[-1])

    return units


def _target_length(max_tokens: int, generator: np.random.Generator) -> int:
    """Draw the target length of a pair."""
    is_short = generator.random() < SHORT_SEQ_PROB
    return int(generator.integers(2, max_tokens + 1)) if is_short else max_tokens


def _chunk_end(bounds: IntArray, first: int, target_length: int) -> int:
    """Return the end of the chunk that starts at unit `first`: it reaches `target_length`, with two units if it can."""
    reached = int(np.searchsorted(bounds, bounds[first] + target_length, side="left"))
    return min(max(reached, first + 2), len(bounds) - 1)


def _random_span(bounds: IntArray, length: int, generator: np.random.Generator) -> _Span:
    """Return units of a document from a random one on, as many as reach `length`, and at least one."""
    first = int(generator.integers(len(bounds) - 1))
    end = int(np.searchsorted(bounds, bounds[first] + max(length, 1), side="left"))
    return int(bounds[first]), int(bounds[min(end, len(bounds) - 1)])


def _add_pair(spans: "array[int]", a: _Span, b: _Span, max_tokens: int, generator: np.random.Generator) -> None:
    for span in truncate_pair(a, b, max_tokens, generator):
        spans.extend(span)


def truncate_pair(a: _Span, b: _Span, max_tokens: int, generator: np.random.Generator) -> tuple[_Span, _Span]:
    """Truncate the spans of two texts to `max_tokens` tokens together.

    BERT drops tokens one by one from the text that is longer then (the second if both are equal), each at its front or
    its back with equal probability. Here the numbers of dropped tokens are computed, and those at the front are drawn
    from a binomial distribution.
    """
    difference = (a[1] - a[0]) - (b[1] - b[0])
    excess = max(0, (a[1] - a[0]) + (b[1] - b[0]) - max_tokens)
    from_longer = min(excess, abs(difference))  # dropped until both are equally long
    drop_a = (from_longer if difference > 0 else 0) + (excess - from_longer) // 2
    return _truncate(a, drop_a, generator), _truncate(b, excess - drop_a, generator)


def _truncate(span: _Span, drop: int, generator: np.random.Generator) -> _Span:
    front = int(generator.binomial(drop, 0.5)) if drop else 0
    return span[0] + front, span[1] - (drop - front)
