"""Split outlier channels of the feed-forward blocks into several channels, each for a part of the range.

A few channels between a block's two projections reach 20 where most stay below 3 (at [CLS], say), and one 8-bit scale
for all leaves the others a handful of steps. Smoothing would cost a `Mul` of [B, S, intermediate]; one percent more
channels costs next to nothing.

This is outlier channel splitting (Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier
Channel Splitting", arXiv:1901.09504) with another split. There a channel is duplicated and its values are halved, which
no change of the weights can do here: the values come out of GELU. Here the copies share the weights of the channel and
differ in their bias. With c the upper end of the 8-bit range,

    gelu(h) ≈ min(gelu(h), c) + min(gelu(h - c), c) + …

since gelu(h) ≈ h where h is large. The minimum is what quantization does anyway, by saturating. For ReLU the sum is
exact. For GELU its error is measured, and weighed against the finer steps when c is chosen.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from bert_export.operator_attributes import gelu_approximation
from bert_export.quantization.calibration import Activations
from bert_export.quantization.projections import SharedWeight
from bert_runtime.numerics import Float32Array

__all__ = ["ChannelSplit", "FeedForwardBlock", "feed_forward_blocks", "find_best_split", "split_outlier_channels"]

Activation = Callable[[Float32Array], Float32Array]

_MAX_COPIES_SHARE = 1 / 96
"""Maximum number of copies per channel of a block: 16 in MiniLM, 32 in BERT-base (a judgement)."""

_CHANNELS_MULTIPLE = 16
"""The number of channels after a split is a multiple of this: whole AVX-512 vectors of float32, and whole groups of the
four bytes that a dot-product instruction reads."""

_MAX_CANDIDATES = 48
"""Channels with the largest maxima, which may be split; their maxima and fractions of them are the candidates for c."""


class FeedForwardBlock(NamedTuple):
    """A feed-forward block: `down(activation(up(x)))`."""

    up: SharedWeight
    down: SharedWeight
    activation: Activation


class ChannelSplit(NamedTuple):
    """How to split the channels of a block."""

    ceiling: float
    """The upper end of the 8-bit range, c."""
    copies: NDArray[np.int64]
    """How many further channels each channel gets [channels]."""


def feed_forward_blocks(projections: Sequence[SharedWeight]) -> list[FeedForwardBlock]:
    """Return the blocks with GELU or ReLU of which both projections are among `projections`."""
    by_output = {linear.output: projection for projection in projections for linear in projection.linears}
    found = ((down, [linear.input.producer() for linear in down.linears]) for down in projections)
    return [block for down, nodes in found if (block := _find_block(down, nodes, by_output)) is not None]


def _find_block(
    down: SharedWeight, activations: Sequence[ir.Node | None], by_output: dict[ir.Value, SharedWeight]
) -> FeedForwardBlock | None:
    """Return the block that ends in `down`, which reads `activations`; `None` if anything else reads its channels."""
    ups = set()
    for node in activations:
        source = node.inputs[0] if node is not None and node.op_type in ("Gelu", "Relu") else None
        if node is None or source is None or len(source.uses()) != 1 or len(node.outputs[0].uses()) != 1:
            return None
        ups.add(by_output.get(source))
    up = ups.pop()
    if up is None or ups or len(up.linears) != len(down.linears) or activations[0] is None:
        return None
    return FeedForwardBlock(up, down, _activation_of(activations[0]))


def _activation_of(node: ir.Node) -> Activation:
    """Return the function that a Gelu or Relu node computes."""
    if node.op_type == "Relu":
        return lambda h: np.maximum(h, 0)
    approximate = gelu_approximation(node)

    def gelu(h: Float32Array) -> Float32Array:
        result: Float32Array = torch.nn.functional.gelu(torch.from_numpy(h), approximate=approximate).numpy()
        return result

    return gelu


def split_outlier_channels(block: FeedForwardBlock) -> ChannelSplit:
    """Split a block's outlier channels, in place, if that makes its output more exact.

    Returns:
        The split that was applied; without copies if none helps.
    """
    up, down = block.up, block.down
    channel_max = np.max([inputs.high for inputs in down.inputs], axis=0)
    candidates = np.argsort(-channel_max, kind="stable")[:_MAX_CANDIDATES]
    low = min(0.0, *(float(inputs.low.min()) for inputs in down.inputs))
    pre_activations = up.samples @ up.weight[:, candidates] + up.bias[candidates]
    split = find_best_split(down.weight, channel_max, low, candidates, pre_activations, block.activation)
    if split.copies.any():
        error = _splitting_error(pre_activations, split, candidates, block.activation)
        down.bias = (down.bias - error.mean(axis=0) @ down.weight[candidates]).astype(np.float32)
        _apply(block, split)
        _update_shapes(block)
    return split


def _apply(block: FeedForwardBlock, split: ChannelSplit) -> None:
    """Append the copies to the block's weights and sampled activations, and idle channels up to whole vectors."""
    up, down = block.up, block.down
    num_channels = len(split.copies)
    sources = np.repeat(np.arange(num_channels), split.copies)
    offsets = np.concatenate([np.arange(1, 1 + count) for count in split.copies]) * np.float32(split.ceiling)
    copied = [inputs.samples @ up.weight[:, sources] + up.bias[sources] - offsets for inputs in up.inputs]
    idle = -(num_channels + len(sources)) % _CHANNELS_MULTIPLE  # channels that are always 0
    up.weight = np.pad(np.concatenate([up.weight, up.weight[:, sources]], axis=1), ((0, 0), (0, idle)))
    up.bias = np.pad(np.concatenate([up.bias, up.bias[sources] - offsets]).astype(np.float32), (0, idle))
    down.weight = np.pad(np.concatenate([down.weight, down.weight[sources]]), ((0, idle), (0, 0)))
    down.inputs = [
        _with_copies(inputs, np.pad(block.activation(h.astype(np.float32)), ((0, 0), (0, idle))), split.ceiling)
        for inputs, h in zip(down.inputs, copied, strict=True)
    ]


