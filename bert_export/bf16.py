"""Build the bf16 variant for the CPU: the FP32 graph with bfloat16 weights, and functions with bf16 kernels.

Only the operands of matmuls are rounded, weights here and activations in the kernels. Sums, biases, activations,
softmax and LayerNorm stay in FP32. Without such kernels the functions multiply in FP32 by the rounded weights.
"""

import math
from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from bert_export.capture import OPSET
from bert_export.graph_files import save_graph
from bert_export.kernel_functions import BF16_FUNCTIONS
from bert_export.onnx_graph import (
    add_initializer,
    check_counts,
    constant,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_export.outline_embeddings import embedding_function
from bert_export.outline_kernels import lower_for_cpu
from bert_export.quantization import expected_projections
from bert_export.quantization.embeddings import MIN_ELEMENTS
from bert_export.variants import BuildContext, BuiltVariant, Fp32Variant, check_finite, finish_variant, measure_drift
from bert_export.vocabulary_pooling import vocabulary_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN, has_bf16_kernels

__all__ = ["build_bf16", "convert_to_bf16"]

_SELF_TEST_SHARE = 2.0
"""Tolerance of the self-test on another machine, as a share of the maximum drift from FP32: without bf16 kernels the
activations are not rounded, so that outputs can differ by all of the drift. The share is a judgement."""

_EVALUATED_IN_FP32 = "a processor without bf16 kernels: weights rounded, matmuls in FP32"


def build_bf16(context: BuildContext, fp32: Fp32Variant) -> BuiltVariant:
    """Round the weights of a copy of the fused FP32 graph to bfloat16, and measure its drift.

    Raises:
        FusionError: the number of projections is not what the model's configuration demands.
        ExportError: an output on the probe's texts is not finite.
    """
    probe = context.probe
    context.progress("converting to bf16")
    lowered = lower_for_cpu(fp32.graph, fp32.fusions)
    calls = convert_to_bf16(lowered.graph)
    projections = sum(count for name, count in calls.items() if name.startswith("Bf16Linear"))
    expected = expected_projections(context.torch_model.config, fp32.fusions)
    counts = check_counts({"bf16_matmul": projections}, {"bf16_matmul": expected}, [])
    files = save_graph(lowered.graph, context.folder, "bf16")
    context.progress(f"measuring bf16 drift on {len(probe.texts)} texts")
    runtime_model = context.open_runtime_model(context.folder / files.model.file)
    outputs = runtime_model.outputs(probe.texts)
    check_finite(outputs, "bf16")
    drift = measure_drift(runtime_model.task, outputs, fp32.outputs)
    return finish_variant(
        context, runtime_model, outputs, files,
        tolerance=max(1e-4, _SELF_TEST_SHARE * drift["max_abs_difference"]),
        precision="bf16", target="cpu", opset=OPSET, instruction_set="bf16",
        fusions={**lowered.fusions, **counts}, functions=calls, drift=drift,
        evaluated_on="" if has_bf16_kernels() else _EVALUATED_IN_FP32,
    )  # fmt: skip


def convert_to_bf16(graph: ir.Model) -> Mapping[str, int]:
    """Call the bf16 functions in an outlined FP32 graph, in place, with weights and large embeddings in bfloat16.

    Projections outside the encoder stay in FP32: they are a pooler and a head, which run on few tokens and make the
    outputs.

    Returns:
        The number of calls of each function that has native kernels, those that stay in FP32 included.
    """
    weights: dict[ir.Value, ir.Value] = {}
    counts: Counter[str] = Counter()
    for node in list(graph.graph):
        if node.domain != KERNEL_DOMAIN:
            continue
        if f"Bf16{node.op_type}" in BF16_FUNCTIONS and _is_converted(node):
            _convert_call(graph, node, weights)
        counts[node.op_type] += 1
    _convert_embeddings(graph, weights)
    called = {node.op_identifier() for node in graph.graph if node.domain == KERNEL_DOMAIN}
    for identifier in [key for key in graph.functions if key[0] == KERNEL_DOMAIN and key not in called]:
        del graph.functions[identifier]
    tidy(graph)
    return dict(counts)


def _is_converted(call: ir.Node) -> bool:
    """Return whether a call is attention, vocabulary pooling or a projection of the encoder."""
    return not call.op_type.startswith("Linear") or scope(call).startswith("encoder.")


def _convert_call(graph: ir.Model, call: ir.Node, weights: dict[ir.Value, ir.Value]) -> None:
    """Let a call be one of the bf16 function, with its weight in bfloat16 unless it is attention."""
    call.op_type = f"Bf16{call.op_type}"
    if not call.op_type.endswith("Attention"):
        call.replace_input_with(1, _rounded(graph, call.inputs[1], weights))
    function = BF16_FUNCTIONS[call.op_type] or vocabulary_function(call)
    graph.functions[function.identifier()] = function


def _rounded(graph: ir.Model, weight: ir.Value | None, weights: dict[ir.Value, ir.Value]) -> ir.Value:
    """Return the bfloat16 copy of a weight, which calls that share the weight share."""
    assert weight is not None
    if weight not in weights:
        array = constant(weight).astype(ir.DataType.BFLOAT16.numpy())  # rounds to nearest even
        weights[weight] = add_initializer(graph.graph, f"{weight.name}.bf16", array)
    return weights[weight]


def _convert_embeddings(graph: ir.Model, weights: dict[ir.Value, ir.Value]) -> None:
    """Store large tables in bfloat16, unless something in FP32 reads them as well."""
    for call in operators(graph, "EmbedNorm"):
        table = call.inputs[1]
        if table is not None and math.prod(constant(table).shape) >= MIN_ELEMENTS and len(table.consumers()) == 1:
            call.replace_input_with(1, _rounded(graph, table, weights))
            function = embedding_function(call)
            graph.functions[function.identifier()] = function
    for gather in operators(graph, "Gather"):
        table, ids = gather.inputs
        if table is None or table.const_value is None or gather.attributes.get_int("axis", 0) != 0:
            continue
        if math.prod(table.const_value.shape.numpy()) < MIN_ELEMENTS or len(table.consumers()) > 1:
            continue
        output = gather.outputs[0]
        like = ir.Value(type=ir.TensorType(ir.DataType.BFLOAT16), shape=output.shape)
        (rows,) = insert_before(gather, "Gather", [_rounded(graph, table, weights), ids], like=like)
        (floats,) = insert_before(gather, "Cast", [rows], like=output, attributes={"to": ir.DataType.FLOAT})
        output.replace_all_uses_with(floats)
