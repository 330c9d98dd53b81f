"""Fine-tune transformers' models with bert_models' training loop, to compare the model classes alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bert_models import Checkpoint, open_checkpoint
from bert_models.training import TrainSettings
from bert_models.training.data import ExampleDataset
from bert_models.training.infer_task import infer_task
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision
from bert_runtime.evaluation import build_examples
from bert_runtime.machine import available_cores
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Task, TextClassification, TokenClassification

__all__ = ["TransformersTaskModel", "labelled_examples", "train_transformers"]

_CLASSES = {
    TextClassification.name: AutoModelForSequenceClassification,
    TokenClassification.name: AutoModelForTokenClassification,
}


class TransformersTaskModel(nn.Module):
    """transformers' text or token classifier with the parts of `TaskModel`'s interface that the training loop uses.

    Args:
        base: checkpoint folder. A head that it lacks is initialized by transformers.
        task: task with the labels of the head.

    """

    def __init__(self, base: Path, task: TextClassification | TokenClassification) -> None:
        super().__init__()
        self.task = task
        self.model = _CLASSES[task.name].from_pretrained(base, num_labels=len(task.labels), dtype=torch.float32)
        self.head = nn.Identity()  # the loop looks for a CRF here
        self.has_segments = getattr(self.model.config, "type_vocab_size", 0) > 1

    def runtime_task(self) -> Task:
        """Return the task that decodes the logits."""
        return self.task

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits [B, L], or [B, S, L] per token, of L labels; inputs are int64 [B, S].

        Segments are left out for models without embeddings of them, and for RoBERTa, which has one for segment 0 alone.
        """
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **segments).logits
        return logits


def labelled_examples(source: Checkpoint, task: Task, records: list[Record], settings: TrainSettings) -> ExampleDataset:
    """Tokenize labelled records as `fine_tune` does."""
    tokenizer = source.text_tokenizer(settings.max_tokens, task.windows)
    return ExampleDataset(task, build_examples(task, tokenizer, records), tokenizer)


def train_transformers(
    task: str,
    base: Path,
    files: tuple[Path, Path],
    settings: TrainSettings,
    state: Path,
    *,
    task_settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Fine-tune transformers' class for a task, as `fine_tune` does with bert_models' class.

    Args:
        task: name of the task: text or token classification.
        base: checkpoint folder to start from.
        files: training file and dev file.
        settings: settings. `precision` must be one to train in, not `auto`.
        state: folder of the training state.
        task_settings: settings of the task.
        columns: our field names to the files' column names.

    Returns:
        The settings, the name of the metric, the best epoch and all epochs.

    """
    source = open_checkpoint(base)
    train, dev = (read_records(file, columns) for file in files)
    inferred = infer_task(task, source, train, dev, task_settings or {})
    assert isinstance(inferred, TextClassification | TokenClassification)
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(available_cores())
    model: Any = TransformersTaskModel(source.path, inferred)
    train_set, dev_set = (labelled_examples(source, inferred, records, settings) for records in (train, dev))
    module = FineTuning(model, dev_set, settings, settings.precision)
    best = fit(module, train_set, dev_set, settings, ChosenPrecision(settings.precision, {}), state, resume=False)
    return {"settings": settings.to_dict(), "metric": inferred.metric, "best": best, "epochs": module.history}
