"""The TensorRT variants of a bundle: one graph in plain ONNX operators, which TensorRT fuses itself.

TensorRT takes the operators that its parser knows. ONNX Runtime's fused ones are not among them, so attention is
spelled out, and the graph stays in opset 20 and in FP32. Whether the engine computes in FP16 is said when it is built:
TensorRT 10 then chooses a precision for each layer, which a graph cannot pin. So a model whose values grow too large
for half precision gets FP32 alone.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.cuda.build import HALF_TOLERANCE, range_batches
from bert_export.cuda.fp16_overflow import find_fp16_overflows
from bert_export.cuda.fusion import additive_mask
from bert_export.errors import ExportError
from bert_export.onnx_graph import (
    FusionCounts,
    NoMatch,
    add_initializer,
    check_counts,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_export.parity import check_parity
from bert_export.variants import BuiltVariant, Probe, open_runner, save_graph, self_test_of
from bert_models import EncoderConfig, TaskModel
from bert_runtime.bundle.manifest import Variant
from bert_runtime.tasks import max_abs_difference

__all__ = ["TENSORRT_OPSET", "build_tensorrt", "decompose_attention"]

TENSORRT_OPSET = 20
"""The first opset with Gelu."""

_MASKED_SCORES = "attention.masked_scores"
"""What the names of scores begin with that are large on purpose."""

EVALUATED_ON = "the CPU provider in FP32, not TensorRT"
"""How the numbers of a TensorRT variant came about."""


def build_tensorrt(
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    precisions: Sequence[str],
    progress: Callable[[str], None],
    *,
    exactly: bool = False,
) -> list[BuiltVariant]:
    """The TensorRT variants of those precisions, `fp32` and `fp16`, which are one graph.

    FP32 alone for a model whose values are too large for FP16; `exactly` raises `ExportError` instead where FP16 alone
    is asked for. Raises `FusionError` or `ParityError` where the graph is not what it should be.
    """
    if not precisions:
        return []
    progress("spelling attention out for TensorRT")
    graph = fp32.graph.clone()
    fusions = {**fp32.fusions, **decompose_attention(graph, model.config)}
    if "fp16" in precisions:
        found = find_fp16_overflows(graph, range_batches(model, probe))
        if unsafe := [size for name, size in found.items() if not name.startswith(_MASKED_SCORES)]:
            reason = f"{len(unsafe)} operators have values up to {max(unsafe):.3g}, too large for TensorRT in FP16"
            if exactly and "fp32" not in precisions:
                raise ExportError(f"{reason}; leave --precision out, or give fp32 as well")
            progress(f"{reason}: making FP32 alone")
            precisions = ("fp32",)
    files = save_graph(graph, folder, "tensorrt")
    progress("comparing the graph for TensorRT with PyTorch under every kind of padding")
    runner = open_runner(model, probe, folder / files.model.file)
    parity = check_parity(model, runner.session.run, probe.tokenizer.max_tokens)
    outputs = runner.outputs(probe.texts)
    largest = max_abs_difference(outputs, fp32.outputs)
    drift = {**runner.task.agreement(outputs, fp32.outputs), "max_abs_difference": largest, "texts": len(probe.texts)}
    scale = max(0.1, max(float(np.abs(each.flat).max(initial=0)) for each in fp32.outputs))
    tolerances = {"fp32": parity["tolerance"], "fp16": HALF_TOLERANCE * scale}
    return [
        BuiltVariant(
            Variant(
                precision=precision, target="tensorrt", opset=TENSORRT_OPSET,
                fusions=fusions, parity=parity, evaluated_on=EVALUATED_ON, drift=drift,
                self_test=self_test_of(runner, probe, tolerances[precision]),
                model=files.model, external_data=files.data,
            ),
            runner, outputs, graph, fusions,
        )
        for precision in precisions
    ]  # fmt: skip


def decompose_attention(model: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Rewrites a graph that `fuse` has been through, in place and still in FP32, and returns the counts.

    Raises `FusionError` where not every layer's attention was found as it should be.
    """
    found, reasons = 0, []
    for node in operators(model, "Attention"):
        try:
            _spell_out(node)
            found += 1
        except NoMatch as reason:
            reasons.append(f"attention at {scope(node)}: {reason}")
    model.graph.opset_imports.update({"": TENSORRT_OPSET})
    tidy(model)
    return check_counts({"attention_spelled_out": found}, {"attention_spelled_out": config.num_layers}, reasons)


def _spell_out(node: ir.Node) -> None:
    """Attention on [B, S, H] with a boolean mask → products, Softmax, and heads moved to and fro."""
    query, key, value = node.inputs[:3]
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if any(each is None or each.shape is None for each in (query, key, value)) or query is None or query.shape is None:
        raise NoMatch("expected operands of known shape")
    if mask is not None and mask.dtype != ir.DataType.BOOL:
        raise NoMatch(f"expected a boolean mask, found {mask.dtype}")
    heads, width = node.attributes["q_num_heads"].as_int(), query.shape[-1]
    if not isinstance(width, int):
        raise NoMatch(f"expected a fixed width, found {query.shape}")

    def add(op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        return insert_before(node, op_type, inputs, like=node.outputs[0], shapes=[None], attributes=attributes)[0]

    def split(operand: ir.Value | None, perm: tuple[int, ...]) -> ir.Value:
        shape = add_initializer(graph, "attention.heads", np.array([0, 0, heads, width // heads], dtype=np.int64))
        return add("Transpose", add("Reshape", operand, shape), perm=perm)

    scale = node.attributes["scale"].as_float() if "scale" in node.attributes else 1 / sqrt(width // heads)
    # Each side by its root, as the operator is defined: in FP16 a product that is scaled afterwards may overflow.
    root = add_initializer(graph, "attention.scale", np.array(sqrt(scale), dtype=np.float32))
    queries, keys = (add("Mul", split(*each), root) for each in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1))))
    scores = add("MatMul", queries, keys)
    if mask is not None:
        scores = add("Add", scores, additive_mask(node, mask))
        scores.name = f"{_MASKED_SCORES}.{node.outputs[0].name}"
    merged = add(
        "Transpose", add("MatMul", add("Softmax", scores, axis=-1), split(value, (0, 2, 1, 3))), perm=(0, 2, 1, 3)
    )
    whole = add_initializer(graph, "attention.whole", np.array([0, 0, width], dtype=np.int64))
    (output,) = insert_before(node, "Reshape", [merged, whole], like=node.outputs[0])
    node.outputs[0].replace_all_uses_with(output)
