"""Outlier neurons of the feed-forward blocks as several neurons, each for a part of the range.

A few neurons reach 20 where most stay below 3 (at [CLS], say), and one scale for all leaves the others a handful of
steps. Smoothing would cost a `Mul` of [B, S, intermediate]; one percent more neurons costs next to nothing. With c the
upper end of the 8-bit range,

    gelu(h) ≈ min(gelu(h), c) + min(gelu(h - c), c) + …

since gelu(h) ≈ h where h is large. The copies of a neuron share its weights and differ in their bias, and the minimum
is what quantization does anyway. For ReLU it is exact. What GELU lacks around the seams is measured, and weighed
against the finer steps when c is chosen.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from bert_export.quantization.calibration import Activations
from bert_export.quantization.projections import SharedWeight
from bert_runtime.numerics import Float32Array

__all__ = ["Block", "Split", "best_split", "feed_forward_blocks", "split_outlier_channels"]

Activation = Callable[[Float32Array], Float32Array]

_COPIES_SHARE = 1 / 96
"""How many copies a block may gain for each of its neurons: 16 in MiniLM, 32 in BERT-base."""

_MULTIPLE = 16
"""Of what the number of neurons is after a split: floats of a vector, and whole groups of four bytes."""

_CANDIDATES = 48
"""The neurons of a block that reach farthest, among whose reaches and their fractions the ceiling is looked for."""


class Block(NamedTuple):
    """A feed-forward block."""

    up: SharedWeight
    down: SharedWeight
    activation: Activation


class Split(NamedTuple):
    """How to split the neurons of a block."""

    ceiling: float
    """The upper end of the 8-bit range, c."""
    copies: NDArray[np.int64]
    """How many further neurons each neuron gets [neurons]."""


def feed_forward_blocks(projections: Sequence[SharedWeight]) -> list[Block]:
    """The blocks with GELU or ReLU both of whose projections are among these."""
    by_output = {linear.output: each for each in projections for linear in each.linears}
    found = ((down, [linear.input.producer() for linear in down.linears]) for down in projections)
    return [block for down, nodes in found if (block := _block(down, nodes, by_output)) is not None]


def _block(
    down: SharedWeight, nodes: Sequence[ir.Node | None], by_output: dict[ir.Value, SharedWeight]
) -> Block | None:
    """The block that ends in `down`, whose inputs `nodes` compute; `None` if something else reads its neurons."""
    ups = set()
    for node in nodes:
        source = node.inputs[0] if node is not None and node.op_type in ("Gelu", "Relu") else None
        if node is None or source is None or len(source.uses()) != 1 or len(node.outputs[0].uses()) != 1:
            return None
        ups.add(by_output.get(source))
    up = ups.pop()
    if up is None or ups or len(up.linears) != len(down.linears) or nodes[0] is None:
        return None
    return Block(up, down, _activation(nodes[0]))


def _activation(node: ir.Node) -> Activation:
    """What a Gelu or Relu node computes."""
    if node.op_type == "Relu":
        return lambda h: np.maximum(h, 0)
    attribute = node.attributes.get("approximate")
    approximate = "none" if attribute is None else attribute.as_string()

    def gelu(h: Float32Array) -> Float32Array:
        result: Float32Array = torch.nn.functional.gelu(torch.from_numpy(h), approximate=approximate).numpy()
        return result

    return gelu


def split_outlier_channels(block: Block) -> Split:
    """Splits a block's outlier neurons where that makes its output more exact, and returns how."""
    up, down = block.up, block.down
    reach = np.max([each.high for each in down.inputs], axis=0)
    candidates = np.argsort(-reach, kind="stable")[:_CANDIDATES]
    low = min(0.0, *(float(each.low.min()) for each in down.inputs))
    hidden = up.samples @ up.weight[:, candidates] + up.bias[candidates]
    split = best_split(down.weight, reach, low, candidates, hidden, block.activation)
    if not split.copies.any():
        return split
    sources = np.repeat(np.arange(len(reach)), split.copies)
    offsets = np.concatenate([np.arange(1, 1 + count) for count in split.copies]) * np.float32(split.ceiling)
    error = _seams(hidden, split, candidates, block.activation).mean(axis=0) @ down.weight[candidates]
    before = [each.samples @ up.weight[:, sources] + up.bias[sources] - offsets for each in up.inputs]
    # Neurons that are always 0, so that kernels find whole vectors.
    idle = -(len(reach) + len(sources)) % _MULTIPLE
    up.weight = np.pad(np.concatenate([up.weight, up.weight[:, sources]], axis=1), ((0, 0), (0, idle)))
    up.bias = np.pad(np.concatenate([up.bias, up.bias[sources] - offsets]).astype(np.float32), (0, idle))
    down.weight = np.pad(np.concatenate([down.weight, down.weight[sources]]), ((0, idle), (0, 0)))
    down.bias = (down.bias - error).astype(np.float32)
    down.inputs = [
        _extended(each, np.pad(block.activation(h.astype(np.float32)), ((0, 0), (0, idle))), split.ceiling)
        for each, h in zip(down.inputs, before, strict=True)
    ]
    _widen(block)
    return split


