"""Labelled files as batches of tensors."""

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

_GROUP_BATCHES = 50
"""Batches that are sorted together: enough for batches of one length, few enough that an epoch mixes all items."""


class TensorBatch(NamedTuple):
    """One right-padded batch: int64 [B, S] three times, targets [items, …], and the numbers of its sequences [B].

    A batch without such numbers is there to be computed, and does not count.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    targets: Tensor
    rows: Tensor


class ExampleDataset(Dataset[int]):
    """A labelled file, tokenized. `collate` turns item numbers into a batch.

    An item is what must be in one batch to have a loss: a window of a text, or the two texts of an example that are
    compared.
    """

    def __init__(
        self, task: Task, examples: Sequence[Example], tokenizer: TextTokenizer, objective: Objective | None = None
    ) -> None:
        """Targets are those of `objective`, by default the task's own."""
        self.task = task
        self.objective = objective or build_objective(task)
        self.examples = examples
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id
        windows = tokenizer.encode([each for example in examples for each in example.inputs])
        self.encodings: list[Encoding] = [window for each in windows for window in each]
        """Every sequence that the model reads."""
        self._num_windows = [len(each) for each in windows]
        self.items, owners = self._grouped()
        self.targets = [
            self.objective.target(examples[owner], self.encodings[item[0]], tokenizer)
            for item, owner in zip(self.items, owners, strict=True)
        ]

    def _grouped(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """The sequences of each item, and the example it was made from."""
        items: list[tuple[int, ...]] = []
        owners: list[int] = []
        counts, first = iter(self._num_windows), 0
        for owner, example in enumerate(self.examples):
            sizes = [next(counts) for _ in example.inputs]
            texts = len(sizes) > 1  # compared with each other, and so read in one window each
            found = [tuple(range(first, first + sum(sizes)))] if texts else [(first + i,) for i in range(sizes[0])]
            items.extend(found)
            owners.extend([owner] * len(found))
            first += sum(sizes)
        return items, owners

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: int) -> int:
        return item

    def lengths(self) -> list[int]:
        """Tokens of the longest sequence of every item."""
        return [max(len(self.encodings[row]) for row in item) for item in self.items]

    def collate(self, items: Sequence[int]) -> TensorBatch:
        """The items as one batch, as wide as the longest of their sequences; no items make one that does not count."""
        if not len(items):
            return self.collate([0])._replace(rows=torch.tensor([], dtype=torch.int64))
        rows = [row for item in items for row in self.items[item]]
        batch = pad([self.encodings[row] for row in rows], self.pad_token_id)
        targets = stack_targets([self.targets[item] for item in items])
        ids, mask, segments = map(torch.from_numpy, batch)
        return TensorBatch(ids, mask, segments, targets, torch.tensor(rows))

    def split(self, batch: TensorBatch, computed: Tensor) -> dict[int, FloatArray]:
        """What the model computed for a batch, by the numbers of its sequences, as the runtime sees it."""
        rows = batch.rows.tolist()
        chosen = self.task.graph_output(computed, batch.input_ids)  # before the whole vocabulary is copied
        return dict(
            zip(rows, self.task.split(chosen.float().cpu().numpy(), [self.encodings[row] for row in rows]), strict=True)
        )

    def outputs(self, rows: dict[int, FloatArray]) -> list[Outputs]:
        """The outputs of all inputs, of what the model computed for each sequence."""
        inputs = [each for example in self.examples for each in example.inputs]
        ends = np.cumsum(self._num_windows).tolist()
        return [
            Outputs(
                value,
                tuple(self.encodings[end - count : end]),
                tuple(rows[i] for i in range(end - count, end)),
                self.tokenizer,
            )
            for value, count, end in zip(inputs, self._num_windows, ends, strict=True)
        ]


