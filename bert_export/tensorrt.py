"""Build the TensorRT variants of a bundle: one graph in standard ONNX operators, which TensorRT fuses itself.

TensorRT takes the operators that its parser knows, and ONNX Runtime's fused ones are not among them. So attention is
decomposed, and the graph stays in opset 20 and in FP32. Whether the engine computes in FP16 is decided when it is
built; TensorRT 10 then chooses a precision for each layer, which a graph cannot pin. A model whose values overflow FP16
therefore gets FP32 alone.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import onnx_ir as ir

from bert_export.cuda.attention import additive_mask
from bert_export.cuda.fp16 import has_float_output
from bert_export.cuda.fp16_overflow import find_fp16_overflows, overflow_batches
from bert_export.cuda.parity import FP16_TOLERANCE
from bert_export.errors import ExportError
from bert_export.fusion.position_bias import narrow_to_first_query
from bert_export.graph_files import save_graph
from bert_export.onnx_graph import (
    FusionCounts,
    NoMatch,
    add_initializer,
    check_counts,
    graph_of,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_export.operator_attributes import attention_scale, query_width
from bert_export.parity import check_parity
from bert_export.variants import BuildContext, BuiltVariant, Fp32Variant, finish_variant, measure_drift
from bert_export.vocabulary_pooling import expand_vocabulary_pooling
from bert_models import EncoderConfig

__all__ = ["TENSORRT_OPSET", "build_tensorrt", "can_be_fp16", "decompose_attention"]

TENSORRT_OPSET = 20
"""The first opset with Gelu."""

_MASKED_SCORES = "attention.masked_scores"
"""Name prefix of attention scores after the mask is added, which are large on purpose."""

EVALUATED_ON = "the CPU provider in FP32, not TensorRT"
"""How a TensorRT variant was measured."""


def build_tensorrt(
    context: BuildContext, fp32: Fp32Variant, precisions: Sequence[str], *, allow_fp32_fallback: bool = True
) -> list[BuiltVariant]:
    """Build the TensorRT variants; all precisions share one graph.

    Args:
        context: the export's context.
        fp32: the CPU's FP32 variant.
        precisions: `fp32`, `fp16`, both or none.
        allow_fp32_fallback: whether a model whose values overflow FP16 gets FP32 where only `fp16` was asked for.

    Raises:
        ExportError: values overflow FP16 and there is no fallback.
        FusionError: attention was decomposed in a different number of layers than the model has.
        ParityError: the graph does not compute what the PyTorch model computes.
    """
    if not precisions:
        return []
    context.progress("decomposing attention for TensorRT")
    graph = fp32.graph.clone()
    fusions = {**fp32.fusions, **decompose_attention(graph, context.torch_model.config)}
    if "fp16" in precisions and (reason := _fp16_overflow(context, graph)):
        if not allow_fp32_fallback and "fp32" not in precisions:
            raise ExportError(f"{reason}; leave --precision out, or give fp32 as well")
        context.progress(f"{reason}: making FP32 alone")
        precisions = ("fp32",)
    files = save_graph(graph, context.folder, "tensorrt")
    context.progress("comparing the graph for TensorRT with PyTorch under every kind of padding")
    runtime_model = context.open_runtime_model(context.folder / files.model.file)
    parity = check_parity(context.torch_model, runtime_model.session.run, context.max_tokens)
    outputs = runtime_model.outputs(context.probe.texts)
    drift = measure_drift(runtime_model.task, outputs, fp32.outputs)
    scale = max(0.1, max(float(np.abs(output.flat).max(initial=0)) for output in fp32.outputs))
    tolerances = {"fp32": parity["tolerance"], "fp16": FP16_TOLERANCE * scale}
    return [
        finish_variant(
            context, runtime_model, outputs, files, tolerance=tolerances[precision],
            precision=precision, target="tensorrt", opset=TENSORRT_OPSET, fusions=fusions, parity=parity, drift=drift,
            evaluated_on=EVALUATED_ON,
        )
        for precision in precisions
    ]  # fmt: skip


def _fp16_overflow(context: BuildContext, graph: ir.Model) -> str | None:
    """Return why the graph cannot run in FP16; `None` if it can."""
    overflows = find_fp16_overflows(graph, overflow_batches(context.torch_model, context.probe), can_be_fp16)
    if not overflows:
        return None
    return f"{len(overflows)} operators have values up to {max(overflows.values()):.3g}, too large for TensorRT in FP16"


def can_be_fp16(node: ir.Node) -> bool:
    """Return whether TensorRT may run a node in FP16: any, where masked scores stay as good as minus infinity."""
    return has_float_output(node) and not str(node.outputs[0].name).startswith(_MASKED_SCORES)


def decompose_attention(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Replace the Attention operators of a graph that `fuse` returned by standard ones, in place and in FP32.

    Raises:
        FusionError: attention was decomposed in a different number of layers than `config` has.
    """
    expand_vocabulary_pooling(graph)
    found, reasons = 0, []
    for node in operators(graph, "Attention"):
        try:
            _decompose(node)
            found += 1
        except NoMatch as reason:
            reasons.append(f"attention at {scope(node)}: {reason}")
    graph.graph.opset_imports.update({"": TENSORRT_OPSET})
    tidy(graph)
    # The key in bundles; the rewrite is called decomposition everywhere else.
    return check_counts({"attention_spelled_out": found}, {"attention_spelled_out": config.num_layers}, reasons)


def _decompose(node: ir.Node) -> None:
    """Replace Attention on [B, S, H] by Reshape, Transpose, MatMul, Add and Softmax."""
    query, key, value = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    graph = graph_of(node)
    if any(operand is None or operand.shape is None for operand in (query, key, value)):
        raise NoMatch("expected operands of known shape")
    assert query is not None
    assert query.shape is not None
    heads, width = node.attributes["q_num_heads"].as_int(), query_width(node)

    def add(op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        return insert_before(node, op_type, inputs, like=node.outputs[0], shapes=[None], attributes=attributes)[0]

    def split_heads(operand: ir.Value | None, perm: tuple[int, ...]) -> ir.Value:
        shape = add_initializer(graph, "attention.heads", np.array([0, 0, heads, width // heads], dtype=np.int64))
        return add("Transpose", add("Reshape", operand, shape), perm=perm)

    # Scale queries and keys by the root each, as ONNX defines the operator: scaled afterwards, their product may
    # overflow in FP16.
    root = add_initializer(graph, "attention.scale", np.array(sqrt(attention_scale(node)), dtype=np.float32))
    queries = add("Mul", split_heads(query, (0, 2, 1, 3)), root)
    keys = add("Mul", split_heads(key, (0, 2, 3, 1)), root)
    scores = add("MatMul", queries, keys)
    if mask is not None:
        if mask.dtype == ir.DataType.FLOAT and query.shape[1] == 1:
            narrow_to_first_query(node)
            mask = node.inputs[3]
        assert mask is not None
        scores = add("Add", scores, additive_mask(node, mask))
        scores.name = f"{_MASKED_SCORES}.{node.outputs[0].name}"
    attended = add("MatMul", add("Softmax", scores, axis=-1), split_heads(value, (0, 2, 1, 3)))
    transposed = add("Transpose", attended, perm=(0, 2, 1, 3))
    shape = add_initializer(graph, "attention.whole", np.array([0, 0, width], dtype=np.int64))
    (output,) = insert_before(node, "Reshape", [transposed, shape], like=node.outputs[0])
    node.outputs[0].replace_all_uses_with(output)
