"""Replace operators of the fused graph by those that ONNX Runtime's CUDA provider has fast kernels for.

They were chosen by reading the provider's sources (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert), since
there was no GPU to measure on:

* `MultiHeadAttention` instead of the standard Attention, whose CUDA kernel only the newest releases have. With an
  additive mask it runs cutlass' memory-efficient kernel if heads have a multiple of 8 channels and, in FP16, the number
  of queries is a multiple of 8, to which the runtime pads. The single query of a layer that is reduced to its first
  token runs unfused. A mask [B, S] (`key_padding_mask`) would run the unfused kernel everywhere, and sequence lengths
  express padding at one end alone. Without any mask it runs FlashAttention 2, for batches without padding: a graph of
  its own, see `bert_export.cuda.drop_mask`, whose weights are on the GPU a second time.
* `SkipLayerNormalization` adds the bias and the residual itself. On the CPU it is slower than Add and
  LayerNormalization.
* `BiasGelu` for the exact GELU and `FastGelu` for its tanh approximation: both add the bias of the projection before.

The graph is in opset 20: the provider got kernels for later revisions of Cast, Shape, Squeeze and others only later
(docs/OperatorKernels.md there). The provider of onnxruntime-gpu 1.31.1 runs every operator of these graphs except a few
that compute shapes.
"""

from collections import Counter

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    NoMatch,
    add_initializer,
    as_linear,
    check_counts,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_models import EncoderConfig

__all__ = ["CUDA_OPSET", "MASKED_SCORE", "additive_mask", "fuse_for_cuda"]

CUDA_OPSET = 20
"""The first opset with Gelu, which heads keep."""

MASKED_SCORE = -10000.0
"""Added to the score of a masked token: its attention weight becomes 0, while a sequence with no other token still has
finite scores."""


def fuse_for_cuda(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Rewrite a graph that `fuse` returned, in place and still in FP32, and return the counts.

    Raises:
        FusionError: An operator was replaced a different number of times than the configuration demands.
    """
    layers = config.num_layers
    expected = {
        "multi_head_attention": layers,
        "skip_layer_normalization": 2 * layers,
        "bias_gelu": layers if config.activation.startswith("gelu") else 0,
    }
    found: Counter[str] = Counter()
    reasons: list[str] = []
    rewrites = (
        ("multi_head_attention", "Attention", _attention),
        ("skip_layer_normalization", "LayerNormalization", _skip_layer_normalization),
        ("bias_gelu", "Gelu", _bias_gelu),
    )
    for name, op_type, rewrite in rewrites:
        for node in operators(graph, op_type):
            if not scope(node).startswith("encoder.layers."):
                continue
            try:
                rewrite(node)
                found[name] += 1
            except NoMatch as reason:
                reasons.append(f"{name} at {scope(node)}: {reason}")
    graph.graph.opset_imports.update({"": CUDA_OPSET, MICROSOFT_DOMAIN: 1})
    tidy(graph)
    return check_counts(found, expected, reasons)


def _attention(node: ir.Node) -> None:
    """Replace Attention on [B, S, H] with a boolean mask by MultiHeadAttention with an additive one."""
    attributes = node.attributes
    if any(name in attributes and attributes[name].value for name in ("softcap", "is_causal")):
        raise NoMatch("expected attention in both directions without a soft cap")
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    bias = None
    if mask is not None:
        if mask.dtype != ir.DataType.BOOL:
            raise NoMatch(f"expected a boolean mask, found {mask.dtype}")
        bias = additive_mask(node, mask)
    scale = {"scale": attributes["scale"].as_float()} if "scale" in attributes else {}
    (output,) = insert_before(
        node,
        "MultiHeadAttention",
        [*node.inputs[:3], *([] if bias is None else [None, None, bias])],
        like=node.outputs[0],
        attributes={"num_heads": attributes["q_num_heads"].as_int(), **scale},
        domain=MICROSOFT_DOMAIN,
    )
    node.outputs[0].replace_all_uses_with(output)


def additive_mask(node: ir.Node, mask: ir.Value) -> ir.Value:
    """Convert a boolean mask [B, 1, Q, S] to a float32 one that is added to the scores; inserted before `node`."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    constants = []
    for name, number in (("attention_bias.kept", 0.0), ("attention_bias.masked", MASKED_SCORE)):
        existing = graph.initializers.get(name)
        constants.append(existing or add_initializer(graph, name, np.array(number, dtype=np.float32)))
    (bias,) = insert_before(node, "Where", [mask, *constants], like=mask)
    bias.type = ir.TensorType(ir.DataType.FLOAT)
    return bias


def _skip_layer_normalization(node: ir.Node) -> None:
    """Replace LayerNormalization of residual + projection by SkipLayerNormalization with the projection's bias."""
    add = node.inputs[0].producer() if node.inputs[0] is not None else None
    if add is None or add.op_type != "Add" or len(add.outputs[0].consumers()) != 1:
        raise NoMatch("expected a sum that only the normalization reads")
    if node.attributes["axis"].as_int() != -1:
        raise NoMatch("expected the last axis")
    for residual, projected in (add.inputs, reversed(add.inputs)):
        try:
            linear = as_linear(projected)
        except NoMatch:
            continue
        (output,) = insert_before(
            node,
            "SkipLayerNormalization",
            [linear.matmul.outputs[0], residual, *node.inputs[1:3], *([] if linear.bias is None else [linear.bias])],
            like=node.outputs[0],
            attributes={"epsilon": node.attributes["epsilon"].as_float()},
            domain=MICROSOFT_DOMAIN,
        )
        node.outputs[0].replace_all_uses_with(output)
        return
    raise NoMatch("expected a projection to be added to a residual")


def _bias_gelu(node: ir.Node) -> None:
    """Replace Gelu of a projection by BiasGelu, or by FastGelu for the tanh approximation.

    torch leaves out a bias that is all zero, which is added again.
    """
    linear = as_linear(node.inputs[0])
    approximate = node.attributes["approximate"].as_string() if "approximate" in node.attributes else "none"
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    bias = linear.bias or add_initializer(graph, f"{scope(node)}.bias", linear.bias_array)
    (output,) = insert_before(
        node,
        "BiasGelu" if approximate == "none" else "FastGelu",
        [linear.matmul.outputs[0], bias],
        like=node.outputs[0],
        domain=MICROSOFT_DOMAIN,
    )
    node.outputs[0].replace_all_uses_with(output)
