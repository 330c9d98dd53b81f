"""Outlined functions: which operators become calls, and that the graph computes the same as before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.fusion import add_padding_branch, fuse
from bert_export.onnx_graph import operators
from bert_export.outline_kernels import outline_kernels
from bert_export.parity import probe_batches, reference_outputs
from bert_export.quantization import expected_projections, quantize
from bert_models import EncoderConfig, TaskModel
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.session import Session
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task

from ..queries_without_keys import skip_where_queries_without_keys_differ
from .toy_models import (
    CLASSIFIER,
    CONFIG,
    DISENTANGLED,
    MEAN,
    MODERN,
    RELATIVE,
    captured,
    probed_activations,
    toy_model,
)

EVEN = replace(CONFIG, intermediate_size=40)
PRE_NORMS = {"EmbedNormQuantize": 1, "AddNorm": 1}
NORMS = {**PRE_NORMS, "AddNormQuantize": 5}
"""Of INT8 with three layers: the last sum's norm is not quantized."""
FLOAT_NORMS = {"EmbedNorm": 1, "AddNorm": 6}
POOL, FIRST_TOKEN = {"MeanPoolNormalize": 1}, {"FirstTokenAttention": 1}


def quantized(task: Task, config: EncoderConfig) -> tuple[TaskModel, ir.Model]:
    """Return a toy model, and its INT8 graph before it is outlined."""
    model, graph = toy_model(task, config), captured(task, config)
    fusions = fuse(graph, config, task)
    activations = probed_activations(model, graph)
    quantize(graph, expected_projections(config, fusions), activations)
    return model, add_padding_branch(graph, fusions)[0]


def assert_same(inlined: FloatArray, before: FloatArray, config: EncoderConfig) -> None:
    """Assert that outlined functions compute the same; local attention in blocks rounds otherwise."""
    if config.local_layers:
        np.testing.assert_allclose(inlined, before, rtol=0, atol=0.02 * max(1, np.abs(before).max()))
    else:
        np.testing.assert_array_equal(inlined, before)


SLOW = pytest.mark.slow
"""For a classifier of a family whose embedder is tested."""


@pytest.mark.parametrize(
    ("task", "config", "expected"),
    [
        # A layer has three projections besides that with GELU. In a classifier's last layer the query is a fourth, and
        # attention has a single query.
        (CLASSIFIER, EVEN, {**NORMS, **FIRST_TOKEN, "QuantizedAttention": 2, "QuantizedLinear": 10,
                            "QuantizedLinearGelu": 3}),
        (MEAN, EVEN, {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 9, "QuantizedLinearGelu": 3}),
        # 37 inputs are not a multiple of 4.
        (MEAN, CONFIG, {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 6, "QuantizedLinearGelu": 3}),
        (MEAN, replace(EVEN, activation="gelu_new"),
         {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 12}),
        (MEAN, replace(EVEN, activation="relu"), {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 12}),
        # One segment's embedding is a constant, and others have none.
        (MEAN, replace(EVEN, type_vocab_size=1),
         {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 9, "QuantizedLinearGelu": 3}),
        (MEAN, replace(EVEN, family="distilbert", type_vocab_size=0),
         {**NORMS, **POOL, "QuantizedAttention": 3, "QuantizedLinear": 9, "QuantizedLinearGelu": 3}),
        # A single query with a position bias stays as it is.
        pytest.param(CLASSIFIER, replace(RELATIVE, intermediate_size=40),
         {**NORMS, "QuantizedRelativeAttention": 2, "QuantizedLinear": 10, "QuantizedLinearGelu": 3}, marks=SLOW),
        (MEAN, replace(RELATIVE, intermediate_size=40),
         {**NORMS, **POOL, "QuantizedRelativeAttention": 3, "QuantizedLinear": 9, "QuantizedLinearGelu": 3}),
        # The first layer's norm follows no sum, and the last sum's norm is not quantized.
        pytest.param(CLASSIFIER, MODERN,
         {**PRE_NORMS, "QuantizedRotaryAttention": 1, "QuantizedLocalAttention": 1, "QuantizedLinear": 10,
          "QuantizedLinearGatedGelu": 3, "AddPreNormQuantize": 4}, marks=SLOW),
        (MEAN, MODERN,
         {**PRE_NORMS, **POOL, "QuantizedRotaryAttention": 1, "QuantizedLocalAttention": 2, "QuantizedLinear": 9,
          "QuantizedLinearGatedGelu": 3, "AddPreNormQuantize": 5}),
        (CLASSIFIER, replace(DISENTANGLED, intermediate_size=40),
         {**NORMS, "QuantizedDisentangledAttention": 2, "QuantizedLinear": 10, "QuantizedLinearGelu": 3}),
    ],
    ids=["classifier", "mean", "odd", "gelu_new", "relu", "one segment", "no segments", "relative classifier",
         "relative mean", "modern classifier", "modern mean", "disentangled classifier"],
)  # fmt: skip
@pytest.mark.int8_operators
def test_calls_replace_operators_of_int8_graphs(
    task: Task, config: EncoderConfig, expected: dict[str, int], tmp_path: Path
) -> None:
    if config == MODERN:
        skip_where_queries_without_keys_differ()
    model, graph = quantized(task, config)
    before = [node.op_type for node in graph.graph]
    outlined, calls = outline_kernels(graph)
    assert calls == expected
    assert {name: len(operators(outlined, name)) for name in calls} == expected
    one_query = {"PositionScores"} if operators(outlined, "PositionScores") else set()  # has no kernel
    assert {function.name for function in outlined.functions.values()} == {*expected, *one_query}
    assert not operators(outlined, "If")
    assert [node.op_type for node in graph.graph] == before  # the graph itself is not changed
    runs = {}
    for name, variant, kernels in (("before", graph, False), ("inlined", outlined, False), ("kernels", outlined, True)):
        ir.save(variant, path := tmp_path / f"{name}.onnx")
        runs[name] = Session(path, task.output, 1, int8=True, kernels=kernels).run
    differs = False
    for batch in probe_batches(model, config.max_tokens).values():
        outputs = {name: run(batch) for name, run in runs.items()}
        assert_same(outputs["inlined"], outputs["before"], config)
        differs |= bool((outputs["kernels"] != outputs["before"]).any())
        scale = max(1.0, float(np.abs(outputs["before"]).max()))
        assert np.abs(outputs["kernels"] - outputs["before"]).max() <= 0.05 * scale
        assert np.abs(outputs["kernels"] - reference_outputs(model, batch)).max() <= 0.1 * scale
    assert differs == bool(kernel_names())  # in the last digits, since they add in another order


@pytest.mark.parametrize(
    ("task", "config", "expected"),
    [
        (CLASSIFIER, EVEN, {**FLOAT_NORMS, **FIRST_TOKEN, "SelfAttention": 2, "Linear": 10, "LinearGelu": 3}),
        (MEAN, CONFIG, {**FLOAT_NORMS, **POOL, "SelfAttention": 3, "Linear": 9, "LinearGelu": 3}),
        (MEAN, replace(EVEN, activation="gelu_new"), {**FLOAT_NORMS, **POOL, "SelfAttention": 3, "Linear": 12}),
        pytest.param(CLASSIFIER, RELATIVE, {**FLOAT_NORMS, "RelativeAttention": 2, "Linear": 10, "LinearGelu": 3},
                     marks=SLOW),
        (MEAN, RELATIVE, {**FLOAT_NORMS, **POOL, "RelativeAttention": 3, "Linear": 9, "LinearGelu": 3}),
        pytest.param(CLASSIFIER, MODERN,
         {"EmbedNorm": 1, "AddPreNorm": 4, "AddNorm": 1, "RotaryAttention": 1, "LocalAttention": 1, "Linear": 10,
          "LinearGatedGelu": 3}, marks=SLOW),
        (MEAN, MODERN,
         {"EmbedNorm": 1, "AddPreNorm": 5, "AddNorm": 1, **POOL, "RotaryAttention": 1, "LocalAttention": 2, "Linear": 9,
          "LinearGatedGelu": 3}),
        (MEAN, DISENTANGLED, {**FLOAT_NORMS, **POOL, "DisentangledAttention": 3, "Linear": 9, "LinearGelu": 3}),
    ],
    ids=[
        "classifier",
        "mean",
        "gelu_new",
        "relative classifier",
        "relative mean",
        "modern classifier",
        "modern mean",
        "disentangled mean",
    ],
)  # fmt: skip
def test_calls_replace_operators_of_fp32_graphs(
    task: Task, config: EncoderConfig, expected: dict[str, int], tmp_path: Path
) -> None:
    if config == MODERN:
        skip_where_queries_without_keys_differ()
    model, graph = toy_model(task, config), captured(task, config)
    graph = add_padding_branch(graph, fuse(graph, config, task))[0]
    outlined, calls = outline_kernels(graph)
    assert calls == expected
    runs = {}
    for name, variant, kernels in (("before", graph, False), ("inlined", outlined, False), ("kernels", outlined, True)):
        ir.save(variant, path := tmp_path / f"{name}.onnx")
        runs[name] = Session(path, task.output, 1, kernels=kernels).run
    for batch in probe_batches(model, config.max_tokens).values():
        outputs = {name: run(batch) for name, run in runs.items()}
        assert_same(outputs["inlined"], outputs["before"], config)
        np.testing.assert_allclose(outputs["kernels"], reference_outputs(model, batch), rtol=0, atol=1e-5)


def test_weight_that_is_a_graph_input_is_not_outlined() -> None:
    """A kernel packs its weight once, but callers may feed another value for a weight that is also a graph input."""
    graph = captured(MEAN)
    before = outline_kernels(graph)[1]
    fed = operators(graph, "MatMul")[0].inputs[1]
    assert fed is not None
    graph.graph.inputs.append(fed)
    after = outline_kernels(graph)[1]
    assert after["Linear"] == before["Linear"] - 1


def test_graph_without_such_operators_stays_the_same() -> None:
    graph = captured(MEAN)
    for op_type in ("MatMul", "LayerNormalization", "ReduceSum"):
        for node in operators(graph, op_type):
            node.op_type = f"{op_type}OfAnother"
    outlined, calls = outline_kernels(graph)
    assert calls == {}
    assert not outlined.functions
    assert [node.op_type for node in outlined.graph] == [node.op_type for node in graph.graph]
