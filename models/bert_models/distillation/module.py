"""The Lightning module of task distillation: fine-tuning with a teacher beside the labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bert_models.distillation.layers import LayerTrace, matched_layers
from bert_models.distillation.losses import attention_distance, cosine_distance, soft_loss
from bert_models.distillation.settings import DistillationSettings
from bert_models.distillation.teacher import Teacher, pad_sequences
from bert_models.training.data import TensorBatch
from bert_models.training.module import FineTuning

__all__ = ["PER_TOKEN_TASKS", "Distillation"]

PER_TOKEN_TASKS = ("token-classification", "question-answering", "replaced-token-detection")
"""Tasks with an output for each token."""


class Distillation(FineTuning):
    """Trains the student on its teacher's answers and, as far as they count, on labels and the teacher's layers."""

    def __init__(
        self, *given: Any, teacher: Teacher, answers: Sequence[Tensor], distillation: DistillationSettings
    ) -> None:
        """`answers` are the teacher's for each sequence of the training set; the rest is `FineTuning`'s."""
        super().__init__(*given)
        self.teacher, self.answers, self.distillation = teacher, answers, distillation
        self.projection: nn.Linear | None = None
        """Brings the student's hidden states to the teacher's width; trained with it and then thrown away."""
        if distillation.compares_layers:
            self.trace = LayerTrace(
                self.model.encoder,
                self.model.config.num_heads,
                hidden=distillation.hidden_weight > 0,
                attention=distillation.attention_weight > 0,
            )
        widths = self.model.config.hidden_size, teacher.model.config.hidden_size
        if distillation.hidden_weight and widths[0] != widths[1]:
            self.projection = nn.Linear(*widths, bias=False)

    def extra_parameters(self) -> list[nn.Parameter]:
        return [] if self.projection is None else list(self.projection.parameters())

    def loss(self, batch: TensorBatch, outputs: Tensor) -> Tensor:
        """The weighted sum of what the student learns from, float32 []."""
        weights = self.distillation
        losses = [self._nothing(outputs)] if self.process_group.world_size > 1 else []
        if not len(batch.rows):  # this process's part of an epoch's last batch
            return torch.stack(losses).sum()
        if weights.hard_weight:
            losses.append(weights.hard_weight * super().loss(batch, outputs))
        if weights.soft_weight:
            rows = [self.answers[row] for row in batch.rows.tolist()]
            per_token = self.model.task.name in PER_TOKEN_TASKS
            answers = pad_sequences(rows, batch.input_ids.shape[1]) if per_token else torch.stack(rows)
            answers = answers.to(outputs.device)
            distance = soft_loss(
                self.model.task, outputs, answers, batch.attention_mask, batch.targets, weights.temperature
            )
            losses.append(weights.soft_weight * distance)
        if weights.compares_layers:
            losses += self._inside(batch)
        return torch.stack(losses).sum()

    def _nothing(self, outputs: Tensor) -> Tensor:
        """Zero, of every parameter: DDP waits for all gradients, and some weights leave out a head or a chain."""
        zero = outputs.float().sum() * 0
        if not self.process_group.is_sharded:
            zero = zero + torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * 0
        return zero

    def _inside(self, batch: TensorBatch) -> list[Tensor]:
        """Weighted distances between the layers of both; the student has just run."""
        weights, tokens = self.distillation, batch.attention_mask.bool()
        self.teacher.hidden(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        losses = []
        if weights.hidden_weight:
            found, expected = self.trace.hidden, self.teacher.trace.hidden
            pairs = zip(found, matched_layers(len(expected), len(found)), strict=True)
            distances = [cosine_distance(self._projected(own), expected[place], tokens) for own, place in pairs]
            losses.append(weights.hidden_weight * torch.stack(distances).mean() / tokens.sum())
        if weights.attention_weight:
            distance = attention_distance(self.trace.attention(), self.teacher.trace.attention(), tokens)
            losses.append(weights.attention_weight * distance)
        return losses

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection(hidden)
