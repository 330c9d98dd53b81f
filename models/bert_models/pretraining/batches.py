"""Padded batches of a token cache for each pre-training objective.

Letters in shapes: B sequences in the batch, S tokens per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bert_models.errors import TrainingError
from bert_models.pretraining.masking import MaskingSettings, mask_sequences
from bert_models.pretraining.packing import Plan, pack_next_sentences, pack_sentence_order, pack_sentences
from bert_models.pretraining.token_cache import TokenCache
from bert_models.pretraining.vocabulary import PretrainingVocabulary
from bert_runtime.numerics import IntArray

__all__ = ["OBJECTIVES", "BatchSettings", "PretrainingBatch", "PretrainingBatches", "batch_loader"]

OBJECTIVES = ("mlm", "mlm+nsp", "mlm+sop", "rtd")
"""Masked language modelling alone, with next-sentence or sentence-order prediction, and replaced-token detection."""

_ORDER, _MASKS = 2, 3
"""Tell the generators of one epoch apart."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What is made of a token cache."""

    objective: str = "mlm"
    max_tokens: int = 128
    """Longest sequence, special tokens included."""
    batch_size: int = 32
    """Sequences in the batch of one rank."""
    cross_documents: bool = True
    """Of `mlm`: sequences may go on with the next document. Those of `rtd` end with theirs."""
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    static_masking: bool = False
    """The same sequences with the same masks in every epoch, in another order."""
    seed: int = 0

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
    """One right-padded batch, all int64.

    `input_ids`, `attention_mask` (1 at tokens, 0 at padding), `token_type_ids` and `labels` are [B, S]. `labels` holds
    the hidden tokens, -100 elsewhere; of replaced-token detection these are what the generator learns, and from its
    answers the labels of the discriminator follow. `sentence_labels` [B] is there for pairs alone: 0 for texts in their
    true order, 1 for a random second or swapped texts.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    labels: Tensor
    sentence_labels: Tensor | None


class PretrainingBatches(Dataset[PretrainingBatch]):
    """The batches of one epoch for one rank; an item is a batch.

    All that is random follows from the seed, the epoch and the sequence's number, so an epoch can be begun again, in
    any process. Several ranks share the batches that one rank would have for all their sizes together, masks included;
    what is left over for the last one is divided evenly, but fewer than `world_size` sequences are not seen in that
    epoch.
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
        """Begins with epoch 0; raises `TrainingError` where there is too little data or room."""
        if not 0 <= rank < world_size:
            raise TrainingError(f"expected a rank from 0 to {world_size - 1}, found {rank}")
        if vocabulary.size > np.iinfo(cache.tokens.dtype).max + 1:
            raise TrainingError(
                f"{cache.folder}: holds {cache.tokens.dtype} tokens, the vocabulary has {vocabulary.size} entries; "
                "they do not belong together"
            )
        self.cache, self.documents, self.vocabulary, self.settings = cache, documents, vocabulary, settings
        self.rank, self.world_size = rank, world_size
        self._plan: Plan | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Plans another epoch. A data loader must be asked for a new iterator afterwards."""
        self.epoch = epoch
        if self._plan is None or not self.settings.static_masking:
            self._plan = self._packed(0 if self.settings.static_masking else epoch)
        self._order = np.random.default_rng([self.settings.seed, epoch, _ORDER]).permutation(len(self._plan))
        if not len(self):
            raise TrainingError(
                f"{self.cache.folder}: {len(self.documents)} documents make {len(self._plan)} sequences; "
                f"expected at least {self.world_size}, one for each rank"
            )

    def _packed(self, epoch: int) -> Plan:
        settings, frame = self.settings, self.vocabulary.template
        arguments = (settings.seed, epoch)
        pair_room, room = settings.max_tokens - frame.num_special_pair, settings.max_tokens - frame.num_special
        if settings.objective == "mlm+nsp":
            return pack_next_sentences(self.cache, self.documents, pair_room, *arguments)
        if settings.objective == "mlm+sop":
            return pack_sentence_order(self.cache, self.documents, pair_room, *arguments)
        cross = settings.cross_documents and settings.objective == "mlm"
        return pack_sentences(self.cache, self.documents, room, *arguments, cross_documents=cross)

    @property
    def num_sequences(self) -> int:
        """Sequences of this epoch, of all ranks."""
        return len(self._order)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_sequences, self.settings.batch_size * self.world_size)
        return whole + (rest >= self.world_size)

    def __getitem__(self, index: int) -> PretrainingBatch:
        if not 0 <= index < len(self):
            raise IndexError(index)
        size = self.settings.batch_size * self.world_size
        shared = self._order[index * size : (index + 1) * size]
        return self._batch(np.array_split(shared, self.world_size)[self.rank])

    def _batch(self, sequences: IntArray) -> PretrainingBatch:
        assert self._plan is not None
        rows = [self._row(self._plan.sequence(each)) for each in sequences]
        ids = _padded([ids for ids, _, _ in rows], self.vocabulary.pad_id)
        types = _padded([types for _, types, _ in rows], 0)
        mask = _padded([np.ones_like(ids) for ids, _, _ in rows], 0)
        starts = _padded([starts for _, _, starts in rows], 0).astype(np.bool_)
        settings = self.settings
        place = (settings.seed,) if settings.static_masking else (settings.seed, self.epoch)
        generators = [np.random.default_rng([*place, int(each), _MASKS]) for each in sequences]
        masked = mask_sequences(ids, starts, self.vocabulary, settings.masking, generators)
        labels = None if self._plan.labels is None else torch.from_numpy(self._plan.labels[sequences])
        inputs, targets = map(torch.from_numpy, masked)
        return PretrainingBatch(inputs, torch.from_numpy(mask), torch.from_numpy(types), targets, labels)

    def _row(self, spans: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Token ids, token types and word starts of a sequence with its special tokens, int64 [S] each."""
        assert self._plan is not None
        frame, is_pair = self.vocabulary.template, self._plan.labels is not None
        between = frame.middle if is_pair else (frame.separator,)
        ids = [np.array(frame.prefix)]
        starts = [np.zeros(len(frame.prefix), dtype=np.bool_)]
        for place, (begin, end) in enumerate(spans):
            if place:
                ids.append(np.array(between))
                starts.append(np.zeros(len(between), dtype=np.bool_))
            ids.append(self.cache.tokens[begin:end].astype(np.int64))
            starts.append(self.cache.word_starts[begin:end])
        ids.append(np.array(frame.suffix))
        starts.append(np.zeros(len(frame.suffix), dtype=np.bool_))
        row = np.concatenate(ids)
        types = np.zeros_like(row)
        if is_pair:
            types[sum(map(len, ids[:3])) :] = frame.second_type
        return row, types, np.concatenate(starts).astype(np.int64)


def batch_loader(
    batches: PretrainingBatches, numbers: Sequence[int] | None = None, workers: int = 0
) -> "DataLoader[PretrainingBatch]":
    """The batches in order, or those of `numbers`, made ahead by `workers` processes.

    Ask for a new iterator after every `set_epoch`.
    """
    return DataLoader(batches, batch_size=None, sampler=numbers, num_workers=workers)


def _padded(rows: list[IntArray], value: int) -> IntArray:
    """Rows [S_i] as one array [B, S], with `value` after those that are shorter."""
    padded = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
