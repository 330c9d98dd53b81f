"""INT8 graphs: what is quantized, what stays in FP32, and how large the error is."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.capture import capture
from bert_export.errors import FusionError
from bert_export.flops import int8_flops_share
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators, tidy
from bert_export.parity import probe_batches, reference_outputs
from bert_export.quantization import expected_projections, quantize, quantize_dynamic
from bert_export.quantization.embeddings import quantize_embeddings
from bert_runtime.tasks import FillMask, Task

from ..toy_models import CLASSIFIER, CONFIG, MEAN, captured, graph_runner, probed_activations, toy_model

INT8 = {
    "DynamicQuantizeMatMul": lambda model, graph, expected: quantize_dynamic(graph, expected),
    "MatMulIntegerToFloat": lambda model, graph, expected: quantize(graph, expected, probed_activations(model, graph))[
        0
    ],
}
"""Both recipes, by the operator that replaces projections."""


@pytest.mark.parametrize("recipe", INT8)
@pytest.mark.parametrize(("task", "projections"), [(CLASSIFIER, 13), (MEAN, 12)], ids=["classifier", "embedding"])
@pytest.mark.int8_operators
def test_every_encoder_projection_is_quantized_and_nothing_else(
    task: Task, projections: int, recipe: str, tmp_path: Path
) -> None:
    model = toy_model(task)
    graph = captured(task)
    fusions = fuse(graph, CONFIG, task)
    assert expected_projections(CONFIG, fusions) == projections
    fp32 = graph.clone()
    counts = INT8[recipe](model, graph, projections)
    assert counts == {"int8_matmul": {"expected": projections, "found": projections}}
    assert len(operators(graph, recipe)) == projections
    assert not operators(graph, "MatMul")
    assert len(operators(graph, "Gemm")) == (2 if task is CLASSIFIER else 0)
    assert all(
        v.const_value.dtype == ir.DataType.FLOAT for name, v in graph.graph.initializers.items() if "embeddings" in name
    )
    run, exact = graph_runner(graph, tmp_path / "int8.onnx"), graph_runner(fp32, tmp_path / "fp32.onnx")
    for batch in probe_batches(model, 32).values():
        expected = reference_outputs(model, batch)
        assert np.abs(exact(batch) - expected).max() <= 1e-5  # the clone was not touched
        difference = np.abs(run(batch) - expected).max()
        assert 0 < difference <= 0.1 * max(1.0, np.abs(expected).max())


def test_unexpected_number_of_projections_is_an_error() -> None:
    model = toy_model(MEAN)
    graph = captured(MEAN)
    fuse(graph, CONFIG, MEAN)
    for quantized in INT8.values():
        with pytest.raises(FusionError, match=r"int8_matmul \(expected 13, found 12\)"):
            quantized(model, graph.clone(), 13)


def test_int8_flops_share_counts_attention_too() -> None:
    """Counted by hand: hidden 24, feed-forward 37, 3 layers, mean pooling, 128 tokens."""
    model = toy_model(MEAN)
    graph = captured(MEAN)
    fusions = fuse(graph, CONFIG, MEAN)
    assert int8_flops_share(graph) == 0
    quantize(graph, expected_projections(CONFIG, fusions), probed_activations(model, graph))
    projections = 2 * 128 * (4 * 24 * 24 + 2 * 24 * 37)
    attention = 4 * 128 * 128 * 24
    assert int8_flops_share(graph) == pytest.approx(projections / (projections + attention))


def test_embeddings_become_int8_with_a_scale_per_row(tmp_path: Path) -> None:
    model = toy_model(MEAN)
    graph = captured(MEAN)
    fuse(graph, CONFIG, MEAN)
    table = model.encoder.embeddings.token.weight.detach().numpy()
    exact = graph_runner(graph.clone(), tmp_path / "fp32.onnx")
    assert quantize_embeddings(graph) == []  # a toy's table is too small
    assert quantize_embeddings(graph, min_elements=table.size) == ["encoder.embeddings.token.weight"]
    tidy(graph)
    arrays = {name: value.const_value.numpy() for name, value in graph.graph.initializers.items() if value.const_value}
    quantized, scales = (arrays[f"encoder.embeddings.token.weight.{part}"] for part in ("int8", "scale"))
    assert (quantized.dtype, quantized.shape, scales.shape) == (np.int8, table.shape, (len(table), 1))
    assert np.abs(quantized * scales - table).max() <= scales.max() / 2 * 1.001
    assert "encoder.embeddings.token.weight" not in arrays
    run = graph_runner(graph, tmp_path / "int8.onnx")
    for batch in probe_batches(model, 32).values():
        assert 0 < np.abs(run(batch) - exact(batch)).max() <= 0.02


def test_positions_stay_fp32_however_many_there_are() -> None:
    """The kernel of the embeddings reads them as float32."""
    graph = captured(MEAN)
    fuse(graph, CONFIG, MEAN)
    assert not any("position" in name for name in quantize_embeddings(graph, min_elements=1))


def test_embedding_that_a_matmul_reads_stays_fp32(tmp_path: Path) -> None:
    task = FillMask(mask_token="[MASK]", mask_token_id=4)
    graph = captured(task)
    fuse(graph, CONFIG, task)
    assert "encoder.embeddings.token.weight" not in quantize_embeddings(graph, min_elements=1)


def test_row_of_zeros_stays_zero(tmp_path: Path) -> None:
    model = toy_model(MEAN)
    model.encoder.embeddings.token.weight.data[7] = 0
    graph = capture(model)
    quantize_embeddings(graph, min_elements=1)
    name = "encoder.embeddings.token.weight"
    parts = [graph.graph.initializers[f"{name}.{part}"].const_value for part in ("int8", "scale")]
    assert [None if part is None else part.numpy()[7].max() for part in parts] == [0, 1]
