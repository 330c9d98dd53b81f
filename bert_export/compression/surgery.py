"""Cut candidates out of the uncompressed model, by importance measured on training rows."""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bert_export.calibration_texts import spread
from bert_export.compression.candidates import Candidate
from bert_export.compression.data import SearchData
from bert_models import Checkpoint, TaskModel, load_model, open_checkpoint, save_model
from bert_models.compression import (
    cut_vocabulary,
    is_savable,
    keep_embeddings,
    keep_layers,
    keep_neurons,
    layer_influence,
    most_important,
    neuron_importance,
    used_ids,
)
from bert_models.pruned_checkpoint import set_token_pruning
from bert_models.training.data import ExampleDataset, dev_loader
from bert_models.training.run import training_examples
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.records import Record
from bert_runtime.tasks import Task

__all__ = ["Surgeon", "cut_checkpoint_vocabulary"]

_NUM_ROWS = 256
"""Training rows that importance is measured on."""

_MAX_LOSS_TOKENS = 16384
"""Tokens that a candidate's loss is measured on before any training, about: all rows of 64 tokens, fewer of more."""


class Surgeon:
    """Measures the importance of layers and neurons once, and cuts candidates out of the model.

    Args:
        source: the uncompressed checkpoint.
        task: its task.
        data: rows with labels.
        max_tokens: maximum length of a sequence in tokens; by default the checkpoint's.
    """

    def __init__(self, source: Checkpoint, task: Task, data: SearchData, max_tokens: int | None) -> None:
        self.source, self.max_tokens = source, max_tokens or source.max_tokens
        self.model = load_model(source, task)
        tokenizer = source.text_tokenizer(max_tokens, task.windows)
        examples = training_examples(task, tokenizer, spread(list(data.train), _NUM_ROWS))
        rows = ExampleDataset(task, examples, tokenizer)
        self.rows = rows
        num_tokens = sum(map(len, rows.encodings))
        kept = spread(examples, max(1, _NUM_ROWS * _MAX_LOSS_TOKENS // max(num_tokens, 1)))
        self._loss_rows = ExampleDataset(task, kept, tokenizer)
        self.influence = layer_influence(self.model, dev_loader(rows))
        start = time.monotonic()
        self.neurons = neuron_importance(self.model, dev_loader(rows), rows.objective.loss)
        self.row_s = (time.monotonic() - start) / len(examples)
        """Seconds that a training step of the uncompressed model takes for each row, about."""

    @torch.no_grad()
    def loss(self, candidate: Candidate) -> float:
        """Return the loss of a candidate on rows that importance was measured on, before any training."""
        model, total, num_items = self.cut(candidate), 0.0, 0
        for batch in dev_loader(self._loss_rows):
            outputs = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
            total += float(self.rows.objective.loss(model, outputs, batch.targets)) * len(batch.targets)
            num_items += len(batch.targets)
        return total / num_items

    def can_cut(self, candidate: Candidate) -> bool:
        """Return whether a checkpoint can hold a candidate, and its first layer reads the embeddings as it did."""
        config = self.model.config
        return is_savable(config, candidate.layers) and not (config.norm_first and candidate.layers[0])

    def save(self, candidate: Candidate, folder: Path, trained: Path | None = None) -> None:
        """Write a candidate as a checkpoint: all of it or nothing.

        Args:
            candidate: the candidate.
            folder: where it is written.
            trained: checkpoint of a wider one with the same layers, which loses its least important neurons; by default
                the candidate is cut out of the uncompressed model.
        """
        if trained is None:
            model = self.cut(candidate)
        else:
            wider = load_model(open_checkpoint(trained), self.model.task)
            importance = neuron_importance(wider, dev_loader(self.rows), self.rows.objective.loss)
            model = keep_neurons(wider, most_important(importance, candidate.intermediate_size))
        with atomic_replace_dir(folder) as building:
            save_model(model, building, tokenizer_from=self.source.path, max_tokens=self.max_tokens)

    def cut(self, candidate: Candidate) -> TaskModel:
        """Return the model with some of its layers, the most important neurons of these, and its token pruning."""
        model = keep_layers(self.model, candidate.layers)
        if candidate.intermediate_size != model.config.intermediate_size:
            model = keep_neurons(model, self._neurons(model, candidate))
        return set_token_pruning(model, candidate.shape.token_pruning)

    def _neurons(self, cut: TaskModel, candidate: Candidate) -> list[torch.Tensor]:
        """Return the neurons that a candidate keeps of each of its blocks, whose layers are those of `cut`."""
        order, cut_order = self.model.encoder.order, cut.encoder.order
        blocks: dict[int, Any] = {}
        for position, layer in enumerate(candidate.layers):
            blocks[cut_order[position]] = self.neurons[order[layer]]
        importance = [blocks[index] for index in range(len(cut.encoder.layers))]
        return most_important(importance, candidate.intermediate_size)


def cut_checkpoint_vocabulary(checkpoint: Path, output: Path, records: Sequence[Record]) -> dict[str, int]:
    """Write a checkpoint with the pieces of the vocabulary that some rows use; return how many it had and has.

    Raises:
        CompressionError: the vocabulary cannot be cut.
    """
    source = open_checkpoint(checkpoint)
    task = source.task()
    texts = [
        part for record in records for item in task.prefixed(task.inputs(record)) for part in item if part is not None
    ]
    tokenizer = source.tokenizer()
    vocabulary = cut_vocabulary(tokenizer, used_ids(tokenizer, texts))
    model = keep_embeddings(load_model(source, task), vocabulary)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        vocabulary.save(Path(folder), checkpoint)
        save_model(model, output, tokenizer_from=Path(folder), max_tokens=source.max_tokens)
    return {"before": source.config.vocab_size, "after": model.config.vocab_size}
