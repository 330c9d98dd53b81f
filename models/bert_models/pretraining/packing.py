"""Sequences of a token cache: which tokens the model reads together in one epoch.

Packing looks at where sentences and documents end, not at tokens. A plan is a few numbers per sequence, so it stays
small beside the corpus; the tokens are read when a batch is made.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bert_models.errors import TrainingError
from bert_models.pretraining.token_cache import TokenCache
from bert_runtime.numerics import IntArray

__all__ = ["Plan", "pack_next_sentences", "pack_sentence_order", "pack_sentences", "truncate_pair"]


SHORT_SEQ_PROB = 0.1
"""How many of BERT's pairs are to be shorter than the model could read."""

_Span = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """The sequences of one epoch, L in number, in the order in which they were packed.

    A sequence is made of P ≥ 1 spans of tokens: in a pair the two texts, else parts of different documents.
    """

    spans: IntArray
    """Begin and end among the cache's tokens, [all P, 2]."""
    first_spans: IntArray
    """Where each sequence's spans begin, [L + 1]."""
    labels: IntArray | None
    """Of pairs, [L]: 0 for the true order, 1 for a random second text or swapped texts."""

    def __len__(self) -> int:
        return len(self.first_spans) - 1

    def sequence(self, index: int) -> IntArray:
        """The spans of a sequence, [P, 2]."""
        return self.spans[self.first_spans[index] : self.first_spans[index + 1]]


