"""Padded batches for each pre-training objective, read from a token cache.

Letters in shapes: B sequences in the batch, S tokens per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bert_models.crf import IGNORE_INDEX
from bert_models.errors import TrainingError
from bert_models.pretraining.masking import MaskingSettings, mask_sequences
from bert_models.pretraining.packing import PackedSequences, pack_next_sentences, pack_sentence_order, pack_sentences
from bert_models.pretraining.token_cache import TokenCache
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_runtime.numerics import IntArray

__all__ = ["OBJECTIVES", "BatchSettings", "PretrainingBatch", "PretrainingBatches", "batch_loader"]

OBJECTIVES = ("mlm", "mlm+nsp", "mlm+sop", "rtd")
"""Pre-training objectives.

`mlm`: masked language modelling (RoBERTa, arXiv:1907.11692); `mlm+nsp`: with next-sentence prediction (BERT,
arXiv:1810.04805); `mlm+sop`: with sentence-order prediction (ALBERT, arXiv:1909.11942); `rtd`: replaced-token detection
(ELECTRA, arXiv:2003.10555).
"""

_ORDER_KEY, _MASKING_KEY = 2, 3
"""Seed keys that keep the random numbers of one epoch apart; packing uses 1."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """Settings of the batches of a token cache.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    objective: str = "mlm"
    """One of `OBJECTIVES`."""
    max_tokens: int = 128
    """Maximum tokens of a sequence, special tokens included."""
    batch_size: int = 32
    """Sequences per batch and rank."""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    """Masking probabilities."""
    static_masking: bool = False
    """Reuse the sequences and masks of epoch 0 in every epoch, in another order."""
    seed: int = 0
    """Seed of packing, order and masks, in [0, 2**32)."""

    def __post_init__(self) -> None:
        problems = []
        if self.objective not in OBJECTIVES:
            problems.append(f"objective must be one of {', '.join(OBJECTIVES)}, found {self.objective!r}")
        if self.batch_size < 1:
            problems.append(f"batch_size must be at least 1, found {self.batch_size}")
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie in [0, 2**32), found {self.seed}")
        if problems:
            raise TrainingError("; ".join(problems))


class PretrainingBatch(NamedTuple):
    """A right-padded batch; all tensors are int64."""

    input_ids: Tensor
    """Masked token ids, [B, S]."""
    attention_mask: Tensor
    """1 at tokens, 0 at padding, [B, S]."""
    token_type_ids: Tensor
    """Token types, [B, S]."""
    labels: Tensor
    """Original ids of the predicted tokens, -100 elsewhere, [B, S]. For `rtd`, these are the generator's labels; those
    of the discriminator follow from the generator's samples."""
    sentence_labels: Tensor | None
    """For pairs, [B]: 0 for texts in their true order, 1 for a random second text or swapped texts."""
    step_items: dict[str, Tensor] | None = None
    """Sums of `num_items` over all batches of an optimizer step, where it has several, [] each."""

    def num_items(self) -> dict[str, Tensor]:
        """Return the predictions that each loss is the mean over, by its name in `PretrainingModel.measure`, [] each.

        They follow from the batch alone, so that those of a whole step are known before its first batch is computed.
        """
        predicted, tokens = (self.labels != IGNORE_INDEX).sum(), self.attention_mask.sum()
        return {
            **dict.fromkeys(("mlm_loss", "soft_loss"), predicted),
            **dict.fromkeys(("rtd_loss", "hidden_loss", "attention_loss"), tokens),
            "sentence_loss": torch.tensor(len(self.input_ids)),
        }


