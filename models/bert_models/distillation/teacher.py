"""The teacher: its outputs for a training set, and its hidden states and attention for a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from bert_models.distillation.layers import LayerTrace
from bert_models.model import TaskModel
from bert_models.training.data import ExampleDataset, TensorBatch, dev_loader

__all__ = ["Teacher", "pad_sequences"]


class Teacher:
    """A trained model in evaluation mode, with frozen weights.

    It is deliberately not an `nn.Module`: as an attribute of the student's module, its weights are neither trained, nor
    saved, nor sharded.

    Args:
        model: the trained model.
        hidden: let `trace` record the hidden states after every layer.
        attention: let `trace` record the attention scores of the last layer.
    """

    def __init__(self, model: TaskModel, *, hidden: bool = False, attention: bool = False) -> None:
        self.model = model.eval().requires_grad_(False)
        self.trace = LayerTrace(model.encoder, model.config.num_heads, hidden=hidden, attention=attention)

    def __deepcopy__(self, memo: object) -> "Teacher":
        return self  # it is constant, so copies of its student share it

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the model's outputs, float [B, …], for int64 [B, S] inputs, on their device."""
        return self._model_on(input_ids.device)(input_ids, attention_mask, token_type_ids)

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the encoder's hidden states, float [B, S, H]; `trace` then has what it records."""
        hidden: Tensor = self._model_on(input_ids.device).encoder(input_ids, attention_mask, token_type_ids)
        return hidden

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Return the head's outputs for hidden states of single tokens, float [N, H]."""
        outputs: Tensor = self._model_on(hidden.device).head(hidden, hidden)
        return outputs

    def _model_on(self, device: torch.device) -> TaskModel:
        return self.model.to(device)

    def outputs(self, examples: ExampleDataset, device: torch.device, *, show_progress: bool = True) -> list[Tensor]:
        """Compute the raw outputs for all sequences of `examples`, with padding removed.

        Batches are always the same, so that a resumed run is trained on the same numbers.

        Args:
            examples: the tokenized training set.
            device: where to compute. The model is on the CPU afterwards.
            show_progress: draw a progress bar.

        Returns:
            float32 on the CPU by sequence index, [S_i, …] for tasks with an output per token.
        """
        outputs: dict[int, Tensor] = {}
        for batch in tqdm(dev_loader(examples), desc="teacher", unit="batch", leave=False, disable=not show_progress):
            moved = TensorBatch(*(tensor.to(device) for tensor in batch))
            computed = self(moved.input_ids, moved.attention_mask, moved.token_type_ids)
            outputs |= {index: torch.from_numpy(array) for index, array in examples.split(moved, computed).items()}
        self.model.cpu()
        self.trace.clear()
        return [outputs[index] for index in range(len(outputs))]


def pad_sequences(sequences: Sequence[Tensor], num_tokens: int) -> Tensor:
    """Stack outputs of sequences, [S_i, …], to one tensor [B, `num_tokens`, …], zero-padded at the end."""
    if len({sequence.shape for sequence in sequences}) == 1 and (
        sequences[0].ndim == 0 or sequences[0].shape[0] == num_tokens
    ):
        return torch.stack(list(sequences))
    return torch.stack(
        [nn.functional.pad(item, [0, 0] * (item.ndim - 1) + [0, num_tokens - len(item)]) for item in sequences]
    )
