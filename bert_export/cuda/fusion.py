"""Replace operators of the fused graph by those that ONNX Runtime's CUDA provider has fast kernels for.

They were chosen by reading the provider's sources (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert), since
there was no GPU to measure on:

* com.microsoft's `Attention` (`bert_export.cuda.attention`) instead of the standard one, whose CUDA kernel only the
  newest releases have. With an additive mask it runs cutlass' memory-efficient kernel if heads have a multiple of 8
  channels and, in FP16, the number of tokens is a multiple of 8, to which the runtime pads. A mask [B, S] would run the
  unfused kernel everywhere, and sequence lengths express padding at one end alone. Without any mask it runs
  FlashAttention 2, for batches without padding: a graph of its own, see `bert_export.cuda.drop_mask`, whose weights are
  on the GPU a second time.
* `SkipLayerNormalization` adds the bias and the residual itself. On the CPU it is slower than Add and
  LayerNormalization.
* `BiasGelu` for the exact GELU and `FastGelu` for its tanh approximation: both add the bias of the projection before.

The graph is in opset 20: the provider got kernels for later revisions of Cast, Shape, Squeeze and others only later
(docs/OperatorKernels.md there). The provider of onnxruntime-gpu 1.31.1 runs every operator of these graphs except a few
that compute shapes.

A layer launches 9 kernels, 4 of them matmuls, in every padding mode, counted with onnxruntime-gpu 1.31.1 on stub CUDA
libraries: projection, bias and separation of query, key and value, attention, projection, normalization, projection,
GELU, projection, normalization. A matmul that adds its bias and the GELU itself would take cublasLt, which the provider
uses for FP8 alone.
"""

from collections import Counter

import onnx_ir as ir

from bert_export.cuda.attention import replace_attention
from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    NoMatch,
    add_initializer,
    as_linear,
    check_counts,
    graph_of,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_export.operator_attributes import gelu_approximation
from bert_export.vocabulary_pooling import expand_vocabulary_pooling
from bert_models import EncoderConfig

__all__ = ["CUDA_OPSET", "fuse_for_cuda"]

CUDA_OPSET = 20
"""The first opset with Gelu, which heads keep."""


def fuse_for_cuda(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Rewrite a graph that `fuse` returned, in place and still in FP32, and return the counts.

    Raises:
        FusionError: an operator was replaced a different number of times than the configuration demands.
    """
    expand_vocabulary_pooling(graph)
    layers = config.num_layers
    expected = {
        "attention_with_projection": layers,
        "skip_layer_normalization": 2 * layers,
        "bias_gelu": layers if config.activation.startswith("gelu") else 0,
    }
    found: Counter[str] = Counter()
    reasons: list[str] = []
    for op_type, rewrite in (
        ("Attention", replace_attention),
        ("LayerNormalization", _skip_layer_normalization),
        ("Gelu", _bias_gelu),
    ):
        for node in operators(graph, op_type):
            if node.domain == MICROSOFT_DOMAIN or not scope(node).startswith("encoder.layers."):
                continue
            try:
                found[rewrite(node)] += 1
            except NoMatch as reason:
                reasons.append(f"{op_type} at {scope(node)}: {reason}")
    graph.graph.opset_imports.update({"": CUDA_OPSET, MICROSOFT_DOMAIN: 1})
    tidy(graph)
    return check_counts(found, expected, reasons)


def _skip_layer_normalization(node: ir.Node) -> str:
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
        return "skip_layer_normalization"
    raise NoMatch("expected a projection to be added to a residual")


def _bias_gelu(node: ir.Node) -> str:
    """Replace Gelu of a projection by BiasGelu, or by FastGelu for the tanh approximation.

    torch leaves out a bias that is all zero, which is added again.
    """
    linear = as_linear(node.inputs[0])
    bias = linear.bias or add_initializer(graph_of(node), f"{scope(node)}.bias", linear.bias_array)
    (output,) = insert_before(
        node,
        "BiasGelu" if gelu_approximation(node) == "none" else "FastGelu",
        [linear.matmul.outputs[0], bias],
        like=node.outputs[0],
        domain=MICROSOFT_DOMAIN,
    )
    node.outputs[0].replace_all_uses_with(output)
    return "bias_gelu"
