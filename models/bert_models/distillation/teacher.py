"""The teacher: what it answers to a training set, and what goes on inside it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from bert_models.distillation.layers import LayerTrace
from bert_models.model import TaskModel
from bert_models.training.data import ExampleDataset, TensorBatch, dev_loader

__all__ = ["Teacher", "pad_sequences"]


class Teacher:
    """A finished model in evaluation mode. It is no `nn.Module`, so that a student that has one does not contain it:
    its weights are neither trained, nor saved, nor shared out among processes."""

    def __init__(self, model: TaskModel, *, hidden: bool = False, attention: bool = False) -> None:
        """`hidden` and `attention` say what `trace` keeps of the layers."""
        self.model = model.eval().requires_grad_(False)
        self.trace = LayerTrace(model.encoder, model.config.num_heads, hidden=hidden, attention=attention)

    def __deepcopy__(self, memo: object) -> "Teacher":
        return self  # it does not change: copies of its student share it

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """What the model computes, on the device of its inputs."""
        return self._there(input_ids)(input_ids, attention_mask, token_type_ids)

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """The encoder's hidden states [B, S, H]; `trace` then has those of every layer."""
        hidden: Tensor = self._there(input_ids).encoder(input_ids, attention_mask, token_type_ids)
        return hidden

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """What the head makes of hidden states [N, H] of single tokens."""
        computed: Tensor = self._there(hidden).head(hidden, hidden)
        return computed

    def _there(self, tensor: Tensor) -> TaskModel:
        return self.model.to(tensor.device)

    def answers(self, examples: ExampleDataset, device: torch.device, *, shown: bool = True) -> list[Tensor]:
        """Its raw output for each sequence of `examples` without padding, float32.

        Always from the same batches: a resumed run learns from the same numbers. `shown` draws a progress bar.
        """
        rows: dict[int, Tensor] = {}
        for batch in tqdm(dev_loader(examples), desc="teacher", unit="batch", leave=False, disable=not shown):
            moved = TensorBatch(*(tensor.to(device) for tensor in batch))
            computed = self(moved.input_ids, moved.attention_mask, moved.token_type_ids)
            rows |= {row: torch.from_numpy(array) for row, array in examples.split(moved, computed).items()}
        self.model.cpu()
        self.trace.clear()
        return [rows[place] for place in range(len(rows))]


def pad_sequences(rows: Sequence[Tensor], tokens: int) -> Tensor:
    """Rows of tokens [S_i, …] as one tensor [B, tokens, …], zero where they end; other rows stacked [B, …]."""
    if len({row.shape for row in rows}) == 1 and (rows[0].ndim == 0 or rows[0].shape[0] == tokens):
        return torch.stack(list(rows))
    return torch.stack([nn.functional.pad(row, [0, 0] * (row.ndim - 1) + [0, tokens - len(row)]) for row in rows])