def pack_sentences(
    cache: TokenCache, documents: IntArray, room: int, seed: int, epoch: int, *, cross_documents: bool = True
) -> Plan:
    """Consecutive whole sentences, as many as fit; every token of `documents` is in exactly one sequence.

    With `cross_documents`, RoBERTa's FULL-SENTENCES (arXiv 1907.11692, section 4.2): documents follow one another in
    an order of this epoch, and where one ends and the next begins the separator takes one place. Without, RoBERTa's
    DOC-SENTENCES, as ELECTRA (arXiv 2003.10555) and DistilBERT read: a sequence ends with its document. Each sequence
    has at most `room` tokens, its special ones left out; a longer sentence is cut.
    """
    _check_room(room, 1)
    spans, first_spans, free = array("q"), array("q", [0]), room
    for document in _order(documents, seed, epoch):
        bounds = cache.sentence_bounds(document)
        position, end = int(bounds[0]), int(bounds[-1])
        if not cross_documents and free < room:
            first_spans.append(len(spans) // 2)
            free = room
        elif free < room:
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
                free = room
    if not _is_empty(spans, first_spans):
        first_spans.append(len(spans) // 2)
    return Plan(_integers(spans).reshape(-1, 2), _integers(first_spans), None)


def pack_next_sentences(cache: TokenCache, documents: IntArray, room: int, seed: int, epoch: int) -> Plan:
    """Pairs for next-sentence prediction (BERT, arXiv 1810.04805, section 3.1 and appendix A.2); 0 is the next.

    The first text begins where the last pair ended. In half of the pairs the second text follows it, in the other half
    it begins anywhere in another document, and what would have followed is used for the next pair. A tenth of the
    pairs aim at a random shorter length. What is longer than `room` tokens, special ones left out, is cut from the
    longer text, at either end. A sentence of more than half of `room` counts as several. What is left alone at the end
    of a document gets a random second text, as in BERT's recipe.
    """
    _check_room(room, 2)
    if len(documents) < 2:
        raise TrainingError(
            f"next-sentence prediction takes its wrong continuations from other documents: expected at least 2, found "
            f"{len(documents)}; check how documents are separated"
        )
    generator, units = np.random.default_rng([seed, epoch]), _unit_reader(cache, room // 2)
    places = {int(document): place for place, document in enumerate(documents)}
    spans, labels = array("q"), array("q")
    for document in _order(documents, seed, epoch):
        bounds, first = units(document), 0
        while first < len(bounds) - 1:
            target = _target(room, generator)
            end = _chunk_end(bounds, first, target)
            alone = end - first == 1
            middle = end if alone else first + int(generator.integers(1, end - first))
            a, b = (int(bounds[first]), int(bounds[middle])), (int(bounds[middle]), int(bounds[end]))
            is_random = alone or generator.random() < 0.5
            if is_random:
                other = int(generator.integers(len(documents) - 1))
                other += other >= places[document]
                b = _random_span(units(int(documents[other])), target - (a[1] - a[0]), generator)
            first = middle if is_random else end
            _add_pair(spans, a, b, room, generator)
            labels.append(int(is_random))
    return _pairs(spans, labels)


def pack_sentence_order(cache: TokenCache, documents: IntArray, room: int, seed: int, epoch: int) -> Plan:
    """Pairs for sentence-order prediction (ALBERT, arXiv 1909.11942, section 3.1); 1 is swapped.

    Two texts that follow each other in a document, in half of the pairs in the wrong order. Lengths and cuts as in
    `pack_next_sentences`; what is left alone at the end of a document is halved, and left out if it is a single token.
    """
    _check_room(room, 2)
    generator, units = np.random.default_rng([seed, epoch]), _unit_reader(cache, room // 2)
    spans, labels = array("q"), array("q")
    for document in _order(documents, seed, epoch):
        bounds, first = units(document), 0
        while first < len(bounds) - 1:
            end = _chunk_end(bounds, first, _target(room, generator))
            begin, stop = int(bounds[first]), int(bounds[end])
            alone = end - first == 1
            middle = (begin + stop) // 2 if alone else int(bounds[first + int(generator.integers(1, end - first))])
            first = end
            if middle == begin:
                continue
            swapped = generator.random() < 0.5
            texts = ((middle, stop), (begin, middle)) if swapped else ((begin, middle), (middle, stop))
            _add_pair(spans, *texts, room, generator)
            labels.append(int(swapped))
    return _pairs(spans, labels)


def _check_room(room: int, least: int) -> None:
    if room < least:
        raise TrainingError(f"expected room for at least {least} tokens beside the special ones, found {room}")


def _order(documents: IntArray, seed: int, epoch: int) -> list[int]:
    """The documents in the order of an epoch."""
    order: list[int] = np.random.default_rng([seed, epoch, 1]).permutation(documents).tolist()
    return order


def _integers(values: "array[int]") -> IntArray:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)


def _is_empty(spans: "array[int]", first_spans: "array[int]") -> bool:
    """Whether the sequence that is being packed has no span yet."""
    return len(spans) // 2 == first_spans[-1]


def _pairs(spans: "array[int]", labels: "array[int]") -> Plan:
    return Plan(_integers(spans).reshape(-1, 2), 2 * np.arange(len(labels) + 1), _integers(labels))


def _unit_reader(cache: TokenCache, limit: int) -> Callable[[int], IntArray]:
    """A function from a document to the bounds [n + 1] of its sentences, each cut evenly into parts of ≤ `limit`.

    Without the cut a long paragraph would fill a sequence alone, and have no true continuation to be told apart.
    """

    @lru_cache(maxsize=128)
    def units(document: int) -> IntArray:
        bounds = cache.sentence_bounds(document)
        lengths = np.diff(bounds)
        counts = -(-lengths // limit)
        parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        cuts = np.repeat(bounds[:-1], counts) + np.repeat(lengths, counts) * parts // np.repeat(counts, counts)
        return np.append(cuts, bounds[-1])

    return units


def _target(room: int, generator: np.random.Generator) -> int:
    """The length that a pair aims at."""
    return int(generator.integers(2, room + 1)) if generator.random() < SHORT_SEQ_PROB else room


def _chunk_end(bounds: IntArray, first: int, target: int) -> int:
    """The unit before which a chunk ends that begins with unit `first`: it reaches `target`, and has two if it can."""
    reached = int(np.searchsorted(bounds, bounds[first] + target, side="left"))
    return min(max(reached, first + 2), len(bounds) - 1)


def _random_span(bounds: IntArray, length: int, generator: np.random.Generator) -> _Span:
    """Units of a document from a random one on, as many as reach `length`, and at least one."""
    first = int(generator.integers(len(bounds) - 1))
    end = int(np.searchsorted(bounds, bounds[first] + max(length, 1), side="left"))
    return int(bounds[first]), int(bounds[min(end, len(bounds) - 1)])


def _add_pair(spans: "array[int]", a: _Span, b: _Span, room: int, generator: np.random.Generator) -> None:
    for span in truncate_pair(a, b, room, generator):
        spans.extend(span)


def truncate_pair(a: _Span, b: _Span, room: int, generator: np.random.Generator) -> tuple[_Span, _Span]:
    """The spans of two texts, cut to `room` tokens together.

    Where BERT drops one token after the other from the text that is longer then, the second if they are even, each time
    at the front or the back, the numbers dropped are known at once and those at the front are binomial.
    """
    gap = (a[1] - a[0]) - (b[1] - b[0])
    excess = max(0, (a[1] - a[0]) + (b[1] - b[0]) - room)
    level = min(excess, abs(gap))  # dropped until both are equally long
    drop_a = (level if gap > 0 else 0) + (excess - level) // 2
    return _cut(a, drop_a, generator), _cut(b, excess - drop_a, generator)


def _cut(span: _Span, drop: int, generator: np.random.Generator) -> _Span:
    front = int(generator.binomial(drop, 0.5)) if drop else 0
    return span[0] + front, span[1] - (drop - front)
