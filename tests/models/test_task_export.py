"""Every family's head for every task as a graph: all fusions, PyTorch's numbers under every padding, and INT8."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

from bert_export.capture import capture
from bert_export.cuda import convert_to_fp16, decompose_packed_ops, drop_attention_mask, fuse_for_cuda, pack
from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import FusionError
from bert_export.flops import int8_flops_share
from bert_export.fusion import fuse
from bert_export.onnx_graph import add_initializer, insert_before, operators, scope
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.quantization import choose_weight_bits, expected_projections, quantize
from bert_export.tensorrt import decompose_attention
from bert_models import EncoderConfig, TaskModel, load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_runtime.cpu.session import Session
from bert_runtime.tasks import (
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)
from bert_runtime.tokenization import Batch

from ..export.toy_models import graph_runner, probed_activations
from .families import CONFIGS
from .toy import randomize, save_reference

MASK = FillMask(mask_token="[MASK]", mask_token_id=4)

TASKS: dict[str, Task] = {
    "text-classification": TextClassification(labels=("a", "b", "c")),
    "token-classification": TokenClassification(labels=("O", "B-X", "I-X"), crf=True),
    "question-answering": QuestionAnswering(),
    "fill-mask": MASK,
    "next-sentence-prediction": NextSentencePrediction(),
    "replaced-token-detection": ReplacedTokenDetection(),
    "sentence-embedding": SentenceEmbedding(dimensions=24, pooling="attention"),
}

SIZES = {
    "vocab_size": 1031, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 111,
    "max_position_embeddings": 40,
}  # fmt: skip
"""Small, but no matrix as small as 8,192 elements, from where on torch's exporter treats weights otherwise: it leaves
the transposition of one that two operators read in the graph."""

DISTILBERT_SIZES = {
    "vocab_size": 1031, "dim": 96, "n_layers": 3, "n_heads": 4, "hidden_dim": 111, "max_position_embeddings": 40,
}  # fmt: skip

FAST = [
    *(("bert", task) for task in ("token-classification", "question-answering", "fill-mask", "sentence-embedding")),
    ("roberta", "fill-mask"),
    ("distilbert", "question-answering"),
    ("albert", "fill-mask"),
    ("electra", "replaced-token-detection"),
]
"""What runs without `slow`: `test_families.py` exports every family with a classifier already."""

MATRIX = [
    pytest.param(family, task, marks=[] if (family, task) in FAST else [pytest.mark.slow])
    for family, each in FAMILIES.items()
    for task in each.head_weights
]

AXES = {
    "text-classification": ["batch", "3"],
    "token-classification": ["batch", "sequence", "3"],
    "question-answering": ["batch", "sequence", "2"],
    "fill-mask": ["masks", "1031"],
    "next-sentence-prediction": ["batch", "2"],
    "replaced-token-detection": ["batch", "sequence"],
    "sentence-embedding": ["batch", "24"],
}

Captured = Callable[[str, str], tuple[TaskModel, ir.Model]]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """`captured(family, task)`: a model all of whose parameters matter, and a copy of its graph before any fusion."""

    @cache
    def build(family: str, task: str) -> tuple[TaskModel, ir.Model]:
        prefix, config, sizes = CONFIGS[family]
        changes = DISTILBERT_SIZES if family == "distilbert" else SIZES
        encoder = getattr(transformers, f"{prefix}Model")(config(**{**sizes, **changes}))
        source = open_checkpoint(save_reference(encoder, tmp_path_factory.mktemp("encoder")))
        model = load_model(source, TASKS[task], new_head=True)
        randomize(model)
        return model, capture(model)

    def copied(family: str, task: str) -> tuple[TaskModel, ir.Model]:
        model, graph = build(family, task)
        return model, graph.clone()

    return copied


def embeddings_stored(graph: ir.Model, config: EncoderConfig) -> int:
    """How many constants of the graph are as large as the token embedding."""
    shapes = [sorted(value.const_value.shape.numpy()) for value in graph.graph.initializers.values()]
    return shapes.count(sorted((config.vocab_size, config.embedding_width)))


def axes(value: ir.Value) -> list[str]:
    return [str(axis) for axis in value.shape]


def runs_in_half_precision(model: TaskModel, graph: ir.Model, folder: Path) -> None:
    """The graph for CUDA, in FP32 and in FP16, as the CPU provider evaluates it."""
    spelled = graph.clone()
    assert decompose_attention(spelled, model.config)["attention_spelled_out"]["found"] == 3
    check_parity(model, graph_runner(spelled, folder / "tensorrt.onnx"), model.config.max_tokens)
    counts = fuse_for_cuda(graph, model.config)
    assert {name: count["found"] for name, count in counts.items()} == {
        "multi_head_attention": 3, "skip_layer_normalization": 6, "bias_gelu": 3,
    }  # fmt: skip
    check_cuda_parity(model, graph_runner(graph, folder / "cuda.onnx"), model.config.max_tokens, fp16=False)
    convert_to_fp16(graph)
    assert embeddings_stored(graph, model.config) == 1
    assert {node.inputs[1].dtype for node in operators(graph, "MatMul")} == {ir.DataType.FLOAT16}
    run = graph_runner(graph, folder / "fp16.onnx")
    assert check_cuda_parity(model, run, model.config.max_tokens, fp16=True)["max_abs_error"] > 0
    unmasked = graph.clone()
    assert drop_attention_mask(unmasked, model.config) == {"unmasked_attention": {"expected": 3, "found": 3}}
    run = graph_runner(unmasked, folder / "unmasked.onnx")
    assert check_cuda_parity(model, run, model.config.max_tokens, fp16=True, padding="unmasked")["max_abs_error"] > 0
    assert pack(graph, model.config, model.task)["packed_attention"]["found"] >= 2
    assert embeddings_stored(graph, model.config) == 1
    run = graph_runner(decompose_packed_ops(graph), folder / "packed.onnx")
    assert check_cuda_parity(model, run, model.config.max_tokens, fp16=True, padding="packed")["max_abs_error"] > 0


@pytest.mark.parametrize(("family", "task"), MATRIX)
def test_exports_with_every_fusion(captured: Captured, family: str, task: str, tmp_path: Path) -> None:
    model, graph = captured(family, task)
    config = model.config
    fusions = fuse(graph, config, model.task)
    first = int(task in ("text-classification", "next-sentence-prediction"))
    assert {name: count["found"] for name, count in fusions.items()} == {
        "attention": 3, "first_row": first, "masked_rows": int(task == "fill-mask"), "qkv_projection": 3 - first,
        "kv_projection": first, "layer_normalization": 7, "gelu": 3,
    }  # fmt: skip
    (output,) = graph.graph.outputs
    assert (output.name, axes(output)) == (model.task.output, AXES[task])
    assert embeddings_stored(graph, config) == 1
    check_parity(model, graph_runner(graph, tmp_path / "fp32.onnx"), config.max_tokens)
    assert int8_flops_share(graph) == 0
    runs_in_half_precision(model, graph.clone(), tmp_path)
    projections = 12 + first + int(family in ("albert", "electra"))
    assert expected_projections(config, fusions) == projections
    bits = choose_weight_bits(config, None)
    quantize(graph, projections, probed_activations(model, graph), weight_bits=bits)
    assert len(operators(graph, "MatMulIntegerToFloat")) == projections
    assert not [scope(node) for node in operators(graph, "MatMul") if scope(node).startswith("encoder")]
    assert embeddings_stored(graph, config) == 1
    assert 0.3 < int8_flops_share(graph) < 1
    ir.save(graph, tmp_path / "int8.onnx")
    run = Session(tmp_path / "int8.onnx", model.task.output, threads=1, int8=True).run
    for kind, batch in probe_batches(model, config.max_tokens).items():
        found, expected = run(batch), reference_outputs(model, batch)
        assert found.shape == expected.shape, kind
        if "sequence" in AXES[task]:  # what is computed for padding is never read
            found, expected = (array[batch.attention_mask.astype(bool)] for array in (found, expected))
        assert 0 < np.abs(found - expected).max() <= 0.1 * max(1.0, np.abs(expected).max()), kind


# The masked-language head at the masks alone.


def batch_of(*rows: list[int]) -> Batch:
    ids = np.array(rows, dtype=np.int64)
    return Batch(ids, np.ones_like(ids), np.zeros_like(ids))


@pytest.mark.parametrize(
    ("rows", "masks"),
    [
        (([2, 9, 3], [2, 8, 3]), 0),
        (([2, 4, 3], [2, 8, 3]), 1),
        (([2, 9, 3], [4, 4, 4], [2, 7, 4]), 4),
    ],
    ids=["none", "one", "in several rows"],
)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graph_gives_a_row_per_mask(
    captured: Captured, precision: str, rows: tuple[list[int], ...], masks: int, tmp_path: Path
) -> None:
    model, graph = captured("bert", "fill-mask")
    fusions = fuse(graph, model.config, MASK)
    if precision == "int8":
        quantize(graph, expected_projections(model.config, fusions), probed_activations(model, graph))
    ir.save(graph, tmp_path / "model.onnx")
    batch = batch_of(*rows)
    found = Session(tmp_path / "model.onnx", "logits", threads=1).run(batch)
    with torch.no_grad():
        every = model(*(torch.from_numpy(array) for array in batch)).numpy()
    places = [(row, place) for row, ids in enumerate(rows) for place, token in enumerate(ids) if token == 4]
    assert found.shape == (len(places), 1031) == (masks, 1031)
    for logits, place in zip(found, places, strict=True):
        assert np.abs(logits - every[place]).max() <= (1e-4 if precision == "fp32" else 0.1 * np.abs(every).max())


def test_head_works_on_masks_alone(captured: Captured) -> None:
    """Nothing of the vocabulary's width is computed for other tokens, and the embedding is read as it is stored."""
    model, graph = captured("bert", "fill-mask")
    fuse(graph, model.config, MASK)
    head = [node for node in graph.graph if scope(node).startswith("head") and node.op_type in ("MatMul", "Gemm")]
    assert [axes(node.outputs[0]) for node in head] == [["masks", "96"], ["masks", "1031"]]
    assert head[-1].inputs[1] is token_embedding(graph).inputs[0]


