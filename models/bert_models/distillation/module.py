"""The Lightning module of task distillation: fine-tuning on labels and on a teacher."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bert_models.distillation.hidden_states import HiddenStates
from bert_models.distillation.layers import LayerTrace, matched_layers
from bert_models.distillation.losses import attention_divergence, cosine_distance, soft_loss
from bert_models.distillation.settings import DistillationSettings
from bert_models.distillation.teacher import Teacher, pad_sequences
from bert_models.training.data import TensorBatch
from bert_models.training.module import FineTuning

__all__ = ["Distillation"]


class Distillation(FineTuning):
    """Trains a student on its teacher's outputs, on labels, and on the teacher's layers, as the weights ask.

    Args:
        *given: the arguments of `FineTuning`.
        teacher: the teacher.
        teacher_outputs: its outputs by sequence index of the training set, see `Teacher.outputs`; not used if
            `soft_weight` is 0.
        distillation: weights of the losses.
        hidden_states: keeps the teacher's hidden states, if no attention is compared.
    """

    def __init__(
        self,
        *given: Any,
        teacher: Teacher,
        teacher_outputs: Sequence[Tensor],
        distillation: DistillationSettings,
        hidden_states: HiddenStates | None = None,
    ) -> None:
        super().__init__(*given)
        self.hidden_states = None if distillation.attention_weight else hidden_states
        self.teacher, self.teacher_outputs, self.distillation = teacher, teacher_outputs, distillation
        self.projection: nn.Linear | None = None
        """Maps the student's hidden states to the teacher's width (TinyBERT's W_h; Jiao et al., arXiv:1909.10351).

        It is trained together with the student and not saved in its checkpoint."""
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
        """Return the weighted sum of the losses, float32 []."""
        weights = self.distillation
        losses = [self._zero_loss(outputs)] if self.process_group.world_size > 1 else []
        if not len(batch.sequence_indices):  # this process has no part of an epoch's last batch
            return torch.stack(losses).sum()
        if weights.hard_weight:
            losses.append(weights.hard_weight * super().loss(batch, outputs))
        if weights.soft_weight:
            losses.append(weights.soft_weight * self._soft_loss(batch, outputs))
        if weights.compares_layers:
            losses += self._layer_losses(batch)
        return torch.stack(losses).sum()

    def _soft_loss(self, batch: TensorBatch, outputs: Tensor) -> Tensor:
        """Compare the outputs with the teacher's for the same sequences."""
        task, sequences = self.model.task, [self.teacher_outputs[index] for index in batch.sequence_indices.tolist()]
        length = batch.input_ids.shape[1]
        expected = pad_sequences(sequences, length) if task.has_output_per_token else torch.stack(sequences)
        return soft_loss(
            task, outputs, expected.to(outputs.device), batch.attention_mask, batch.targets,
            self.distillation.temperature,
        )  # fmt: skip

    def _zero_loss(self, outputs: Tensor) -> Tensor:
        """Return 0 as a function of all parameters: DDP waits for all gradients, and some losses skip a head or CRF."""
        zero = outputs.float().sum() * 0
        if not self.process_group.is_sharded:
            zero = zero + torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * 0
        return zero

    def _layer_losses(self, batch: TensorBatch) -> list[Tensor]:
        """Return the weighted losses on hidden states and attention; the student's forward pass has been recorded."""
        weights, tokens = self.distillation, batch.attention_mask.bool()
        if self.hidden_states is None:
            self._run_teacher(batch)
        losses = []
        if weights.hidden_weight:
            found = self.trace.hidden
            expected = self._teacher_hidden(batch, len(found))
            if self.model.config.token_pruning is not None:  # only the first token is sure to stay
                found, expected, tokens = [h[:, :1] for h in found], [h[:, :1] for h in expected], tokens[:, :1]
            distances = [
                cosine_distance(self._projected(hidden), states, tokens)
                for hidden, states in zip(found, expected, strict=True)
            ]
            losses.append(weights.hidden_weight * torch.stack(distances).mean() / tokens.sum())
        if weights.attention_weight:
            divergence = attention_divergence(self.trace.attention(), self.teacher.trace.attention(), tokens)
            losses.append(weights.attention_weight * divergence)
        self.trace.clear()  # which would keep the step's tensors, also where its backward pass runs out of memory
        return losses

    def _teacher_hidden(self, batch: TensorBatch, num_layers: int) -> list[Tensor]:
        """Return the teacher's hidden states that those of a student with `num_layers` layers are compared with."""
        layers = matched_layers(self.teacher.model.config.num_layers, num_layers)
        if self.hidden_states is not None:
            return self.hidden_states.read(batch, layers, self._run_teacher)
        return [self.teacher.trace.hidden[layer] for layer in layers]

    def _run_teacher(self, batch: TensorBatch) -> list[Tensor]:
        """Run the teacher, whose trace then has what it records; return its hidden states after every layer."""
        self.teacher.hidden(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.teacher.trace.hidden

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection(hidden)
