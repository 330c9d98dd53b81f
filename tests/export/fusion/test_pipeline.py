"""Each fusion: where it must fire, where it must not, and that it changes no number."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from bert_export.capture import capture
from bert_export.errors import FusionError, ParityError
from bert_export.fusion import fuse
from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.first_token_only import fuse_first_token_only
from bert_export.fusion.merge_qkv import merge_qkv
from bert_export.onnx_graph import NoMatch, as_linear, linears, operators, scope
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.quantization import Activations, measure_activations
from bert_models import EncoderConfig, TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task, TextClassification
from bert_runtime.tokenization import Batch

CONFIG = EncoderConfig(
    family="bert", vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=37, max_positions=32,
    type_vocab_size=2,
)  # fmt: skip
CLASSIFIER = TextClassification(labels=("a", "b", "c"))
MEAN = SentenceEmbedding(dimensions=24)
CLS = SentenceEmbedding(dimensions=24, pooling="cls", normalize=False)


def toy_model(task: Task, config: EncoderConfig = CONFIG) -> TaskModel:
    """A model all of whose parameters matter."""
    torch.manual_seed(0)
    model = TaskModel(config, task).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def runner(graph: ir.Model, path: Path) -> Callable[[Batch], FloatArray]:
    """The graph under ONNX Runtime with no optimization of its own."""
    ir.save(graph, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    return lambda batch: session.run(None, {k: v for k, v in batch._asdict().items() if k in names})[0]


def probed_activations(model: TaskModel, graph: ir.Model) -> dict[str, Activations]:
    """What the projections of the model's fused graph read in random batches, to calibrate INT8 with."""
    length = model.config.max_tokens
    batches = [batch for seed in range(1, 9) for batch in probe_batches(model, length, seed).values()]
    return measure_activations(graph, batches, headroom=1.3)


@cache
def _captured(task: Task) -> ir.Model:
    return capture(toy_model(task))


def captured(task: Task) -> ir.Model:
    """A copy of the toy model's graph before any fusion."""
    return _captured(task).clone()


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN, CLS], ids=["classifier", "mean", "cls"])
def test_fused_graph_computes_what_torch_computes(task: Task, tmp_path: Path) -> None:
    model = toy_model(task)
    graph = captured(task)
    counts = fuse(graph, CONFIG, task)
    first = int(task.reads_first_token_only)
    assert {name: count["found"] for name, count in counts.items()} == {
        "attention": 3, "first_row": first, "masked_rows": 0, "qkv_projection": 3 - first, "kv_projection": first,
        "layer_normalization": 7, "gelu": 3,
    }  # fmt: skip
    run = runner(graph, tmp_path / "model.onnx")
    assert check_parity(model, run, CONFIG.max_positions)["max_abs_error"] <= 1e-5
    assert {"Transpose", "Reshape"}.isdisjoint(node.op_type for node in graph.graph)


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers(layers: int, tmp_path: Path) -> None:
    config = EncoderConfig(
        family="bert", vocab_size=61, hidden_size=8, num_layers=layers, num_heads=1, intermediate_size=5,
        max_positions=16, type_vocab_size=0,
    )  # fmt: skip
    model = toy_model(CLASSIFIER, config)
    graph = capture(model)
    fuse(graph, config, CLASSIFIER)
    check_parity(model, runner(graph, tmp_path / "model.onnx"), 16)


@pytest.mark.parametrize(("activation", "found"), [("gelu", 3), ("gelu_new", 3), ("relu", 0)])
def test_activations(activation: str, found: int, tmp_path: Path) -> None:
    config = EncoderConfig(**{**vars(CONFIG), "activation": activation})
    model = toy_model(CLASSIFIER, config)
    graph = capture(model)
    assert fuse(graph, config, CLASSIFIER)["gelu"]["found"] == found
    check_parity(model, runner(graph, tmp_path / "model.onnx"), 32)


def test_zero_biases_and_equal_weights_still_fuse(tmp_path: Path) -> None:
    """As initialised, biases are zero and torch drops their Adds; LayerNorms are equal and torch shares them."""
    torch.manual_seed(0)
    model = TaskModel(CONFIG, CLASSIFIER).eval()
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    check_parity(model, runner(graph, tmp_path / "model.onnx"), 32)


def test_first_row_leaves_the_last_layer_one_query() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    queries = [node.inputs[0].shape[1] for node in operators(graph, "Attention")]
    assert [isinstance(size, int) and size == 1 for size in queries] == [False, False, True]
    last = [node.outputs[0].shape[1] for node in operators(graph, "MatMul") if "layers.2" in scope(node)]
    assert sum(size == 1 for size in last) == 4  # query, attention output, feed-forward up and down


