"""Mask tokens for masked language modelling (BERT, arXiv:1810.04805, section 3.1).

Letters in shapes: B sequences in the batch, S tokens per sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_models.crf import IGNORE_INDEX
from bert_models.errors import TrainingError
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_runtime.numerics import IntArray

__all__ = ["MaskedBatch", "MaskingSettings", "mask_sequences"]

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class MaskingSettings:
    """Masking probabilities, named as in `transformers.DataCollatorForLanguageModeling`; defaults are BERT's.

    Of the tokens that are not special, `mlm_probability` are predicted. Of these, `mask_replace_prob` become the mask
    token, `random_replace_prob` a random token, and the rest stay as they are.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    mlm_probability: float = 0.15
    """Fraction of the regular (not special) tokens that are predicted, in (0, 1]."""
    mask_replace_prob: float = 0.8
    """Fraction of the predicted tokens that become the mask token."""
    random_replace_prob: float = 0.1
    """Fraction of the predicted tokens that become a random regular token of the vocabulary."""
    whole_words: bool = False
    """Choose words and predict all of their tokens (whole-word masking, added to BERT's code in May 2019);
    `mlm_probability` still counts tokens."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise TrainingError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not 0 < self.mlm_probability <= 1:
            yield f"mlm_probability must lie in (0, 1], found {self.mlm_probability}"
        fractions = {
            "mask_replace_prob": self.mask_replace_prob,
            "random_replace_prob": self.random_replace_prob,
        }
        for name, value in fractions.items():
            if not 0 <= value <= 1:
                yield f"{name} must lie in [0, 1], found {value}"
        if all(0 <= value <= 1 for value in fractions.values()) and sum(fractions.values()) > 1 + 1e-9:
            yield (
                "mask_replace_prob and random_replace_prob must not exceed 1 together, found "
                f"{self.mask_replace_prob} and {self.random_replace_prob}"
            )


class MaskedBatch(NamedTuple):
    """Masked inputs and their labels, both int64 [B, S]; labels are `IGNORE_INDEX` where nothing is predicted."""

    input_ids: IntArray
    labels: IntArray


class _RandomNumbers(NamedTuple):
    """Uniform numbers in [0, 1)."""

    rounding: NDArray[np.float64]
    """Decides whether the number of predicted tokens is rounded up or down, [B]."""
    order: NDArray[np.float64]
    """The tokens with the smallest values are chosen, [B, S]."""
    action: NDArray[np.float64]
    """Decides between mask token, random token and no change, [B, S]."""
    substitute: NDArray[np.float64]
    """Selects the random token, [B, S]."""


def mask_sequences(
    input_ids: IntArray,
    word_starts: BoolArray | None,
    vocabulary: PretrainingVocabulary,
    settings: MaskingSettings,
    generators: Sequence[np.random.Generator],
) -> MaskedBatch:
    """Mask a padded batch, each sequence with its own random generator.

    Special tokens, padding included, are never chosen. Every sequence that has a regular token gets at least one
    label. The masks of a sequence depend on its generator alone, not on the rest of the batch. Generators that differ
    from epoch to epoch give dynamic masking (RoBERTa, arXiv:1907.11692, section 4.1).

    Args:
        input_ids: token ids, int64 [B, S].
        word_starts: True at the first token of every word, bool [B, S]; needed for whole-word masking only.
        vocabulary: ids of the mask, padding, special and regular tokens.
        settings: masking probabilities.
        generators: one per sequence, B in number.

    Returns:
        Masked inputs and labels, int64 [B, S] each.

    Raises:
        TrainingError: `settings.whole_words` is set, but `word_starts` is `None`.
    """
    order, action, substitute = np.zeros((3, *input_ids.shape))
    numbers = _RandomNumbers(np.zeros(len(input_ids)), order, action, substitute)
    lengths = (input_ids != vocabulary.pad_id).sum(axis=1)
    for index, (generator, length) in enumerate(zip(generators, lengths, strict=True)):
        numbers.rounding[index] = generator.random()
        for per_token in numbers[1:]:
            per_token[index, :length] = generator.random(length)
    return _mask(input_ids, word_starts, vocabulary, settings, numbers)


def _mask(
    input_ids: IntArray,
    word_starts: BoolArray | None,
    vocabulary: PretrainingVocabulary,
    settings: MaskingSettings,
    numbers: _RandomNumbers,
) -> MaskedBatch:
    regular = ~np.isin(input_ids, vocabulary.special_ids)
    budgets = _budgets(regular, settings.mlm_probability, numbers.rounding)
    if settings.whole_words:
        if word_starts is None:
            raise TrainingError("whole-word masking needs word_starts, the flags of where words start; found None")
        chosen = _choose_words(regular, word_starts, budgets, numbers.order)
    else:
        chosen = _choose_tokens(regular, budgets, numbers.order)
    labels = np.where(chosen, input_ids, IGNORE_INDEX)
    masked = chosen & (numbers.action < settings.mask_replace_prob)
    replaced = chosen & ~masked & (numbers.action < settings.mask_replace_prob + settings.random_replace_prob)
    substitutes = vocabulary.regular_ids[(numbers.substitute * len(vocabulary.regular_ids)).astype(np.int64)]
    return MaskedBatch(np.where(masked, vocabulary.mask_id, np.where(replaced, substitutes, input_ids)), labels)


def _budgets(regular: BoolArray, mlm_probability: float, rounding: NDArray[np.float64]) -> IntArray:
    """Return how many tokens of each sequence to choose, int64 [B].

    The product is rounded up or down at random, so that the fraction is right on average. BERT rounds to the nearest
    integer, which is biased for short sequences.
    """
    counts = regular.sum(axis=1)
    return np.minimum(np.maximum(np.floor(mlm_probability * counts + rounding), 1), counts).astype(np.int64)


def _choose_tokens(regular: BoolArray, budgets: IntArray, order: NDArray[np.float64]) -> BoolArray:
    """Choose `budgets` [B] regular tokens of each sequence in random order, bool [B, S]."""
    ranks = np.argsort(np.argsort(np.where(regular, order, 2.0), axis=1), axis=1)
    return regular & (ranks < budgets[:, None])


def _choose_words(
    regular: BoolArray, word_starts: BoolArray, budgets: IntArray, order: NDArray[np.float64]
) -> BoolArray:
    """Choose words in random order, bool [B, S]; skip a word that exceeds the rest of the budget, as BERT does.

    If every word of a sequence exceeds its budget, the first one in that order is chosen, so that the sequence has a
    label.
    """
    sequences = np.arange(len(regular))
    # A word that began in the sequence before, or before a separator, starts here at its first token that is here.
    after_regular = np.pad(regular[:, :-1], ((0, 0), (1, 0)))
    starts = regular & (word_starts | ~after_regular)
    words = np.where(regular, np.cumsum(starts, axis=1), 0)  # numbered from 1; 0 is not a word
    sizes = np.zeros((len(regular), words.max(initial=0) + 1), dtype=np.int64)
    np.add.at(sizes, (np.broadcast_to(sequences[:, None], words.shape), words), regular)
    keys = np.full(sizes.shape, 2.0)
    first_tokens = np.nonzero(starts)
    keys[first_tokens[0], words[first_tokens]] = order[first_tokens]
    ranked = np.argsort(keys, axis=1)
    chosen = np.zeros(sizes.shape, dtype=np.bool_)
    spent = np.zeros(len(regular), dtype=np.int64)
    for word in ranked.T:
        size = sizes[sequences, word]
        fits = (size > 0) & (spent + size <= budgets)
        chosen[sequences, word] |= fits
        spent += np.where(fits, size, 0)
        if (spent >= budgets).all():
            break
    empty = (spent == 0) & (budgets > 0)
    chosen[sequences[empty], ranked[empty, 0]] = True
    return chosen[sequences[:, None], words] & regular
