"""BERT's masking: how many tokens are chosen, which, and what replaces them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_models import TrainingError
from bert_models.crf import IGNORE_INDEX
from bert_models.pretraining import MaskingSettings, PretrainingVocabulary
from bert_models.pretraining.masking import MaskedBatch, mask_sequences
from bert_runtime.numerics import IntArray

from ..toy_corpus import toy_tokenizer

PAD, CLS, SEP, MASK = 0, 2, 3, 4


@pytest.fixture(scope="module")
def vocabulary(toy_vocab: Path) -> PretrainingVocabulary:
    return PretrainingVocabulary.from_tokenizer(toy_tokenizer(toy_vocab))


def batch(vocabulary: PretrainingVocabulary, rows: int, width: int, seed: int = 0) -> IntArray:
    """Sequences of random tokens between special ones; every other one is padded."""
    ids = np.random.default_rng(seed).choice(vocabulary.regular_ids, (rows, width))
    ids[:, 0], ids[:, -1], ids[:, width // 3] = CLS, SEP, SEP
    ids[1::2, -width // 4 - 1] = SEP
    ids[1::2, -width // 4 :] = PAD
    return ids


def mask_batch(
    ids: IntArray,
    starts: NDArray[np.bool_] | None,
    vocabulary: PretrainingVocabulary,
    settings: MaskingSettings,
    generator: np.random.Generator,
) -> MaskedBatch:
    """Mask every sequence with its own generator, spawned from the one given."""
    return mask_sequences(ids, starts, vocabulary, settings, generator.spawn(len(ids)))


def check(ids: IntArray, masked: MaskedBatch, vocabulary: PretrainingVocabulary) -> NDArray[np.bool_]:
    """Check what holds for any masking, and return which tokens were chosen."""
    chosen: NDArray[np.bool_] = masked.labels != IGNORE_INDEX
    assert np.array_equal(masked.labels[chosen], ids[chosen])
    assert np.array_equal(masked.input_ids[~chosen], ids[~chosen])
    assert not np.isin(ids[chosen], vocabulary.special_ids).any()
    assert set(np.unique(masked.input_ids[chosen])) <= {MASK, *vocabulary.regular_ids}
    return chosen


@pytest.mark.parametrize("whole_words", [False, True])
def test_masking_fractions_match_the_settings(vocabulary: PretrainingVocabulary, whole_words: bool) -> None:
    settings = MaskingSettings(whole_words=whole_words)
    generator = np.random.default_rng(1)
    ordinary = selected = hidden = replaced = kept = 0
    substitutes: list[IntArray] = []
    for number in range(10):
        ids = batch(vocabulary, 900, 128, number)
        starts = np.random.default_rng(number).random(ids.shape) < 0.7
        masked = mask_batch(ids, starts, vocabulary, settings, generator)
        chosen = check(ids, masked, vocabulary)
        ordinary += int((~np.isin(ids, vocabulary.special_ids)).sum())
        selected += int(chosen.sum())
        hidden += int((masked.input_ids == MASK).sum())
        kept += int((masked.input_ids == ids)[chosen].sum())
        replaced += int((chosen & (masked.input_ids != MASK) & (masked.input_ids != ids)).sum())
        substitutes.append(masked.input_ids[chosen & (masked.input_ids != MASK) & (masked.input_ids != ids)])
    assert ordinary > 950_000
    assert selected / ordinary == pytest.approx(0.15, abs=0.005)
    assert hidden / selected == pytest.approx(0.8, abs=0.005)
    # A random token is the original one with probability 1 / number of regular tokens.
    same = 0.1 / len(vocabulary.regular_ids)
    assert replaced / selected == pytest.approx(0.1 - same, abs=0.005)
    assert kept / selected == pytest.approx(0.1 + same, abs=0.005)
    counts = np.bincount(np.concatenate(substitutes), minlength=vocabulary.size)[vocabulary.regular_ids]
    assert counts.min() > 0.5 * counts.mean()
    assert counts.max() < 1.5 * counts.mean()


def test_every_position_is_equally_likely(vocabulary: PretrainingVocabulary) -> None:
    ids = np.tile(batch(vocabulary, 1, 40), (20_000, 1))
    chosen = mask_batch(ids, None, vocabulary, MaskingSettings(), np.random.default_rng(0)).labels != IGNORE_INDEX
    shares = chosen.mean(axis=0)[~np.isin(ids[0], vocabulary.special_ids)]
    assert np.abs(shares - 0.15).max() < 0.01


def test_whole_words_are_chosen_together(vocabulary: PretrainingVocabulary) -> None:
    ids = batch(vocabulary, 200, 96)
    starts = np.random.default_rng(5).random(ids.shape) < 0.5
    settings = MaskingSettings(whole_words=True)
    chosen = check(ids, mask_batch(ids, starts, vocabulary, settings, np.random.default_rng(0)), vocabulary)
    ordinary = ~np.isin(ids, vocabulary.special_ids)
    continues = ordinary[:, 1:] & ordinary[:, :-1] & ~starts[:, 1:]
    assert (chosen[:, 1:] == chosen[:, :-1])[continues].all()
    assert (chosen[:, 1:] != chosen[:, :-1])[~continues & ordinary[:, 1:] & ordinary[:, :-1]].any()
    budgets = np.ceil(0.15 * ordinary.sum(axis=1))
    assert (chosen.sum(axis=1) <= budgets).all()


def test_word_above_the_budget_is_chosen_only_if_alone(vocabulary: PretrainingVocabulary) -> None:
    # One word of 8 tokens and two of one; 15 % of ten tokens are one or two of them.
    ids = np.array([[CLS, *range(10, 20), SEP]])
    starts = np.array([[False, *[True] + [False] * 7, True, True, False]])
    settings = MaskingSettings(whole_words=True)
    for seed in range(50):
        chosen = mask_batch(ids, starts, vocabulary, settings, np.random.default_rng(seed)).labels[0] != IGNORE_INDEX
        assert not chosen[:9].any()
        assert 1 <= chosen.sum() <= 2
    only = np.array([[CLS, *range(10, 18), SEP]])
    chosen = mask_batch(only, starts[:, :10], vocabulary, settings, np.random.default_rng(0)).labels[0] != IGNORE_INDEX
    assert chosen.tolist() == [False, *[True] * 8, False]


def test_every_sequence_with_a_regular_token_has_a_label(vocabulary: PretrainingVocabulary) -> None:
    ids = np.array([[CLS, 10, SEP, PAD], [CLS, SEP, PAD, PAD]])
    labels = mask_batch(ids, None, vocabulary, MaskingSettings(), np.random.default_rng(0)).labels
    assert labels.tolist() == [[IGNORE_INDEX, 10, IGNORE_INDEX, IGNORE_INDEX], [IGNORE_INDEX] * 4]


def test_masks_depend_on_the_generators_only(vocabulary: PretrainingVocabulary) -> None:
    ids = batch(vocabulary, 8, 64)
    first, again, other = (
        mask_batch(ids, None, vocabulary, MaskingSettings(), np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.input_ids, again.input_ids)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.labels, other.labels)


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_do_not_depend_on_other_sequences(vocabulary: PretrainingVocabulary, whole_words: bool) -> None:
    settings = MaskingSettings(whole_words=whole_words)
    ids = batch(vocabulary, 6, 48)
    starts = np.random.default_rng(3).random(ids.shape) < 0.6
    order = [4, 1, 5]
    wide = np.pad(ids[order], ((0, 0), (0, 9)), constant_values=PAD)
    wide_starts = np.pad(starts[order], ((0, 0), (0, 9)))
    whole = mask_sequences(ids, starts, vocabulary, settings, [np.random.default_rng(row) for row in range(6)])
    parts = mask_sequences(wide, wide_starts, vocabulary, settings, [np.random.default_rng(row) for row in order])
    check(ids, whole, vocabulary)
    assert np.array_equal(parts.input_ids[:, :48], whole.input_ids[order])
    assert np.array_equal(parts.labels[:, :48], whole.labels[order])


def test_all_chosen_tokens_can_become_masks(vocabulary: PretrainingVocabulary) -> None:
    ids = batch(vocabulary, 8, 64)
    masked = mask_batch(
        ids, None, vocabulary, MaskingSettings(mask_replace_prob=1, random_replace_prob=0), np.random.default_rng(0)
    )
    assert (masked.input_ids[check(ids, masked, vocabulary)] == MASK).all()


def test_invalid_probabilities_are_rejected() -> None:
    with pytest.raises(
        TrainingError, match=r"mlm_probability must lie in \(0, 1\], found 0; mask_replace_prob must lie in"
    ):
        MaskingSettings(mlm_probability=0, mask_replace_prob=2)
    with pytest.raises(TrainingError, match="must not exceed 1 together"):
        MaskingSettings(mask_replace_prob=0.8, random_replace_prob=0.3)


def test_whole_word_masking_needs_word_starts(vocabulary: PretrainingVocabulary) -> None:
    with pytest.raises(TrainingError, match="where words start"):
        settings = MaskingSettings(whole_words=True)
        mask_batch(batch(vocabulary, 2, 9), None, vocabulary, settings, np.random.default_rng(0))
