"""Remove attention's mask from a graph for CUDA, for batches without padding.

Attention that adds nothing to its scores runs FlashAttention 2, whereas a mask restricts it to cutlass'
memory-efficient kernel (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert/attention.cc). Pooling still
reads the mask. A position bias is still added, and restricts attention in the same way.
"""

import onnx_ir as ir

from bert_export.cuda.attention import MASK_INPUT, unmasked_bias
from bert_export.onnx_graph import MICROSOFT_DOMAIN, FusionCounts, check_counts, operators, tidy
from bert_models import EncoderConfig

__all__ = ["drop_attention_mask"]

_NUM_OPERANDS = 3
"""Input, weight and bias, the inputs of attention that stay."""


def drop_attention_mask(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Remove the mask from every attention of a graph of `fuse_for_cuda`, in FP32 or FP16, in place.

    Raises:
        FusionError: an attention reads more than its operands and a mask, such as a past.
    """
    found, reasons = 0, []
    for node in operators(graph, "Attention"):
        others = [value.name for value in node.inputs[_NUM_OPERANDS:MASK_INPUT] if value is not None]
        if node.domain != MICROSOFT_DOMAIN or others:
            reasons.append(f"unmasked_attention at {node.name}: expected operands and a mask, found {others}")
            continue
        if (bias := unmasked_bias(node.inputs[MASK_INPUT])) is None:
            node.resize_inputs(_NUM_OPERANDS)
        else:
            node.replace_input_with(MASK_INPUT, bias)
        found += 1
    tidy(graph)
    return check_counts({"unmasked_attention": found}, {"unmasked_attention": config.num_layers}, reasons)