class PretrainingBatches(Dataset[PretrainingBatch]):
    """The batches of one epoch for one rank; an item is a batch.

    All random numbers follow from the seed, the epoch and the index of the sequence, so an epoch can be started again
    in any process. Several ranks share the batches that a single rank would have with all their batch sizes together,
    masks included. The sequences of an incomplete last batch are divided evenly; fewer than `world_size` remaining
    sequences are skipped in that epoch.
    """

    def __init__(
        self,
        cache: TokenCache,
        documents: IntArray,
        vocabulary: PretrainingVocabulary,
        settings: BatchSettings,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Prepare epoch 0.

        Args:
            cache: the tokenized corpus.
            documents: indices of the documents to read, int64 [D].
            vocabulary: ids of special and regular tokens.
            settings: settings of the batches.
            rank: index of this process.
            world_size: number of processes that share each batch.

        Raises:
            TrainingError: the rank is out of range, the vocabulary does not match the cache, or there are too few
                sequences or too few tokens per sequence.
        """
        if not 0 <= rank < world_size:
            raise TrainingError(f"expected a rank from 0 to {world_size - 1}, found {rank}")
        if vocabulary.size > np.iinfo(cache.tokens.dtype).max + 1:
            raise TrainingError(
                f"{cache.folder}: holds {cache.tokens.dtype} tokens, the vocabulary has {vocabulary.size} entries; "
                "they do not belong together"
            )
        self.cache, self.documents, self.vocabulary, self.settings = cache, documents, vocabulary, settings
        self.rank, self.world_size = rank, world_size
        self._packed: PackedSequences | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Pack and shuffle the sequences of an epoch. Afterwards, a data loader needs a new iterator."""
        self.epoch = epoch
        if self._packed is None or not self.settings.static_masking:
            self._packed = self._pack(0 if self.settings.static_masking else epoch)
        self._order = np.random.default_rng([self.settings.seed, epoch, _ORDER_KEY]).permutation(len(self._packed))
        if not len(self):
            raise TrainingError(
                f"{self.cache.folder}: {len(self.documents)} documents make {len(self._packed)} sequences; "
                f"expected at least {self.world_size}, one for each rank"
            )

    def _pack(self, epoch: int) -> PackedSequences:
        settings, template = self.settings, self.vocabulary.template
        pair_tokens = settings.max_tokens - template.num_special_pair
        if settings.objective == "mlm+nsp":
            return pack_next_sentences(self.cache, self.documents, pair_tokens, settings.seed, epoch)
        if settings.objective == "mlm+sop":
            return pack_sentence_order(self.cache, self.documents, pair_tokens, settings.seed, epoch)
        return pack_sentences(
            self.cache, self.documents, settings.max_tokens - template.num_special, settings.seed, epoch,
            cross_documents=settings.objective != "rtd",
        )  # fmt: skip

    @property
    def num_sequences(self) -> int:
        """Number of sequences of this epoch, over all ranks."""
        return len(self._order)

    def __len__(self) -> int:
        complete, remaining = divmod(self.num_sequences, self.settings.batch_size * self.world_size)
        return complete + (remaining >= self.world_size)

    def __getitem__(self, index: int) -> PretrainingBatch:
        if not 0 <= index < len(self):
            raise IndexError(index)
        size = self.settings.batch_size * self.world_size
        shared = self._order[index * size : (index + 1) * size]
        return self._build_batch(np.array_split(shared, self.world_size)[self.rank])

    def _build_batch(self, indices: IntArray) -> PretrainingBatch:
        """Frame, pad and mask the sequences with these indices, int64 [B]."""
        assert self._packed is not None
        sequences = [self._build_sequence(self._packed.sequence(index)) for index in indices]
        ids = _pad([ids for ids, _, _ in sequences], self.vocabulary.pad_id)
        types = _pad([types for _, types, _ in sequences], 0)
        mask = _pad([np.ones_like(ids) for ids, _, _ in sequences], 0)
        word_starts = _pad([starts for _, _, starts in sequences], 0).astype(np.bool_)
        settings = self.settings
        seed_key = (settings.seed,) if settings.static_masking else (settings.seed, self.epoch)
        generators = [np.random.default_rng([*seed_key, int(index), _MASKING_KEY]) for index in indices]
        masked = mask_sequences(ids, word_starts, self.vocabulary, settings.masking, generators)
        sentence_labels = None if self._packed.labels is None else torch.from_numpy(self._packed.labels[indices])
        inputs, labels = map(torch.from_numpy, masked)
        return PretrainingBatch(inputs, torch.from_numpy(mask), torch.from_numpy(types), labels, sentence_labels)

    def _build_sequence(self, spans: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return token ids, token types and word starts of a sequence with its special tokens, int64 [S] each."""
        assert self._packed is not None
        template, is_pair = self.vocabulary.template, self._packed.labels is not None
        between = template.middle if is_pair else (template.separator,)
        ids = [np.array(template.prefix)]
        starts = [np.zeros(len(template.prefix), dtype=np.bool_)]
        for index, (begin, end) in enumerate(spans):
            if index:
                ids.append(np.array(between))
                starts.append(np.zeros(len(between), dtype=np.bool_))
            ids.append(self.cache.tokens[begin:end].astype(np.int64))
            starts.append(self.cache.word_starts[begin:end])
        ids.append(np.array(template.suffix))
        starts.append(np.zeros(len(template.suffix), dtype=np.bool_))
        sequence = np.concatenate(ids)
        types = np.zeros_like(sequence)
        if is_pair:
            types[sum(map(len, ids[:3])) :] = template.second_type
        return sequence, types, np.concatenate(starts).astype(np.int64)


def batch_loader(batches: PretrainingBatches, indices: Sequence[int] | None = None) -> "DataLoader[PretrainingBatch]":
    """Return a loader of batches. It needs a new iterator after every `set_epoch`.

    Args:
        batches: the batches.
        indices: which of them to load; by default all in order.
    """
    return DataLoader(batches, batch_size=None, sampler=indices)


def _pad(sequences: list[IntArray], value: int) -> IntArray:
    """Right-pad arrays [S_i] with `value` into one array, int64 [B, S]."""
    padded = np.full((len(sequences), max(map(len, sequences))), value, dtype=np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded
