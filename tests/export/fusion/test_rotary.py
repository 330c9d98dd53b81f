"""Rotary positions, gated feed-forward blocks and local attention in fused graphs."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from bert_export.errors import ExportError, FusionError
from bert_export.fusion import fuse
from bert_export.fusion.rotary import match_rotary
from bert_export.onnx_graph import NoMatch, operators
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import check_parity
from bert_export.targets import check_gpu_targets, plan_variants
from bert_models import FAMILIES, TaskModel
from bert_runtime.cpu.session import Session

from ...queries_without_keys import skip_where_queries_without_keys_differ
from ..toy_models import CLASSIFIER, CONFIG, MEAN, MODERN, captured, graph_runner, toy_model


@pytest.fixture(scope="module", params=[CLASSIFIER, MEAN], ids=["classifier", "mean"])
def modern(request: pytest.FixtureRequest) -> tuple[TaskModel, ir.Model]:
    """A toy ModernBERT, and its graph before any fusion."""
    return toy_model(request.param, MODERN), captured(request.param, MODERN)


def test_rotations_are_one_operator_and_their_tables_constants(
    modern: tuple[TaskModel, ir.Model], tmp_path: Path
) -> None:
    skip_where_queries_without_keys_differ()
    model, graph = modern[0], modern[1].clone()
    counts = fuse(graph, MODERN, model.task)
    found = {name: counts[name]["found"] for name in ("rotary", "local_attention", "gated_projection")}
    assert found == {"rotary": 6, "local_attention": 2, "gated_projection": 3}
    tables = {str(node.inputs[1].name) for node in operators(graph, "RotaryEmbedding")}
    assert tables == {"encoder.rotary.cos", "encoder.local_rotary.cos"}
    assert len(operators(graph, "Range")) <= 2  # positions once for all layers, and those of the window
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), MODERN.max_tokens)


def test_rotation_of_other_halves_is_no_match(modern: tuple[TaskModel, ir.Model]) -> None:
    graph = modern[1].clone()
    concat = operators(graph, "Concat")
    rotated = next(node.outputs[0] for node in concat if node.inputs[0].producer().op_type == "Sub")
    assert match_rotary(rotated) is not None
    node = rotated.producer()
    node.replace_input_with(0, node.inputs[1])
    with pytest.raises(NoMatch, match="expected Sub"):
        match_rotary(rotated)
    node.replace_input_with(1, None)
    with pytest.raises(FusionError, match=r"attention \(expected 3, found 2\)"):
        fuse(graph, MODERN, modern[0].task)


def test_no_tensor_of_queries_and_keys_in_local_layers(modern: tuple[TaskModel, ir.Model], tmp_path: Path) -> None:
    skip_where_queries_without_keys_differ()
    """ONNX Runtime, without native kernels, is asked for every value of the graph that it runs."""
    model, graph = modern[0], modern[1].clone()
    ir.save(lower_for_cpu(graph, fuse(graph, MODERN, model.task)).graph, tmp_path / "model.onnx")
    check_parity(model, Session(tmp_path / "model.onnx", model.task.output, 1, kernels=False).run, MODERN.max_tokens)
    tokens = 57
    shapes = run_shapes(tmp_path / "model.onnx", tokens)
    assert shapes
    assert not [shape for shape in shapes if sum(size >= tokens for size in shape) > 1]


def run_shapes(path: Path, tokens: int) -> set[tuple[int, ...]]:
    """Return the shapes of what the function LocalAttention computes inside, for one sequence."""
    model = onnx.load(path)
    (function,) = (f for f in model.functions if f.name == "LocalAttention")
    width, half = MODERN.hidden_size, MODERN.head_size // 2
    inputs = {
        "qkv": np.ones((1, tokens, 3 * width), np.float32), "mask": np.ones((1, tokens), bool),
        "is_full": np.array(True), "cos": np.ones((60, half), np.float32), "sin": np.zeros((60, half), np.float32),
    }  # fmt: skip
    numbers = {"num_heads": MODERN.num_heads, "scale": 0.5, "window": 4}
    nodes = []
    for node in function.node:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        for attribute in copy.attribute:
            if attribute.ref_attr_name:
                value = onnx.helper.make_attribute(attribute.name, numbers[attribute.ref_attr_name])
                attribute.CopyFrom(value)
        nodes.append(copy)
    names = [name for node in nodes for name in node.output]
    graph = onnx.helper.make_graph(
        nodes, "inside",
        [onnx.helper.make_tensor_value_info(k, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for k, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in names],
    )  # fmt: skip
    built = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    used = {value.name for value in session.get_inputs()}
    arrays = session.run(names, {name: array for name, array in inputs.items() if name in used})
    return {array.shape for array in arrays}


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_export_for_a_gpu_is_refused(target: str) -> None:
    plan = plan_variants([target], None)
    with pytest.raises(
        ExportError, match="modernbert is exported for the CPU alone: a GPU has no fused operator here for rotary"
    ):
        check_gpu_targets(plan, FAMILIES["modernbert"].preset("tiny"))
    check_gpu_targets(plan, CONFIG)
    check_gpu_targets(plan_variants(["cpu"], None), MODERN)
