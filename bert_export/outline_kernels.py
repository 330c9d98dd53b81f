"""Outline groups of operators as the ONNX functions of `bert_export.kernel_functions`, which have native kernels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import onnx_ir as ir

from bert_export.function_calls import call_function
from bert_export.fusion import add_padding_branch
from bert_export.fusion.prune_tokens import key_mask
from bert_export.fusion.rotary import rotary_source
from bert_export.kernel_functions import FUNCTIONS
from bert_export.onnx_graph import (
    FusionCounts,
    NoMatch,
    add_initializer,
    as_linear,
    constant,
    graph_of,
    insert_before,
    operators,
    producer,
    scope,
    sole_consumer,
    tidy,
)
from bert_export.operator_attributes import attention_scale, check_heads_and_scale, gelu_approximation
from bert_export.outline_embeddings import outline_embeddings
from bert_export.outline_gated import activated_gate
from bert_export.outline_heads import outline_first_token_attention, outline_mean_pool
from bert_export.outline_norms import outline_norm
from bert_export.outline_relative import relative_call
from bert_export.outline_rotary import check_local_attention, rotary_call
from bert_export.pack_rows import has_packed_rows, pack_rows
from bert_export.position_functions import POSITION_SCORES
from bert_export.pruning_function import KEEP_TOKENS
from bert_export.vocabulary_pooling import POOLING_FUNCTIONS
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["LoweredGraph", "lower_for_cpu", "outline_kernels"]


class LoweredGraph(NamedTuple):
    """A graph as it runs on the CPU."""

    graph: ir.Model
    fusions: FusionCounts
    """The fusions of the graph that it was made from, the branches for batches without padding, and packed rows."""
    calls: Mapping[str, int]
    """The number of calls of each function that has native kernels."""


def lower_for_cpu(graph: ir.Model, fusions: FusionCounts) -> LoweredGraph:
    """Add the branches for batches without padding, outline the functions that have native kernels, and pack rows.

    Args:
        graph: a fused graph, in FP32 or INT8; it is not changed.
        fusions: its fusions.

    Returns:
        A copy of the graph, which shares its weights, and the counts.

    Raises:
        FusionError: the number of branches is not what `fusions` demands, or local attention stays as attention with a
            mask of queries × keys.
    """
    branched, branches = add_padding_branch(graph, fusions)
    outlined, calls = outline_kernels(branched)
    packed, added = pack_rows(outlined)
    packing = {"packed_rows": {"expected": 1, "found": int(has_packed_rows(packed))}}
    return LoweredGraph(packed, {**branches, **packing}, {**calls, **added})


def outline_kernels(graph: ir.Model) -> tuple[ir.Model, Mapping[str, int]]:
    """Replace groups of operators by calls of `FUNCTIONS`.

    Groups that no kernel computes, such as those with another activation, stay as they are.

    Args:
        graph: a fused graph, in FP32 or INT8; it is not changed.

    Returns:
        A copy of the graph, which shares its weights, and the number of calls of each function.

    Raises:
        FusionError: local attention stays as attention with a mask of queries × keys.
    """
    outlined = graph.clone()
    counts: Counter[str] = Counter()
    _outline_relative_attentions(outlined, counts)
    _outline_rotary_attentions(outlined, counts)
    _quantize_before_pruning(outlined)
    with suppress(NoMatch):
        counts[outline_embeddings(outlined)] += 1
    if not operators(outlined, POSITION_SCORES.name):
        outlined.functions.pop(POSITION_SCORES.identifier(), None)
    for op_type, outline in (
        ("If", _outline_attention),
        ("Mul", _outline_gated),
        ("Gelu", _outline_linear_gelu),
        ("MatMulIntegerToFloat", _outline_quantized_linear),
        ("MatMul", _outline_linear),
        ("LayerNormalization", outline_norm),
        ("Attention", outline_first_token_attention),
        ("Div", outline_mean_pool),
    ):
        for node in operators(outlined, op_type):
            try:
                counts[outline(node)] += 1
            except NoMatch:
                continue
        tidy(outlined)
    for call in (
        node for name in (*POOLING_FUNCTIONS, KEEP_TOKENS.name) for node in operators(outlined, name)
    ):  # calls since `fuse`
        counts[call.op_type] += 1
    for name, function in FUNCTIONS.items():
        if counts[name]:
            outlined.functions[function.identifier()] = function
    if counts:
        outlined.graph.opset_imports[KERNEL_DOMAIN] = 1
    return outlined, dict(counts)


def _quantize_before_pruning(graph: ir.Model) -> None:
    """Quantize attention's output before tokens leave, so that attention itself does it."""
    for gather in operators(graph, "GatherND"):
        try:
            quantize = sole_consumer(gather.outputs[0], "QuantizeLinear")
        except NoMatch:
            continue
        source, uint8 = gather.inputs[0], quantize.outputs[0]
        assert source is not None
        (quantized,) = insert_before(
            gather, "QuantizeLinear", [source, *quantize.inputs[1:]], like=uint8, shapes=[source.shape]
        )
        gather_inputs, attributes = [quantized, *gather.inputs[1:]], {"batch_dims": 1}
        (rows,) = insert_before(gather, "GatherND", gather_inputs, like=uint8, attributes=attributes)
        uint8.replace_all_uses_with(rows)
    tidy(graph)


