"""Rotary positions with scaling, and gates with SiLU, in fused graphs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.fusion import fuse
from bert_export.onnx_graph import operators
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import check_parity, reference_outputs
from bert_export.quantization import expected_projections, quantize
from bert_models import FAMILIES, EncoderConfig
from bert_runtime.cpu.session import Session
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

from ..toy_models import CLASSIFIER, MEAN, captured, graph_runner, probed_activations, toy_model

SIZES = {
    "vocab_size": 61, "hidden_size": 24, "num_layers": 3, "num_heads": 4, "intermediate_size": 40, "max_positions": 60,
}  # fmt: skip
NOMIC = FAMILIES["nomic_bert"].preset("base", **SIZES)
DYNAMIC = replace(NOMIC, rope_trained_tokens=16, rope_dynamic_factor=2.0)
GTE = FAMILIES["gte"].preset("base", **SIZES, rope_linear_factor=1.26)


def batch_of(tokens: int) -> Batch:
    ids = np.arange(tokens, dtype=np.int64)[None] % 61
    return Batch(ids, np.ones_like(ids), np.zeros_like(ids))


@pytest.mark.parametrize(
    ("config", "task"),
    [
        pytest.param(NOMIC, CLASSIFIER, id="nomic-classifier"),
        pytest.param(NOMIC, MEAN, id="nomic-mean", marks=pytest.mark.slow),
        pytest.param(DYNAMIC, CLASSIFIER, id="dynamic-classifier", marks=pytest.mark.slow),
        pytest.param(DYNAMIC, MEAN, id="dynamic-mean"),
        pytest.param(GTE, CLASSIFIER, id="gte-classifier", marks=pytest.mark.slow),
        pytest.param(GTE, MEAN, id="gte-mean", marks=pytest.mark.slow),
    ],
)
def test_graphs_equal_the_model_at_every_length(config: EncoderConfig, task: Task, tmp_path: Path) -> None:
    model, graph = toy_model(task, config), captured(task, config)
    fusions = fuse(graph, config, task)
    check_parity(model, graph_runner(graph, tmp_path / "fused.onnx"), config.max_tokens)
    outlined, _, counts = lower_for_cpu(graph, fusions)
    assert counts["RotaryAttention"] == 3 - int(task is CLASSIFIER)
    assert counts["LinearGatedGelu" if config is GTE else "LinearGatedSilu"] == 3
    ir.save(outlined, tmp_path / "outlined.onnx")
    for kernels in (False, True):
        run = Session(tmp_path / "outlined.onnx", task.output, 1, kernels=kernels).run
        check_parity(model, run, config.max_tokens)
        for tokens in (1, 15, 16, 17, 60):
            difference = np.abs(run(batch_of(tokens)) - reference_outputs(model, batch_of(tokens))).max()
            assert difference <= 1e-5, (kernels, tokens)


def test_rotations_that_depend_on_the_length_are_computed_once(tmp_path: Path) -> None:
    graph = captured(MEAN, DYNAMIC)
    fuse(graph, DYNAMIC, MEAN)
    assert [len(operators(graph, name)) for name in ("Cos", "Sin", "Pow", "RotaryEmbedding")] == [1, 1, 2, 6]


@pytest.mark.parametrize("config", [DYNAMIC, pytest.param(GTE, marks=pytest.mark.slow)], ids=["dynamic", "gte"])
def test_int8(config: EncoderConfig, tmp_path: Path) -> None:
    model, graph = toy_model(MEAN, config), captured(MEAN, config)
    fusions = fuse(graph, config, MEAN)
    projections = expected_projections(config, fusions)
    assert projections == 4 * config.num_layers
    quantize(graph, projections, probed_activations(model, graph))
    graph, _, counts = lower_for_cpu(graph, fusions)
    assert counts["QuantizedLinearGatedGelu" if config is GTE else "QuantizedLinearGatedSilu"] == 3
    assert counts["QuantizedRotaryAttention"] == 3
    ir.save(graph, tmp_path / "int8.onnx")
    run = Session(tmp_path / "int8.onnx", MEAN.output, 1, int8=True).run
    for tokens in (16, 60):
        expected = reference_outputs(model, batch_of(tokens))
        assert 0 < np.abs(run(batch_of(tokens)) - expected).max() <= 0.1 * np.abs(expected).max()
