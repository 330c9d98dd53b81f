"""Token pruning in graphs: the same tokens leave as in PyTorch, in every precision and under every kind of padding."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.capture import capture
from bert_export.errors import FusionError
from bert_export.flops import matmul_flops
from bert_export.fusion import FusionCounts, add_padding_branch, fuse
from bert_export.fusion.prune_tokens import prune_tokens
from bert_export.graph_files import save_graph
from bert_export.onnx_graph import operators, scope
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_models import FAMILIES, EncoderConfig, TaskModel
from bert_models.pruning_schedule import TokenPruning
from bert_runtime.cpu.session import Session
from bert_runtime.tokenization import Batch

from ..toy_models import CLASSIFIER, CONFIG, captured, fused, toy_model

BERT_GRAPHS = ("electra", "ernie")
"""Families with the graph of BERT."""
PRUNED = replace(CONFIG, max_positions=72, token_pruning=TokenPruning.parse("1:0.5,2:0.25"))


def sharp_model(config: EncoderConfig) -> TaskModel:
    """Return a model whose attention tells tokens apart, so that no two are almost equally important."""
    model = toy_model(CLASSIFIER, config)
    for name, parameter in model.encoder.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            parameter.data *= 4
    return model


@cache
def _pruned() -> tuple[TaskModel, ir.Model, FusionCounts]:
    """Return a model that prunes tokens and its graph, which tests share."""
    model = sharp_model(PRUNED)
    graph = capture(model)
    assert PRUNED.token_pruning is not None
    return model, graph, prune_tokens(graph, PRUNED.token_pruning, fuse(graph, PRUNED, CLASSIFIER))


def _session(
    graph: ir.Model, counts: FusionCounts, folder: Path, *, outline: bool = True, int8: bool = False
) -> Session:
    finished = lower_for_cpu(graph, counts).graph if outline else add_padding_branch(graph, counts)[0]
    files = save_graph(finished, folder, "toy")
    return Session(folder / files.model.file, CLASSIFIER.output, 1, int8=int8, kernels=outline)


@pytest.mark.parametrize("outline", [False, True], ids=["operators", "kernels"])
def test_parity_with_pytorch(tmp_path: Path, *, outline: bool) -> None:
    model, graph, counts = _pruned()
    assert counts["token_pruning"] == {"expected": 2, "found": 2}
    session = _session(graph, counts, tmp_path, outline=outline)
    assert check_parity(model, session.run, 72)["max_abs_error"] <= 1e-5


@pytest.mark.parametrize(
    "family", ["roberta", "distilbert", "albert", *(pytest.param(name, marks=pytest.mark.slow) for name in BERT_GRAPHS)]
)
def test_parity_of_families(family: str, tmp_path: Path) -> None:
    embedding = {"embedding_size": 16} if family in ("electra", "albert") else {}
    config = FAMILIES[family].preset(
        next(iter(FAMILIES[family].sizes)), vocab_size=61, hidden_size=24, num_layers=3, num_heads=4,
        intermediate_size=40, max_positions=72, token_pruning=PRUNED.token_pruning, **embedding,
    )  # fmt: skip
    model = sharp_model(config)
    graph = capture(model)
    assert config.token_pruning is not None
    counts = prune_tokens(graph, config.token_pruning, fuse(graph, config, CLASSIFIER))
    assert check_parity(model, _session(graph, counts, tmp_path).run, 64)["max_abs_error"] <= 1e-5


def test_tokens_leave_before_the_projection_of_attention() -> None:
    _, graph, _ = _pruned()
    sizes = {
        scope(node): str(node.outputs[0].shape[1])
        for node in operators(graph, "MatMul")
        if node.outputs[0].shape is not None
    }
    assert sizes["encoder.layers.0.attention.query"] == "sequence"
    assert sizes["encoder.layers.0.attention.output"] == sizes["encoder.layers.0.feed_forward.up"] == "sequence · 50 %"
    assert sizes["encoder.layers.1.attention.output"] == "sequence · 25 %"
    up = next(node for node in operators(graph, "MatMul") if scope(node) == "encoder.layers.0.feed_forward.up")
    assert matmul_flops(up, 64) == 2 * 32 * 24 * 37


def test_without_a_schedule_graphs_stay_as_they_are() -> None:
    _, graph = fused(CLASSIFIER)
    assert not graph.functions
    assert {node.domain for node in graph.graph} == {""}


def test_answers_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    _, graph, counts = _pruned()
    session = _session(graph, counts, tmp_path)
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 61, (3, 70))
    mask = (np.arange(70) < np.array([[70], [45], [5]])).astype(np.int64)
    together = session.run(Batch(ids, mask, np.zeros_like(ids)))
    for row, length in enumerate(mask.sum(axis=1)):
        alone = session.run(Batch(*(array[row : row + 1, :length] for array in (ids, mask, np.zeros_like(ids)))))
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)


def test_int8_quantizes_in_attention_and_stays_close(tmp_path: Path) -> None:
    model, graph, counts = _pruned()
    batches = [batch for seed in range(1, 9) for batch in list(probe_batches(model, 72, seed).values())[:4]]
    activations = measure_activations(graph, batches, 1.3)
    quantized = graph.clone()
    quantize(quantized, expected_projections(PRUNED, counts), activations)
    calls = lower_for_cpu(quantized, counts).calls
    assert (calls["QuantizedAttention"], calls["KeepTokens"]) == (2, 2)
    session = _session(quantized, counts, tmp_path, int8=True)
    unpadded = probe_batches(model, 24)["right-padded"]
    assert np.abs(session.run(unpadded) - reference_outputs(model, unpadded)).max() < 0.1


def test_calibration_leaves_padding_out() -> None:
    model, graph, _ = _pruned()
    batch = probe_batches(model, 72)["right-padded"]
    garbage = batch._replace(input_ids=np.where(batch.attention_mask == 1, batch.input_ids, 60))
    found, expected = (measure_activations(graph, [part]) for part in (garbage, batch))
    for name, activations in expected.items():
        np.testing.assert_allclose(found[name].samples, activations.samples, rtol=0, atol=1e-5)


def test_a_layer_that_is_not_there_is_an_error() -> None:
    graph = captured(CLASSIFIER)
    fusions = fuse(graph, CONFIG, CLASSIFIER)
    with pytest.raises(FusionError, match=r"token_pruning \(expected 1, found 0\).*after layer 7"):
        prune_tokens(graph, TokenPruning.parse("7:0.5"), fusions)