def _outline_attention(branch: ir.Node) -> str:
    """Outline attention in the branch of `add_padding_branch`, with the quantization of its output if there is one."""
    masked = branch.attributes["else_branch"].as_graph()
    found = [node.op_type for node in masked]
    if found != ["Attention"]:
        raise NoMatch(f"expected Attention in the branch, found {found}")
    attention = masked[0]
    inputs = [_merged_projections(attention), key_mask(attention.inputs[3]), None]
    called = _call_attention(branch, attention, inputs, ("SelfAttention", "QuantizedAttention"))
    for body in ("then_branch", "else_branch"):  # their nodes read values of the outer graph as long as they exist
        graph = branch.attributes[body].as_graph()
        graph.outputs.clear()
        graph.remove([*graph], safe=True)
    return called


def _outline_relative_attentions(graph: ir.Model, counts: Counter[str]) -> None:
    """Outline attention with relative positions, with the quantization of its output if there is one."""
    for attention in operators(graph, "Attention"):
        try:
            call, merged = relative_call(attention), _merged_projections(attention)
        except NoMatch:
            continue
        inputs = [merged, key_mask(call.mask), None, *call.tables]
        counts[_call_attention(attention, attention, inputs, call.names)] += 1
    tidy(graph)


def _outline_rotary_attentions(graph: ir.Model, counts: Counter[str]) -> None:
    """Outline attention with rotated queries and keys, with the quantization of its output if there is one."""
    for attention in operators(graph, "Attention"):
        try:
            call = rotary_call(graph, attention)
            merged = _merged_projections(attention)
        except NoMatch:
            continue
        name = "RotaryAttention" if call.window is None else "LocalAttention"
        window = {} if call.window is None else {"window": call.window}
        inputs = [merged, *call.inputs]
        counts[_call_attention(attention, attention, inputs, (name, f"Quantized{name}"), window)] += 1
    tidy(graph)
    check_local_attention(graph)


def _call_attention(
    node: ir.Node,
    attention: ir.Node,
    inputs: Sequence[ir.Value | None],
    names: tuple[str, str],
    extra: Mapping[str, int] | None = None,
) -> str:
    """Call a function for attention, or for attention with the quantization of its output.

    Args:
        node: the node whose output the call replaces: `attention`, or the branch that holds it.
        attention: gives the number of heads and the scale.
        inputs: the inputs of the function without the output's scale and zero point.
        names: the function in FP32 and in INT8.
        extra: further attributes.
    """
    consumers = node.outputs[0].consumers()
    quantizes = len(consumers) == 1 and consumers[0].op_type == "QuantizeLinear"
    last, name = (consumers[0], names[1]) if quantizes else (node, names[0])
    quantization = last.inputs[1:] if quantizes else []
    for value in quantization:
        constant(value)
    heads = attention.attributes["q_num_heads"].as_int()
    attributes = {"num_heads": heads, "scale": attention_scale(attention), **(extra or {})}
    return call_function(last, name, [*inputs, *quantization], last.outputs, attributes)


