"""Hidden states of every family's layers: the numbers of transformers, in graphs of the layers that are read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators
from bert_export.outline_kernels import lower_for_cpu
from bert_export.parity import check_parity, probe_batches, reference_outputs
from bert_export.quantization import choose_weight_bits, expected_projections, quantize
from bert_models import TaskModel, load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_runtime.cpu.session import Session
from bert_runtime.similarity import cosine
from bert_runtime.tasks import FeatureExtraction

from ..export.toy_models import graph_runner, probed_activations
from .toy import BATCHES, MASKS, TOLERANCE, inputs, save_reference
from .toy_families import comparable, reference

SELECTIONS = [((3,), "concat"), ((0, 1, 2, 3), "concat"), ((2, 1), "mean"), ((3, 1), "sum"), ((1,), "concat")]
"""Layers and how they are combined."""


def hidden_task(model_folder: Path, layers: tuple[int, ...], combination: str) -> FeatureExtraction:
    task = open_checkpoint(model_folder).task("feature-extraction")
    assert isinstance(task, FeatureExtraction)
    return replace(task, layers=layers, layer_combination=combination)


def combined(states: tuple[Tensor, ...], task: FeatureExtraction) -> Tensor:
    """Combine the hidden states of transformers."""
    chosen = [states[layer] for layer in task.layers]
    if task.layer_combination == "concat":
        return torch.cat(chosen, dim=-1)
    total = torch.stack(chosen).sum(dim=0)
    return total if task.layer_combination == "sum" else total / len(chosen)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_equal_the_hidden_states_of_transformers(family: str, batch: int, mask: str, tmp_path: Path) -> None:
    theirs = reference(family, "Model")
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ids, attention, segments = inputs(batch, mask)
    if checkpoint.config.positions == "after_padding":  # position ids depend on the padding id, not on the mask
        ids = ids.where(attention.bool(), torch.tensor(checkpoint.config.pad_token_id))
    extra = {"token_type_ids": segments} if checkpoint.config.uses_segment_ids else {}
    with torch.no_grad():
        states = theirs(input_ids=ids, attention_mask=attention, output_hidden_states=True, **extra).hidden_states
    real = comparable(family, attention)
    for layers, combination in SELECTIONS:
        task = hidden_task(tmp_path, layers, combination)
        ours = load_model(checkpoint, task)
        assert len(ours.encoder.order) == ours.config.num_layers == max(layers)
        with torch.no_grad():
            found = ours(ids, attention, segments)
        assert found.shape[-1] == task.output_width
        assert float((found - combined(states, task))[real].abs().max()) <= TOLERANCE


def int8_graph(model: TaskModel, graph: ir.Model, folder: Path) -> Session:
    """Quantize a fused graph in place, and open it."""
    bits = choose_weight_bits(model.config, None)
    fusions = fuse(graph, model.config, model.task)
    check_parity(
        model, graph_runner(lower_for_cpu(graph, fusions).graph, folder / "fp32.onnx"), model.config.max_tokens
    )
    quantize(graph, expected_projections(model.config, fusions), probed_activations(model, graph), weight_bits=bits)
    ir.save(lower_for_cpu(graph, fusions).graph, folder / "int8.onnx")
    return Session(folder / "int8.onnx", model.task.output, threads=1, int8=True)


FAST = ("bert", "modernbert")
"""Families that differ in what lies between the layers: norms after them, or before."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in FAMILIES]
)
@pytest.mark.parametrize(
    ("layers", "combination"), [((0, 2, 3), "concat"), pytest.param((2, 1), "mean", marks=pytest.mark.slow)]
)
def test_graphs_have_the_layers_that_are_read(
    family: str, layers: tuple[int, ...], combination: str, tmp_path: Path
) -> None:
    """FP32 equals PyTorch under every kind of padding, and INT8's vectors have its direction."""
    source = open_checkpoint(save_reference(reference(family, "Model"), tmp_path))
    model = load_model(source, hidden_task(tmp_path, layers, combination))
    graph = capture(model)
    session = int8_graph(model, graph, tmp_path)
    assert len(operators(graph, "Attention")) == max(layers)
    assert not [name for name in graph.graph.initializers if f"layers.{max(layers)}." in name]
    for kind, batch in probe_batches(model, model.config.max_tokens).items():
        real = batch.attention_mask.astype(bool)
        found, expected = session.run(batch)[real], reference_outputs(model, batch)[real]
        assert found.shape == expected.shape, kind
        assert float(cosine(found, expected).mean()) >= 0.97, kind


def test_upper_layers_are_never_computed(tmp_path: Path) -> None:
    source = open_checkpoint(save_reference(reference("bert", "Model"), tmp_path))
    model = TaskModel(source.config, hidden_task(tmp_path, (1,), "concat")).eval()
    model.encoder.layers[1].register_forward_hook(lambda *_: pytest.fail("layer 2 is not read"))
    assert model(*inputs(1, "full")).shape == (1, 19, 24)


def test_the_last_layer_is_the_default(tmp_path: Path) -> None:
    source = open_checkpoint(save_reference(reference("modernbert", "Model"), tmp_path))
    model = load_model(source, source.task("feature-extraction"))
    ids, attention, _ = inputs(3, "random")
    with torch.no_grad():
        np.testing.assert_array_equal(model(ids, attention), model.encoder(ids, attention))
