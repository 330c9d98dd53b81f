"""Masked language modelling: which tokens are hidden, and behind what (BERT, arXiv 1810.04805, section 3.1).

Letters in shapes: B sequences in the batch, S tokens per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_models.errors import TrainingError
from bert_models.pretraining.vocabulary import Vocabulary
from bert_runtime.numerics import IntArray

__all__ = ["IGNORED", "Masked", "MaskingSettings", "mask_sequences"]

IGNORED = -100
"""The label of a token that is not predicted; `torch.nn.functional.cross_entropy` leaves it out."""

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class MaskingSettings:
    """BERT's recipe."""

    share: float = 0.15
    """Of the tokens that are not special, how many are predicted."""
    masked: float = 0.8
    """Of these, how many become the mask."""
    replaced: float = 0.1
    """Of these, how many become a random entry of the vocabulary that is not special; the rest stay as they are."""
    whole_words: bool = False
    """Chooses words, all of whose tokens are predicted; `share` still counts tokens."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.share <= 1:
            problems.append(f"share must lie in (0, 1], found {self.share}")
        problems += [
            f"{name} must lie in [0, 1], found {value}"
            for name, value in (("masked", self.masked), ("replaced", self.replaced))
            if not 0 <= value <= 1
        ]
        if not problems and self.masked + self.replaced > 1 + 1e-9:
            problems.append(f"masked and replaced must not exceed 1 together, found {self.masked} and {self.replaced}")
        if problems:
            raise TrainingError("; ".join(problems))


class Masked(NamedTuple):
    """What the model reads and what it is to say, both int64 [B, S]; a label is `IGNORED` where nothing is asked."""

    input_ids: IntArray
    labels: IntArray


class _Draws(NamedTuple):
    """Uniform numbers in [0, 1): one per sequence, [B], and three per token, [B, S] each."""

    rounding: NDArray[np.float64]
    order: NDArray[np.float64]
    action: NDArray[np.float64]
    substitute: NDArray[np.float64]


def mask_sequences(
    input_ids: IntArray,
    word_starts: BoolArray | None,
    vocabulary: Vocabulary,
    settings: MaskingSettings,
    generators: Sequence[np.random.Generator],
) -> Masked:
    """Masks a padded batch [B, S], each sequence with the numbers of a generator of its own.

    `word_starts` [B, S] is true at the first token of every word; it is needed for whole words alone. Special tokens,
    padding included, are never chosen. At least one token is chosen in every sequence that has an ordinary one. A
    sequence gets the same masks in whatever batch it is. Generators that differ from epoch to epoch make the masks
    dynamic (RoBERTa, arXiv 1907.11692).
    """
    order, action, substitute = np.zeros((3, *input_ids.shape))
    draws = _Draws(np.zeros(len(input_ids)), order, action, substitute)
    lengths = (input_ids != vocabulary.pad).sum(axis=1)
    for row, (generator, length) in enumerate(zip(generators, lengths, strict=True)):
        draws.rounding[row] = generator.random()
        for each in draws[1:]:
            each[row, :length] = generator.random(length)
    return _mask(input_ids, word_starts, vocabulary, settings, draws)


def _mask(
    input_ids: IntArray, word_starts: BoolArray | None, vocabulary: Vocabulary, settings: MaskingSettings, draws: _Draws
) -> Masked:
    ordinary = ~np.isin(input_ids, vocabulary.special)
    if settings.whole_words:
        if word_starts is None:
            raise TrainingError("masking whole words needs the flags of where words start")
        chosen = _choose_words(ordinary, word_starts, _budgets(ordinary, settings.share, draws.rounding), draws.order)
    else:
        chosen = _choose_tokens(ordinary, _budgets(ordinary, settings.share, draws.rounding), draws.order)
    labels = np.where(chosen, input_ids, IGNORED)
    hidden = chosen & (draws.action < settings.masked)
    swapped = chosen & ~hidden & (draws.action < settings.masked + settings.replaced)
    substitutes = vocabulary.ordinary[(draws.substitute * len(vocabulary.ordinary)).astype(np.int64)]
    return Masked(np.where(hidden, vocabulary.mask, np.where(swapped, substitutes, input_ids)), labels)


def _budgets(ordinary: BoolArray, share: float, rounding: NDArray[np.float64]) -> IntArray:
    """How many tokens to choose in each sequence, [B].

    Rounded up or down at random, so that the share is right on average; BERT rounds to the nearest, which in short
    sequences chooses too many or too few.
    """
    counts = ordinary.sum(axis=1)
    return np.minimum(np.maximum(np.floor(share * counts + rounding), 1), counts).astype(np.int64)


def _choose_tokens(ordinary: BoolArray, budgets: IntArray, order: NDArray[np.float64]) -> BoolArray:
    """As many tokens of each sequence as its budget says, in random order."""
    ranks = np.argsort(np.argsort(np.where(ordinary, order, 2.0), axis=1), axis=1)
    return ordinary & (ranks < budgets[:, None])


def _choose_words(
    ordinary: BoolArray, word_starts: BoolArray, budgets: IntArray, order: NDArray[np.float64]
) -> BoolArray:
    """Words in random order, leaving out each that would exceed what is left of the budget, as BERT's recipe does.

    A sequence in which no word is short enough gets its first one, so that it is not lost on the model.
    """
    rows = np.arange(len(ordinary))
    # A word that began before the sequence, or before a separator, has its first token here where its rest begins.
    before = np.pad(ordinary[:, :-1], ((0, 0), (1, 0)))
    starts = ordinary & (word_starts | ~before)
    words = np.where(ordinary, np.cumsum(starts, axis=1), 0)  # from 1; 0 is not a word
    sizes = np.zeros((len(ordinary), words.max(initial=0) + 1), dtype=np.int64)
    np.add.at(sizes, (np.broadcast_to(rows[:, None], words.shape), words), ordinary)
    keys = np.full(sizes.shape, 2.0)
    where = np.nonzero(starts)
    keys[where[0], words[where]] = order[where]
    ranked = np.argsort(keys, axis=1)
    taken = np.zeros(sizes.shape, dtype=np.bool_)
    spent = np.zeros(len(ordinary), dtype=np.int64)
    for word in ranked.T:
        size = sizes[rows, word]
        fits = (size > 0) & (spent + size <= budgets)
        taken[rows, word] |= fits
        spent += np.where(fits, size, 0)
        if (spent >= budgets).all():
            break
    empty = (spent == 0) & (budgets > 0)
    taken[rows[empty], ranked[empty, 0]] = True
    return taken[rows[:, None], words] & ordinary