def find_best_split(
    weight: Float32Array,
    channel_max: Float32Array,
    low: float,
    candidates: NDArray[np.int64],
    pre_activations: Float32Array,
    activation: Activation,
) -> ChannelSplit:
    """Find the split with the minimum expected squared error of the block's output, among those with few copies.

    The error is that of rounding to steps of (c - low) / 255, whose variance is a twelfth of the squared step, plus
    that of the sum of parts.

    Args:
        weight: weight of the projection that reads the channels `[channels, out]`.
        channel_max: maximum of each channel `[channels]`.
        low: lower end of the 8-bit range, at most 0.
        candidates: channels with the largest maxima, in falling order `[m]`.
        pre_activations: sampled inputs of the activation for these `[n, m]`.
        activation: GELU or ReLU.
    """
    power = float((weight.astype(np.float64) ** 2).sum())
    gram = weight[candidates] @ weight[candidates].T
    exact = activation(pre_activations)
    best = ChannelSplit(float(max(channel_max[candidates[0]], 1e-6)), np.zeros(len(channel_max), dtype=np.int64))
    min_error = np.inf
    for ceiling in np.unique(np.concatenate([channel_max[candidates] / parts for parts in (1, 2, 3, 4)])):
        if ceiling <= 0 or ceiling < channel_max[candidates[-1]]:
            continue
        copies = np.maximum(np.ceil(channel_max / ceiling - 1e-6).astype(np.int64) - 1, 0)
        if copies.sum() > _MAX_COPIES_SHARE * len(channel_max):
            continue
        split = ChannelSplit(float(ceiling), copies)
        parts_error = _splitting_error(pre_activations, split, candidates, activation, exact)
        rounding_error = ((ceiling - low) / 255) ** 2 / 12 * power
        error = rounding_error + float(((parts_error @ gram) * parts_error).sum(axis=1).mean())
        if error < min_error:
            best, min_error = split, error
    return best


def _splitting_error(
    pre_activations: Float32Array,
    split: ChannelSplit,
    candidates: NDArray[np.int64],
    activation: Activation,
    exact: Float32Array | None = None,
) -> Float32Array:
    """Return the sum of each candidate's parts minus its exact activation [n, m]."""
    errors = np.zeros_like(pre_activations)
    for column, copies in enumerate(split.copies[candidates]):
        if copies:
            h = pre_activations[:, column]
            parts = (np.minimum(activation(h - part * split.ceiling), split.ceiling) for part in range(copies + 1))
            errors[:, column] = sum(parts) - (activation(h) if exact is None else exact[:, column])
    return errors


def _with_copies(inputs: Activations, copies: Float32Array, ceiling: float) -> Activations:
    """Return the channels' activations with those of their copies, all limited to the ceiling."""
    samples = np.minimum(np.concatenate([inputs.samples, copies], axis=1), np.float32(ceiling))
    low = np.concatenate([inputs.low, copies.min(axis=0)])
    return Activations(low=low, high=np.full(len(low), ceiling, dtype=np.float32), samples=samples)


def _update_shapes(block: FeedForwardBlock) -> None:
    """Set the new number of channels in the shapes of the graph's values."""
    for up in block.up.linears:
        (consumer,) = up.output.consumers()
        for value in (up.output, consumer.outputs[0]):
            assert value.shape is not None
            value.shape = ir.Shape([*value.shape[:-1], block.up.weight.shape[1]])