def best_split(
    weight: Float32Array,
    reach: Float32Array,
    low: float,
    candidates: NDArray[np.int64],
    hidden: Float32Array,
    activation: Activation,
) -> Split:
    """The split with the least expected squared error of the block's output, among those with few enough copies.

    Args:
        weight: of the projection that reads the neurons [neurons, out].
        reach: how far each neuron reaches [neurons].
        low: the lower end of the 8-bit range, at most 0.
        candidates: the neurons that reach farthest, in falling order [m].
        hidden: sampled inputs of the activation for these [n, m].
        activation: GELU or ReLU.
    """
    power = float((weight.astype(np.float64) ** 2).sum())
    gram = weight[candidates] @ weight[candidates].T
    exact = activation(hidden)
    best, least = Split(float(max(reach[candidates[0]], 1e-6)), np.zeros(len(reach), dtype=np.int64)), np.inf
    for ceiling in np.unique(np.concatenate([reach[candidates] / parts for parts in (1, 2, 3, 4)])):
        if ceiling <= 0 or ceiling < reach[candidates[-1]]:
            continue
        copies = np.maximum(np.ceil(reach / ceiling - 1e-6).astype(np.int64) - 1, 0)
        if copies.sum() > _COPIES_SHARE * len(reach):
            continue
        split = Split(float(ceiling), copies)
        seams = _seams(hidden, split, candidates, activation, exact)
        error = ((ceiling - low) / 255) ** 2 / 12 * power + float(((seams @ gram) * seams).sum(axis=1).mean())
        if error < least:
            best, least = split, error
    return best


def _seams(
    hidden: Float32Array,
    split: Split,
    candidates: NDArray[np.int64],
    activation: Activation,
    exact: Float32Array | None = None,
) -> Float32Array:
    """What the parts of each candidate add up to, less what the neuron itself would give [n, m]."""
    seams = np.zeros_like(hidden)
    for column, copies in enumerate(split.copies[candidates]):
        if copies:
            h = hidden[:, column]
            parts = (np.minimum(activation(h - part * split.ceiling), split.ceiling) for part in range(copies + 1))
            seams[:, column] = sum(parts) - (activation(h) if exact is None else exact[:, column])
    return seams


def _extended(inputs: Activations, copies: Float32Array, ceiling: float) -> Activations:
    """The neurons' activations with those of their copies, all cut off at the ceiling."""
    samples = np.minimum(np.concatenate([inputs.samples, copies], axis=1), np.float32(ceiling))
    low = np.concatenate([inputs.low, copies.min(axis=0)])
    return Activations(low=low, high=np.full(len(low), ceiling, dtype=np.float32), samples=samples)


def _widen(block: Block) -> None:
    """Tells the graph's values how many neurons there are now."""
    for up in block.up.linears:
        (reader,) = up.output.consumers()
        for value in (up.output, reader.outputs[0]):
            assert value.shape is not None
            value.shape = ir.Shape([*value.shape[:-1], block.up.weight.shape[1]])
