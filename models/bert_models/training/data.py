"""Batches of a labelled file: tokenization, sampling, and data loaders that an interrupted run can resume.

Letters in shapes: B sequences in the batch, S tokens per sequence.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from bert_models.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from bert_models.training.objectives import Objective, build_objective, stack_targets
from bert_runtime.batching import length_sorted_batches
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Example, Outputs, Task
from bert_runtime.tokenization import TextTokenizer, pad
from bert_runtime.tokenization.shared_pairs import encode_pairs

__all__ = [
    "DistributedBatchSampler",
    "ExampleDataset",
    "LengthGroupedSampler",
    "ResumableLoader",
    "TensorBatch",
    "dev_loader",
    "train_loader",
]

_DEV_BATCH_TOKENS = 4096
"""Maximum padded tokens of a dev batch."""

_BATCHES_PER_GROUP = 50
"""Batches that `LengthGroupedSampler` sorts together: enough for batches of one length, few enough to mix an epoch."""


class TensorBatch(NamedTuple):
    """A right-padded batch of the training loop."""

    input_ids: Tensor
    """Token ids, int64 [B, S]."""
    attention_mask: Tensor
    """1 at tokens, 0 at padding, int64 [B, S]."""
    token_type_ids: Tensor
    """Token types, int64 [B, S]."""
    targets: Tensor
    """Targets of the objective, [items, …]."""
    sequence_indices: Tensor
    """Indices into `ExampleDataset.encodings`, int64 [B]; empty for a batch that is computed but does not count."""


class ExampleDataset(Dataset[int]):
    """A tokenized labelled file; `collate` turns item indices into a batch.

    An item holds the sequences that must be in one batch to have a loss: one window of a text, or all texts of an
    example that are compared with each other.
    """

    def __init__(
        self,
        task: Task,
        examples: Sequence[Example],
        tokenizer: TextTokenizer,
        objective: Objective | None = None,
        *,
        evaluated: bool = False,
    ) -> None:
        """Tokenize the examples and build their targets.

        Args:
            task: the task, which splits outputs into windows.
            examples: inputs and labels.
            tokenizer: splits each text into windows.
            objective: builds the targets; by default the objective of the task.
            evaluated: read long documents of pairs in windows if the task does, as the runtime; a loss compares the
                texts of an example, which are truncated and in one batch.
        """
        self.task = task
        self._splits_pairs = evaluated and task.repeats_texts and task.splits_long_inputs
        self.objective = objective or build_objective(task)
        self.examples = examples
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id
        texts = task.prefixed([text for example in examples for text in example.inputs])
        windows = encode_pairs(tokenizer, texts, windows=True) if self._splits_pairs else tokenizer.encode(texts)
        self.encodings: list[Encoding] = [window for text_windows in windows for window in text_windows]
        """All sequences: the windows of all texts, in the order of the file."""
        self._num_windows = [len(text_windows) for text_windows in windows]
        self.items, example_indices = self._group_windows()
        self.targets = [
            self.objective.target(examples[example], self.encodings[item[0]], tokenizer)
            for item, example in zip(self.items, example_indices, strict=True)
        ]

    def _group_windows(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """Return the sequence indices of each item, and the index of its example."""
        items: list[tuple[int, ...]] = []
        example_indices: list[int] = []
        counts, first = iter(self._num_windows), 0
        for index, example in enumerate(self.examples):
            sizes = [next(counts) for _ in example.inputs]
            sequences = range(first, first + sum(sizes))
            are_compared = len(sizes) > 1 and not self._splits_pairs  # several texts, each of which has one window
            example_items = [tuple(sequences)] if are_compared else [(sequence,) for sequence in sequences]
            items.extend(example_items)
            example_indices.extend([index] * len(example_items))
            first = sequences.stop
        return items, example_indices

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> int:
        return item

    def lengths(self) -> list[int]:
        """Return the length of every item's longest sequence, in tokens."""
        return [max(len(self.encodings[sequence]) for sequence in item) for item in self.items]

    def padded_tokens(self) -> list[int]:
        """Return the number of padded tokens of every item's sequences."""
        return [len(item) * length for item, length in zip(self.items, self.lengths(), strict=True)]

    def collate(self, items: Sequence[int]) -> TensorBatch:
        """Return the items as one batch, padded to their longest sequence.

        Without items, return a batch that is computed but does not count.
        """
        if not len(items):
            return self.collate([0])._replace(sequence_indices=torch.tensor([], dtype=torch.int64))
        sequences = [sequence for item in items for sequence in self.items[item]]
        batch = pad([self.encodings[sequence] for sequence in sequences], self.pad_token_id)
        targets = stack_targets([self.targets[item] for item in items])
        ids, mask, types = map(torch.from_numpy, batch)
        return TensorBatch(ids, mask, types, targets, torch.tensor(sequences))

    def split(self, batch: TensorBatch, outputs: Tensor) -> dict[int, FloatArray]:
        """Split a batch's raw outputs [B, …] into those of its sequences, by sequence index, as the runtime sees them.

        Padding is removed.
        """
        sequences = batch.sequence_indices.tolist()
        graph_output = self.task.graph_output(outputs, batch.input_ids)  # before the whole vocabulary is copied
        arrays = self.task.split(graph_output.float().cpu().numpy(), [self.encodings[index] for index in sequences])
        return dict(zip(sequences, arrays, strict=True))

    def outputs(self, arrays: dict[int, FloatArray]) -> list[Outputs]:
        """Return the outputs of all texts, from those of all sequences by index, see `split`."""
        texts = [text for example in self.examples for text in example.inputs]
        ends = np.cumsum(self._num_windows).tolist()
        return [
            Outputs(
                text,
                tuple(self.encodings[end - count : end]),
                tuple(arrays[index] for index in range(end - count, end)),
                self.tokenizer,
            )
            for text, count, end in zip(texts, self._num_windows, ends, strict=True)
        ]