@pytest.mark.slow
def test_bias_of_zeros(captured: Captured, tmp_path: Path) -> None:
    """As initialised: torch leaves out the addition of a bias that is all zero."""
    model = deepcopy(captured("bert", "fill-mask")[0])
    with torch.no_grad():
        model.head.bias.zero_()
    graph = capture(model)
    fuse(graph, model.config, MASK)
    assert embeddings_stored(graph, model.config) == 1
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), 40)


def token_embedding(graph: ir.Model) -> ir.Node:
    (gather,) = (node for node in operators(graph, "Gather") if scope(node) == "encoder.embeddings.token")
    return gather


def untied(graph: ir.Model) -> None:
    """Another embedding than the matrix that the head scores by."""
    gather = token_embedding(graph)
    other = gather.inputs[0].const_value.numpy().copy()
    other[-1, -1] += 1
    gather.replace_input_with(0, add_initializer(graph.graph, "other", other))


def before_activation(graph: ir.Model, op_type: str, *inputs: ir.Value, **attributes: Any) -> None:
    """One more operator in the head."""
    (gelu,) = (node for node in operators(graph, "Gelu") if scope(node) == "head")
    source = gelu.inputs[0]
    (output,) = insert_before(gelu, op_type, [source, *inputs], like=source, attributes=attributes)
    gelu.replace_input_with(0, output)


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (untied, "expected the head to score with the token embedding, found another matrix"),
        (
            lambda graph: before_activation(graph, "Softmax", axis=1),
            "expected a head that works on each token by itself, found Softmax",
        ),
        (
            lambda graph: before_activation(graph, "Mul", graph.graph.inputs[1]),
            "expected the head to read one value, found attention_mask, layer_norm",
        ),
    ],
    ids=["untied", "rows are mixed", "the mask is read"],
)
def test_altered_head_is_named(captured: Captured, alter: Callable[[ir.Model], None], reason: str) -> None:
    model, graph = captured("bert", "fill-mask")
    alter(graph)
    with pytest.raises(FusionError, match=rf"masked_rows \(expected 1, found 0\)\. masked_rows: {reason}"):
        fuse(graph, model.config, MASK)