class LengthGroupedSampler(Sampler[int]):
    """Items in an order of which every `batch_size` are of like length, in batches that are shuffled.

    Shuffled items are cut into groups of 50 batches, and each group is sorted by length. The order depends on `seed`
    and the epoch's number alone, as that of `DistributedSampler` does.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The loop calls this before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self))
        whole = len(order) // self.batch_size * self.batch_size
        size = _GROUP_BATCHES * self.batch_size
        groups = [order[first : min(first + size, whole)] for first in range(0, whole, size)]
        ordered = [group[np.argsort(self.lengths[group], kind="stable")] for group in groups]
        batches = np.concatenate([order[:0], *ordered]).reshape(-1, self.batch_size)
        # What is left over for the last, smaller batch is a random choice, and not always the longest.
        return iter([*random.permutation(batches).flatten().tolist(), *order[whole:].tolist()])


class DistributedBatchSampler(Sampler[list[int]]):
    """This process's part of every batch: `sampler`'s items in order, `batch_size` for each of `processes`.

    What is left over for the last batch is divided evenly, and some of the processes may get nothing of it.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, process_group: ProcessGroup) -> None:
        self.sampler = sampler
        """Lightning tells it the epoch."""
        self.size = batch_size * process_group.world_size
        self.process_group = process_group
        self.first = 0
        """The batch that the next epoch to be read begins with."""

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.size)  # type: ignore[arg-type] # both kinds have a length

    def __iter__(self) -> Iterator[list[int]]:
        items = list(self.sampler)
        for first in range(self.first * self.size, len(items), self.size):
            parts = np.array_split(items[first : first + self.size], self.process_group.world_size)
            yield parts[self.process_group.rank].tolist()


class ResumableLoader(DataLoader[TensorBatch]):
    """The batches of one epoch, from where an interrupted run stopped; Lightning saves the place."""

    def __init__(self, examples: ExampleDataset, batches: DistributedBatchSampler) -> None:
        # The stubs take a loader to give the dataset's items; `collate` makes batches of these.
        super().__init__(examples, batch_sampler=batches, collate_fn=examples.collate)  # type: ignore[arg-type]
        self._shared = batches
        self._next = 0

    def __iter__(self) -> Iterator[TensorBatch]:  # type: ignore[override] # it need not be torch's own
        self._shared.first = self._next
        for number, batch in enumerate(super().__iter__(), start=self._next + 1):
            self._next = number % len(self)  # which nobody waits for after the last batch
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The number of the batch that comes next."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The inverse of `state_dict`."""
        self._next = state["next"]


def train_loader(
    examples: ExampleDataset,
    batch_size: int,
    seed: int,
    *,
    sort_by_length: bool = False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> ResumableLoader:
    """Shuffled batches; the order of an epoch depends on `seed` and the epoch's number alone, so it can be resumed.

    `sort_by_length` puts items of like length into one batch, see `LengthGroupedSampler`. Each process has
    its part of the batches that one would have for all their sizes together.
    """
    sampler: Sampler[int] = (
        LengthGroupedSampler(examples.lengths(), batch_size * process_group.world_size, seed)
        if sort_by_length
        else DistributedSampler(examples, num_replicas=1, rank=0, shuffle=True, seed=seed)
    )
    return ResumableLoader(examples, DistributedBatchSampler(sampler, batch_size, process_group))


def dev_loader(examples: ExampleDataset, process_group: ProcessGroup = SINGLE_PROCESS) -> DataLoader[TensorBatch]:
    """The same length-sorted batches in every epoch; `TensorBatch.rows` says where each sequence belongs.

    Every process has a share of them; where they cannot be shared evenly, some are there twice.
    """
    batches = list(length_sorted_batches(examples.lengths(), _DEV_BATCH_TOKENS))
    shared = [batches[number] for number in process_group.shard_indices(len(batches))]
    # The stubs take a loader to give the dataset's items; `collate` makes batches of these.
    return DataLoader(examples, batch_sampler=shared, collate_fn=examples.collate)  # type: ignore[arg-type]
