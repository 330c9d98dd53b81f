"""The fused graph in the operators that ONNX Runtime's CUDA provider has fast kernels for.

What was chosen, read from the provider's sources (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert), since there
was no GPU to measure on:

* `MultiHeadAttention` instead of the standard Attention, whose CUDA kernel only the newest releases have. With an
  additive mask it runs cutlass' memory-efficient kernel, where heads have a multiple of 8 channels and, in FP16,
  queries a multiple of 8 rows, to which the runtime pads; the single query of a layer reduced to its first row runs
  unfused. A mask [B, S] (`key_padding_mask`) would run the unfused kernel for all, and lengths are right for padding at
  one end alone. Without any mask it runs FlashAttention 2, for batches without padding: a graph of its own, see
  `bert_export.cuda.drop_mask`, whose weights are on the GPU a second time.
* `SkipLayerNormalization` adds bias and residual on the way. It accumulates in the element type unless the session sets
  `enable_skip_layer_norm_strict_mode`, as the runtime does. On the CPU it is slower than Add and LayerNormalization.
* `BiasGelu` for the exact GELU and `FastGelu` for the tanh one: each adds the bias of the projection before it.

The graph is in opset 20: kernels for later revisions of Cast, Shape, Squeeze and others came to the provider later
(docs/OperatorKernels.md there). That of onnxruntime-gpu 1.31.1 takes every operator of these graphs but for a few that
compute shapes.
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
"""What is added to the score of a masked token: its weight is 0, and a row with no other token stays finite."""


def fuse_for_cuda(model: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Rewrites a graph that `fuse` has been through, in place and still in FP32, and returns the counts.

    Raises `FusionError` where an operator was replaced a different number of times than the configuration demands.
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
        for node in operators(model, op_type):
            if not scope(node).startswith("encoder.layers."):
                continue
            try:
                rewrite(node)
                found[name] += 1
            except NoMatch as reason:
                reasons.append(f"{name} at {scope(node)}: {reason}")
    model.graph.opset_imports.update({"": CUDA_OPSET, MICROSOFT_DOMAIN: 1})
    tidy(model)
    return check_counts(found, expected, reasons)


def _attention(node: ir.Node) -> None:
    """Attention on [B, S, H] with a boolean mask → MultiHeadAttention with an additive one."""
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
    """A boolean mask [B, 1, Q, S] as what is added to the scores, float32 of the same shape; computed before `node`."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    constants = []
    for name, number in (("attention_bias.kept", 0.0), ("attention_bias.masked", MASKED_SCORE)):
        known = graph.initializers.get(name)
        constants.append(known or add_initializer(graph, name, np.array(number, dtype=np.float32)))
    (bias,) = insert_before(node, "Where", [mask, *constants], like=mask)
    bias.type = ir.TensorType(ir.DataType.FLOAT)
    return bias


def _skip_layer_normalization(node: ir.Node) -> None:
    """LayerNormalization of a residual and a projection → one SkipLayerNormalization with the projection's bias."""
    add = node.inputs[0].producer() if node.inputs[0] is not None else None
    if add is None or add.op_type != "Add" or len(add.outputs[0].consumers()) != 1:
        raise NoMatch("expected a sum that nothing else reads")
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
    """Gelu of a projection → BiasGelu, or FastGelu for the tanh form; a bias that torch left out is zero."""
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