def test_first_row_does_not_fire_where_all_rows_are_read() -> None:
    graph = captured(MEAN)
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    with pytest.raises(NoMatch, match="expected the head to gather position 0"):
        fuse_first_token_only(graph)


class _FirstAndMean(nn.Module):
    """A head that reads the first row, and all rows too."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden[:, 0] + hidden.mean(dim=1)


def test_first_row_does_not_fire_where_another_reader_needs_all_rows() -> None:
    model = toy_model(CLASSIFIER)
    model.head = _FirstAndMean()
    graph = capture(model)
    for node in operators(graph, "Attention"):
        fuse_attention(node)
    with pytest.raises(NoMatch, match="stops after 0 nodes, before any attention"):
        fuse_first_token_only(graph)


class _SecondToken(nn.Module):
    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden[:, 1]


def test_first_row_does_not_fire_for_another_row() -> None:
    model = toy_model(CLASSIFIER)
    model.head = _SecondToken()
    with pytest.raises(FusionError, match=r"first_row \(expected 1, found 0\)"):
        fuse(capture(model), CONFIG, CLASSIFIER)


def test_projections_of_different_inputs_are_not_merged() -> None:
    graph = captured(MEAN)
    attention = operators(graph, "Attention")[0]
    fuse_attention(attention)
    attention = operators(graph, "Attention")[0]
    value = as_linear(attention.inputs[2])
    value.matmul.replace_input_with(0, graph.graph.inputs[0])
    with pytest.raises(NoMatch, match="are projected from different values"):
        merge_qkv(attention)


def test_attention_with_another_head_layout_is_left_alone() -> None:
    graph = captured(MEAN)
    attention = operators(graph, "Attention")[1]
    producer = attention.inputs[1].producer()
    producer.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])
    with pytest.raises(NoMatch, match=r"expected the permutation \(0, 2, 1, 3\)"):
        fuse_attention(attention)


def test_shortfall_names_the_place_and_the_reason() -> None:
    graph = captured(MEAN)
    operators(graph, "Attention")[1].inputs[1].producer().attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])
    with pytest.raises(FusionError) as caught:
        fuse(graph, CONFIG, MEAN)
    assert "attention (expected 3, found 2)" in str(caught.value)
    assert "attention at encoder.layers.1.attention: expected the permutation" in str(caught.value)


def test_weights_are_named_by_their_module() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    names = {linear.weight.name for linear in linears(graph)}
    assert {"encoder.layers.0.attention.qkv.weight", "encoder.layers.2.attention.kv.weight"} <= names
    assert {"encoder.layers.2.attention.query.weight", "encoder.layers.1.feed_forward.down.weight"} <= names
    assert not any(str(name).startswith("val_") for name in names)


def test_axes_stay_dynamic() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    assert [str(axis) for value in graph.graph.inputs for axis in value.shape] == ["batch", "sequence"] * 3
    assert [value.name for value in graph.graph.outputs] == ["logits"]


def test_probes_cover_every_padding() -> None:
    batches = probe_batches(toy_model(CLASSIFIER), max_tokens=32)
    right, left, holes = (batches[name].attention_mask for name in ("right-padded", "left-padded", "holes"))
    assert (np.diff(right, axis=1) <= 0).all()
    assert (right == 0).any()
    assert (np.diff(left, axis=1) >= 0).all()
    assert (left == 0).any()
    assert (holes.sum(axis=1) > 0).all()
    assert batches["longest"].input_ids.shape == (1, 32)


def test_parity_failure_names_the_padding_that_breaks(tmp_path: Path) -> None:
    model = toy_model(CLASSIFIER)

    def right_padding_assumed(batch: Batch) -> FloatArray:
        """What a graph does that turns a mask into lengths."""
        lengths = batch.attention_mask.sum(axis=1, keepdims=True)
        mask = (np.arange(batch.input_ids.shape[1])[None, :] < lengths).astype(np.int64)
        return reference_outputs(model, batch._replace(attention_mask=mask))

    with pytest.raises(ParityError) as caught:
        check_parity(model, right_padding_assumed, 32)
    assert "left-padded" in str(caught.value)
    assert "holes" in str(caught.value)
    assert "right-padded" not in str(caught.value)


def test_nan_is_a_parity_failure() -> None:
    model = toy_model(CLASSIFIER)
    with pytest.raises(ParityError, match="unpadded"):
        check_parity(model, lambda batch: np.full((len(batch.input_ids), 3), np.nan, dtype=np.float32), 32)
