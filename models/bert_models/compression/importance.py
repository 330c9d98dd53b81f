"""Importance of layers and of feed-forward neurons, measured on data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.model import TaskModel
from bert_models.training.data import TensorBatch

__all__ = ["layer_influence", "neuron_importance"]


@torch.no_grad()
def layer_influence(model: TaskModel, batches: Iterable[TensorBatch]) -> list[float]:
    """Measure how much each layer changes its tokens' vectors: ShortGPT's block influence (arXiv:2403.03853, eq. 1).

    Args:
        model: the model, in evaluation mode.
        batches: inputs, at least one batch.

    Returns:
        For each layer the mean of 1 - cos(input, output) over all tokens: 0 for a layer that changes nothing.
    """
    order = model.encoder.order
    changes: list[float] = [0.0] * len(order)
    num_tokens = 0
    for batch in batches:
        real = batch.attention_mask.bool()
        num_tokens += int(real.sum())
        passes: list[tuple[Tensor, Tensor]] = []
        with _record_layers(model, passes):
            model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        for index, (before, after) in enumerate(passes):
            distance = 1 - F.cosine_similarity(before[real].float(), after[real].float(), dim=-1)
            changes[index] += float(distance.sum())
    return [change / num_tokens for change in changes]


def neuron_importance(
    model: TaskModel, batches: Iterable[TensorBatch], loss: Callable[[TaskModel, Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """Estimate how much the loss changes without each neuron of the feed-forward blocks.

    This is the first-order Taylor criterion (Molchanov et al., arXiv:1906.10771), as Michel et al. apply it to
    structures that all tokens of a sequence share (arXiv:1905.10650, eq. 2): |Σ activation · gradient| over the tokens,
    averaged over the sequences.

    Args:
        model: the model, in evaluation mode; its parameters get no gradients.
        batches: labelled inputs.
        loss: the mean loss of a batch, [], from model, outputs and targets.

    Returns:
        For each block of parameters the importance of its neurons, float32 [intermediate_size].
    """
    importance = [torch.zeros(model.config.intermediate_size) for _ in model.encoder.layers]
    num_sequences = 0
    for batch in batches:
        activations: list[tuple[int, Tensor]] = []
        with _record_activations(model, activations):
            outputs = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
            value = loss(model, outputs, batch.targets)
        gradients = torch.autograd.grad(value, [activation for _, activation in activations])
        batch_size = len(batch.input_ids)
        num_sequences += batch_size
        for (block, activation), gradient in zip(activations, gradients, strict=True):
            # The gradient of the mean is that of a sequence's own loss, divided by the size of its batch.
            importance[block] += batch_size * (activation * gradient).detach().float().sum(dim=1).abs().sum(dim=0)
    return [block / max(1, num_sequences) for block in importance]


@contextmanager
def _record_layers(model: TaskModel, passes: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Append input and output of every layer's pass within the block, in the order of the passes."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        passes.append((args[0], output))

    handles = [layer.register_forward_hook(hook) for layer in model.encoder.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _record_activations(model: TaskModel, activations: list[tuple[int, Tensor]]) -> Iterator[None]:
    """Append what the last projection of every feed-forward block reads within the block, with the block's index."""

    def hook(block: int, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        activations.append((block, args[0]))

    layers: list[Any] = list(model.encoder.layers)
    handles = [
        layer.feed_forward.down.register_forward_pre_hook(partial(hook, block)) for block, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