def _merged_projections(attention: ir.Node) -> ir.Value | None:
    """Return queries, keys and values [B, T, 3·H·S] in one, if the kernels compute such attention."""
    query, key, value = (rotary_source(operand) for operand in attention.inputs[:3])
    split = producer(query, "Split")
    if [*split.outputs] != [query, key, value]:
        raise NoMatch("expected queries, keys and values of one projection")
    check_heads_and_scale(attention)
    return split.inputs[0]


def _int8_matmul_inputs(matmul: ir.Node) -> list[ir.Value | None]:
    """Return the inputs of a MatMulIntegerToFloat as the kernels take them: [x, weight, scales, zero point, bias]."""
    x, weight, x_scale, scales, x_zero_point, weight_zero_point, bias = [*matmul.inputs, None][:7]
    for value in (x_scale, scales, x_zero_point, bias):
        constant(value)
    if constant(weight).shape[0] % 4 or weight_zero_point is not None:
        raise NoMatch("expected a bias, and a number of inputs that is a multiple of 4")
    return [x, weight, x_scale, scales, x_zero_point, bias]


def _outline_linear_gelu(gelu: ir.Node) -> str:
    """Outline a projection with exact GELU, and the quantization of its output if the projection is INT8."""
    if gelu_approximation(gelu) != "none":
        raise NoMatch("expected exact GELU")
    before = gelu.inputs[0].producer() if gelu.inputs[0] is not None else None
    if before is None:
        raise NoMatch("expected a projection")
    sole_consumer(before.outputs[0], "Gelu")
    if before.op_type == "Add":
        linear = as_linear(before.outputs[0])
        return call_function(gelu, "LinearGelu", [linear.input, linear.weight, linear.bias], gelu.outputs)
    return _call_quantized(producer(gelu.inputs[0], "MatMulIntegerToFloat"), gelu, "QuantizedLinearGelu")


def _outline_gated(product: ir.Node) -> str:
    """Outline a projection whose first half goes through exact GELU or SiLU and is multiplied by the second half."""
    gate, name = activated_gate(product.inputs[0])
    split = producer(gate, "Split")
    if [*split.outputs] != [gate, product.inputs[1]] or len(split.outputs[1].uses()) != 1:
        raise NoMatch("expected the two halves of one projection")
    before = split.inputs[0].producer() if split.inputs[0] is not None else None
    if before is not None and before.op_type == "Add":
        linear = as_linear(before.outputs[0])
        return call_function(product, f"LinearGated{name}", [linear.input, linear.weight, linear.bias], product.outputs)
    return _call_quantized(producer(split.inputs[0], "MatMulIntegerToFloat"), product, f"QuantizedLinearGated{name}")


def _call_quantized(matmul: ir.Node, last: ir.Node, name: str) -> str:
    """Call a function for an INT8 projection, what follows it up to `last`, and the quantization of its output."""
    quantize = sole_consumer(last.outputs[0], "QuantizeLinear")
    for value in quantize.inputs[1:]:
        constant(value)
    inputs = [*_int8_matmul_inputs(matmul), *quantize.inputs[1:]]
    return call_function(quantize, name, inputs, quantize.outputs)


def _outline_quantized_linear(matmul: ir.Node) -> str:
    """Outline an INT8 projection."""
    if not matmul.outputs[0].consumers():
        raise NoMatch("expected an output that is read")
    return call_function(matmul, "QuantizedLinear", _int8_matmul_inputs(matmul), matmul.outputs)


def _outline_linear(matmul: ir.Node) -> str:
    """Outline an FP32 projection, with a bias of zeros if it has none."""
    try:
        last = sole_consumer(matmul.outputs[0], "Add")
        linear = as_linear(last.outputs[0])
    except NoMatch:
        last, linear = matmul, as_linear(matmul.outputs[0])
    bias = linear.bias
    if bias is None:
        bias = add_initializer(graph_of(matmul), f"{scope(matmul)}.bias", linear.bias_array)
    return call_function(last, "Linear", [linear.input, linear.weight, bias], last.outputs)
