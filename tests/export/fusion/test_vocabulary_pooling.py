"""Vocabulary scores are pooled in chunks, in the function's body and in graphs that rewrite operators."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from bert_export import vocabulary_pooling
from bert_export.capture import capture
from bert_export.cuda import fuse_for_cuda
from bert_export.errors import FusionError
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators, scope
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.quantization import expected_projections, quantize
from bert_export.quantization.embeddings import quantize_embeddings
from bert_export.vocabulary_pooling import chunk_vocabulary
from bert_models import TaskModel
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.session import Session
from bert_runtime.tasks import SparseEmbedding

from ..toy_models import CONFIG, captured, graph_runner, probed_activations, toy_model

WIDE = replace(CONFIG, vocab_size=131, num_layers=1)
TASKS = [
    SparseEmbedding(vocab_size=131, pooling=pooling, activation=activation)
    for pooling in ("max", "sum")
    for activation in ("relu", "log1p_relu")
]
NAMES = [f"{task.pooling} {task.activation}" for task in TASKS]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 50 tokens: 131 are 43 + 44 + 44."""
    monkeypatch.setattr(vocabulary_pooling, "_CHUNK_SIZE", 50)


def fused(task: SparseEmbedding) -> tuple[TaskModel, ir.Model]:
    model, graph = toy_model(task, WIDE), captured(task, WIDE)
    counts = fuse(graph, WIDE, task)
    assert counts["vocabulary_pooling"] == {"expected": 1, "found": 1}
    return model, graph


def widest(graph: ir.Model) -> int:
    """Return the size of the vocabulary's axis of the widest value per token."""
    nodes = [*graph.graph, *(node for function in graph.functions.values() for node in function)]
    shapes = [list(value.shape) for node in nodes for value in node.outputs if value.shape is not None]
    per_token = [shape[-1] for shape in shapes if shape[:1] == ["padded_tokens"] or shape[1:2] == ["sequence"]]
    return max(size for size in per_token if isinstance(size, int))


def test_chunks_cover_the_vocabulary_evenly() -> None:
    assert chunk_vocabulary(131, 50) == [(0, 43), (43, 87), (87, 131)]
    assert chunk_vocabulary(50, 50) == [(0, 50)]
    assert max(end - start for start, end in chunk_vocabulary(30522, 2048)) <= 2048


@pytest.mark.parametrize(
    "task",
    [pytest.param(task, id=name, marks=[pytest.mark.slow] if name in ("max relu", "sum log1p_relu") else [])
     for task, name in zip(TASKS, NAMES, strict=True)],
)  # fmt: skip
def test_no_value_holds_the_scores_of_all_tokens(task: SparseEmbedding, tmp_path: Path) -> None:
    model, graph = fused(task)
    assert widest(graph) <= max(50, WIDE.intermediate_size, 3 * WIDE.hidden_size)
    assert not [node for node in graph.graph if node.op_type in ("ReduceMax", "ReduceSum", "Gemm")]
    check_parity(model, graph_runner(graph, tmp_path / "fused.onnx"), WIDE.max_tokens)
    fuse_for_cuda(graph, WIDE)
    assert not graph.functions
    assert len(operators(graph, "Gemm")) == 3
    check_parity(model, graph_runner(graph, tmp_path / "cuda.onnx"), WIDE.max_tokens)


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
@pytest.mark.int8_operators
def test_int8_and_native_kernels_agree(task: SparseEmbedding, tmp_path: Path) -> None:
    model, graph = fused(task)
    ir.save(graph, tmp_path / "fp32.onnx")
    fusions = {"attention": {"found": 1}, "qkv_projection": {"found": 1}, "kv_projection": {"found": 0}}
    _, recipe = quantize(graph, expected_projections(WIDE, fusions), probed_activations(model, graph))
    assert recipe["vocabulary_poolings"] == 1
    ir.save(graph, tmp_path / "int8.onnx")
    for precision, tolerance in (("fp32", 1e-5), ("int8", 0.05)):
        runs = [
            Session(tmp_path / f"{precision}.onnx", "weights", 1, int8=precision == "int8", kernels=kernels).run
            for kernels in (True, False)
        ]
        for batch in probe_batches(model, WIDE.max_tokens).values():
            native, standard = (run(batch) for run in runs)
            np.testing.assert_allclose(native, standard, rtol=1e-5, atol=1e-5)
            expected = reference_outputs(model, batch)
            assert np.abs(native - expected).max() <= tolerance * max(1, float(expected.max()))


def test_kernels_pool_the_maximum() -> None:
    if kernel_names():
        assert {"VocabularyMax", "QuantizedVocabularyMax"} <= set(kernel_names())


def test_width_that_the_int8_kernel_does_not_take_stays_in_fp32() -> None:
    config = replace(WIDE, embedding_size=10)
    model, graph = toy_model(TASKS[0], config), captured(TASKS[0], config)
    fusions = fuse(graph, config, TASKS[0])
    _, recipe = quantize(graph, expected_projections(config, fusions), probed_activations(model, graph))
    assert "vocabulary_poolings" not in recipe
    assert operators(graph, "VocabularyMax")


def test_zero_bias_is_pooled(tmp_path: Path) -> None:
    model = toy_model(TASKS[0], WIDE)
    with torch.no_grad():
        model.head.bias.zero_()
    graph = capture(model)
    fuse(graph, WIDE, TASKS[0])
    check_parity(model, graph_runner(graph, tmp_path / "fused.onnx"), WIDE.max_tokens)


def test_other_output_matrix_is_an_error() -> None:
    graph = captured(TASKS[0], WIDE)
    (table,) = (node.inputs[0] for node in operators(graph, "Gather") if scope(node).endswith("embeddings.token"))
    assert table is not None
    table.const_value = ir.tensor(np.array(table.const_value.numpy()) + 1, name=table.name)
    with pytest.raises(FusionError, match="vocabulary_pooling: expected the head to score with the token embedding"):
        fuse(graph, WIDE, TASKS[0])


def test_token_table_of_int8_is_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores have a quantized copy of it, so that the lookup of tokens is all that reads it."""
    config = replace(WIDE, vocab_size=132)  # a multiple of 4, as the kernel needs it
    monkeypatch.setattr(quantize_embeddings, "__kwdefaults__", {"min_elements": 132 * config.hidden_size})
    task = SparseEmbedding(vocab_size=132)
    model, graph = toy_model(task, config), captured(task, config)
    counts = fuse(graph, config, task)
    activations = probed_activations(model, graph)
    _, recipe = quantize(graph, expected_projections(config, counts), activations)
    assert (recipe["vocabulary_poolings"], len(recipe["embeddings"])) == (1, 1)
    shape, float32 = [132, config.hidden_size], ir.DataType.FLOAT
    assert not [v for v in graph.graph.initializers.values() if list(v.shape) == shape and v.dtype == float32]
