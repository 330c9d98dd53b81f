"""transformers' models with the signatures of ours, so that our loops train them."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bert_models import Checkpoint, open_checkpoint
from bert_models.training import TrainSettings
from bert_models.training.data import Examples
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
    """transformers' classifier of texts or tokens, with what our loop uses of `TaskModel`.

    A head that the checkpoint lacks is initialised as transformers does it.
    """

    def __init__(self, base: Path, task: TextClassification | TokenClassification) -> None:
        super().__init__()
        self.task = task
        self.model = _CLASSES[task.name].from_pretrained(base, num_labels=len(task.labels), dtype=torch.float32)
        self.head = nn.Identity()  # where our loop looks for a linear chain

    def runtime_task(self) -> Task:
        """What decodes the logits."""
        return self.task

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Token ids, mask and segments int64 [B, S] → logits."""
        logits: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).logits
        return logits


def labelled_examples(source: Checkpoint, task: Task, records: list[Record], settings: TrainSettings) -> Examples:
    """A labelled file as `fine_tune` tokenizes it."""
    tokenizer = source.text_tokenizer(settings.max_tokens, task.windows)
    return Examples(task, build_examples(task, tokenizer, records), tokenizer)


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
    """What `fine_tune` does with the training and the dev file, with transformers' class in the place of ours.

    `settings.precision` must be one to train in, not `auto`. Returns the settings, the best epoch and all epochs.
    """
    source = open_checkpoint(base)
    train, dev = (read_records(file, columns) for file in files)
    chosen = infer_task(task, source, train, dev, task_settings or {})
    assert isinstance(chosen, TextClassification | TokenClassification)
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(available_cores())
    model: Any = TransformersTaskModel(source.path, chosen)
    train_set, dev_set = (labelled_examples(source, chosen, part, settings) for part in (train, dev))
    module = FineTuning(model, dev_set, settings, settings.precision)
    best = fit(module, train_set, dev_set, settings, ChosenPrecision(settings.precision, {}), state, resume=False)
    return {"settings": asdict(settings), "metric": chosen.metric, "best": best, "epochs": module.history}
