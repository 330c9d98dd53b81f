"""Build the graph that also gives attention probabilities: the fused FP32 graph, with an output for each layer.

ONNX's Attention can return the probabilities that it multiplies the values by, as its fourth output. So the graph has
the operators and the weights of the FP32 variant, and shares its file of weights. Where that variant computes the last
layer for the first token alone, this graph computes it for all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bert_export.capture import OPSET
from bert_export.errors import ParityError
from bert_export.fusion.first_token_only import unfuse_first_token_only
from bert_export.onnx_graph import check_counts, insert_before, operators
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.variants import BuildContext, Fp32Variant
from bert_models import EncoderConfig, TaskModel
from bert_runtime.bundle.manifest import AttentionGraph, TensorSpec
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["add_attention_outputs", "build_attention_graph", "reference_attention"]

_AFTER_SOFTMAX = 3
"""Value of Attention's `qk_matmul_output_mode` for probabilities."""

_TOLERANCE = 1e-4
"""Largest absolute difference of a probability that float32 arithmetic in another order explains. A judgement."""

_MAX_PROBE_TOKENS = 128
"""Length of the longest batch on which probabilities are compared: their memory grows with its square."""


def _output_name(layer: int) -> str:
    """Return the name of the output for a layer, from 0."""
    return f"attention.{layer}"


def add_attention_outputs(graph: ir.Model, config: EncoderConfig) -> ir.Model:
    """Return a copy of a fused FP32 graph, which shares its weights, with an output `attention.<layer>` per layer.

    Args:
        graph: a graph that `fuse` returned.
        config: the model's configuration.

    Raises:
        FusionError: the graph has another number of Attention nodes than the model has layers.
    """
    copy = graph.clone()
    unfuse_first_token_only(copy)
    nodes = operators(copy, "Attention")
    check_counts({"attention": len(nodes)}, {"attention": config.num_layers}, [])
    for layer, node in enumerate(nodes):
        copy.graph.outputs.append(_with_probabilities(node, _output_name(layer), config.num_heads))
    RemoveUnusedNodesPass()(copy)
    return copy


def _with_probabilities(node: ir.Node, name: str, num_heads: int) -> ir.Value:
    """Replace an Attention node by one that also returns its probabilities, and return these."""
    (attended,) = node.outputs
    attributes = {key: attribute.value for key, attribute in node.attributes.items()}
    output, *cache, probabilities = insert_before(
        node,
        "Attention",
        node.inputs,
        like=[attended] * 4,
        attributes={**attributes, "qk_matmul_output_mode": _AFTER_SOFTMAX},
        shapes=[attended.shape, None, None, ir.Shape(["batch", num_heads, "sequence", "sequence"])],
    )
    for value in cache:  # keys and values of a decoder's cache: optional outputs that are left out
        value.name = ""
    probabilities.name = name
    attended.replace_all_uses_with(output)
    return probabilities


def build_attention_graph(context: BuildContext, fp32: Fp32Variant) -> AttentionGraph | None:
    """Compare the attention graph on disk with PyTorch, and return its manifest entry; `None` if none was asked for.

    Raises:
        ParityError: the model's output or a probability differs from PyTorch's under some kind of padding.
    """
    if fp32.attention_files is None:
        return None
    context.progress("comparing attention with PyTorch under every kind of padding")
    torch_model, files = context.torch_model, fp32.attention_files
    session = Session(context.folder / files.model.file, torch_model.task.output, available_cores(), kernels=False)
    check_parity(torch_model, session.run, context.max_tokens)
    config = torch_model.config
    outputs = tuple(
        TensorSpec(name=_output_name(layer), dtype="float32", axes=("batch", config.num_heads, "sequence", "sequence"))
        for layer in range(config.num_layers)
    )
    max_tokens = min(context.max_tokens, _MAX_PROBE_TOKENS)
    parity = _check_attention_parity(torch_model, session, [output.name for output in outputs], max_tokens)
    return AttentionGraph(model=files.model, external_data=files.data, opset=OPSET, outputs=outputs, parity=parity)


def _check_attention_parity(
    torch_model: TaskModel, session: Session, names: Sequence[str], max_tokens: int
) -> dict[str, float]:
    """Compare the probabilities with PyTorch's; return the maximum absolute error and the tolerance."""
    errors = {
        kind: max(
            float(np.abs(found - expected).max())
            for found, expected in zip(
                session.run_outputs(batch, names), reference_attention(torch_model, batch), strict=True
            )
        )
        for kind, batch in probe_batches(torch_model, max_tokens).items()
    }
    if failed := [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= _TOLERANCE]:
        raise ParityError(
            f"the attention graph's probabilities differ from PyTorch's by more than {_TOLERANCE:.0e} on inputs that "
            f"are {', '.join(failed)}; export without attention"
        )
    return {"max_abs_error": max(errors.values()), "tolerance": _TOLERANCE}


def reference_attention(torch_model: TaskModel, batch: Batch) -> list[FloatArray]:
    """Compute the PyTorch model's attention probabilities: per layer, float32 [B, heads, S, S]."""
    with _AttentionRecorder() as recorder:
        reference_outputs(torch_model, batch)
    return recorder.probabilities


class _AttentionRecorder(TorchFunctionMode):
    """Within its context, record the probabilities of every `scaled_dot_product_attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.probabilities: list[FloatArray] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.probabilities.append(_probabilities(args[0], args[1], kwargs.get("attn_mask"), kwargs.get("scale")))
        return func(*args, **kwargs)


def _probabilities(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> FloatArray:
    """Return softmax(Q Kᵀ · scale + mask), by default with the scale 1 / √D."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    probabilities: FloatArray = scores.softmax(dim=-1).numpy()
    return probabilities
