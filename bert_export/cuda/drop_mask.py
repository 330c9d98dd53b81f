"""Remove attention's mask from a graph for CUDA, for batches without padding.

Attention that adds nothing to its scores runs FlashAttention 2, whereas a mask restricts it to cutlass'
memory-efficient kernel (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert/multihead_attention.cc). Pooling still
reads the mask.
"""

import onnx_ir as ir

from bert_export.cuda.attention import MASK_INPUT
from bert_export.onnx_graph import MICROSOFT_DOMAIN, FusionCounts, check_counts, tidy
from bert_models import EncoderConfig

__all__ = ["drop_attention_mask"]

_NUM_OPERANDS = {"Attention": 3, "MultiHeadAttention": 4}
"""The number of inputs before the mask that are read: input, weight and bias; query, key, value and bias."""


def drop_attention_mask(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Remove the mask from every attention of a graph of `fuse_for_cuda`, in FP32 or FP16, in place.

    Raises:
        FusionError: An attention reads more than its operands and a mask, such as a past.
    """
    found, reasons = 0, []
    for node in (node for node in graph.graph if node.op_type in _NUM_OPERANDS):
        operands = _NUM_OPERANDS[node.op_type]
        others = [value.name for value in node.inputs[operands:MASK_INPUT] if value is not None]
        if node.domain != MICROSOFT_DOMAIN or others:
            reasons.append(f"unmasked_attention at {node.name}: expected operands and a mask, found {others}")
            continue
        node.resize_inputs(operands)
        found += 1
    tidy(graph)
    return check_counts({"unmasked_attention": found}, {"unmasked_attention": config.num_layers}, reasons)
