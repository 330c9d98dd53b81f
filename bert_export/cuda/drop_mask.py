"""A graph for CUDA without a mask, for batches without padding.

Attention without anything to add to its scores runs FlashAttention 2, where a mask keeps to cutlass' memory-efficient
kernel (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert/multihead_attention.cc). Poolings still read the mask.
"""

import onnx_ir as ir

from bert_export.onnx_graph import MICROSOFT_DOMAIN, FusionCounts, check_counts, operators, tidy
from bert_models import EncoderConfig

__all__ = ["drop_attention_mask"]

_OPERANDS = 3
"""Query, key and value, the inputs of attention that stay."""


def drop_attention_mask(model: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Takes the mask out of a graph of `fuse_for_cuda`, also one in half precision, in place and returns the counts.

    Raises `FusionError` where attention reads anything but its operands and a mask, as with a bias or a past.
    """
    found, reasons = 0, []
    for node in operators(model, "MultiHeadAttention"):
        others = [value.name for value in node.inputs[_OPERANDS:5] if value is not None]
        if node.domain != MICROSOFT_DOMAIN or others:
            reasons.append(f"unmasked_attention at {node.name}: expected operands and a mask, found {others}")
            continue
        node.resize_inputs(_OPERANDS)
        found += 1
    tidy(model)
    return check_counts({"unmasked_attention": found}, {"unmasked_attention": config.num_layers}, reasons)