class LengthGroupedSampler(Sampler[int]):
    """Sample items so that consecutive `batch_size` ones have similar lengths; the batches are shuffled.

    Shuffled items are cut into groups of 50 batches, and each group is sorted by length. The order depends on `seed`
    and the epoch only, as that of `DistributedSampler` does.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch; Lightning calls this before each."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self))
        num_batched = len(order) // self.batch_size * self.batch_size
        size = _BATCHES_PER_GROUP * self.batch_size
        groups = [order[first : min(first + size, num_batched)] for first in range(0, num_batched, size)]
        ordered = [group[np.argsort(self.lengths[group], kind="stable")] for group in groups]
        batches = np.concatenate([order[:0], *ordered]).reshape(-1, self.batch_size)
        # The remainder, which makes a last, smaller batch, is a random choice, not always the longest items.
        return iter([*random.permutation(batches).flatten().tolist(), *order[num_batched:].tolist()])


class DistributedBatchSampler(Sampler[list[int]]):
    """This process's part of every batch: `batch_size` items per process, in the sampler's order.

    The items of an incomplete last batch are divided evenly; some processes may get none.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, process_group: ProcessGroup) -> None:
        self.sampler = sampler
        """Orders the items; Lightning calls its `set_epoch`."""
        self.global_batch_size = batch_size * process_group.world_size
        self.process_group = process_group
        self.first_batch = 0
        """Index of the batch that the next epoch starts with."""

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.global_batch_size)  # type: ignore[arg-type] # both kinds have a length

    def __iter__(self) -> Iterator[list[int]]:
        items = list(self.sampler)
        for first in range(self.first_batch * self.global_batch_size, len(items), self.global_batch_size):
            parts = np.array_split(items[first : first + self.global_batch_size], self.process_group.world_size)
            yield parts[self.process_group.rank].tolist()


class ResumableLoader(DataLoader[TensorBatch]):
    """Load the batches of an epoch, from where an interrupted run stopped; Lightning saves the position."""

    def __init__(self, examples: ExampleDataset, batches: DistributedBatchSampler) -> None:
        # The stubs expect the dataset's items from a loader; `collate` turns them into batches.
        super().__init__(examples, batch_sampler=batches, collate_fn=examples.collate)  # type: ignore[arg-type]
        self._batches = batches
        self._next = 0

    def __iter__(self) -> Iterator[TensorBatch]:  # type: ignore[override] # torch's iterator class is not needed
        self._batches.first_batch = self._next
        for number, batch in enumerate(super().__iter__(), start=self._next + 1):
            self._next = number % len(self)  # set before `yield`: nobody resumes this generator after the last batch
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the index of the next batch."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the batch that `state_dict` returned."""
        self._next = state["next"]


def train_loader(
    examples: ExampleDataset,
    batch_size: int,
    seed: int,
    *,
    sort_by_length: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> ResumableLoader:
    """Return a loader of shuffled batches.

    The order depends on `seed` and the epoch only, so an epoch can be resumed. Several processes share the batches
    that a single process would have with all their batch sizes together.

    Args:
        examples: the training set.
        batch_size: items per batch and process.
        seed: seed of the order.
        sort_by_length: batch items of similar length, see `LengthGroupedSampler`.
        process_group: the processes that share each batch.
    """
    sampler: Sampler[int] = (
        LengthGroupedSampler(examples.lengths(), batch_size * process_group.world_size, seed)
        if sort_by_length
        else DistributedSampler(examples, num_replicas=1, rank=0, shuffle=True, seed=seed)
    )
    return ResumableLoader(examples, DistributedBatchSampler(sampler, batch_size, process_group))


def dev_loader(examples: ExampleDataset, process_group: ProcessGroup = SINGLE_PROCESS) -> DataLoader[TensorBatch]:
    """Return a loader of length-sorted batches, the same in every epoch; `sequence_indices` identify the sequences.

    Every process loads a share of the batches; if they cannot be shared evenly, some are loaded twice.
    """
    batches = list(length_sorted_batches(examples.padded_tokens(), _DEV_BATCH_TOKENS))
    share = [batches[index] for index in process_group.shard_indices(len(batches))]
    # The stubs expect the dataset's items from a loader; `collate` turns them into batches.
    return DataLoader(examples, batch_sampler=share, collate_fn=examples.collate)  # type: ignore[arg-type]
