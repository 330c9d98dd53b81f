"""INT8 graphs of candidate shapes, made quickly: latency depends on the shape, not on the values of the weights."""

from pathlib import Path

import torch

from bert_export.capture import capture
from bert_export.compression.candidates import Shape
from bert_export.fusion import fuse
from bert_export.fusion.prune_tokens import prune_tokens
from bert_export.graph_files import save_graph
from bert_export.outline_kernels import lower_for_cpu
from bert_export.quantization import choose_weight_bits, expected_projections, measure_activations, quantize
from bert_models import TaskModel
from bert_models.compression import keep_layers, keep_neurons
from bert_models.pruned_checkpoint import set_token_pruning
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.model import Model
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["cut_to_shape", "open_int8_graph"]

_HEADROOM = 1.3


def cut_to_shape(model: TaskModel, shape: Shape) -> TaskModel:
    """Return a model of some shape with any of the weights of `model`."""
    cut = keep_layers(model, range(shape.num_layers))
    if shape.intermediate_size != model.config.intermediate_size:
        cut = keep_neurons(cut, [torch.arange(shape.intermediate_size) for _ in cut.encoder.layers])
    return set_token_pruning(cut, shape.token_pruning)


def open_int8_graph(model: TaskModel, tokenizer: TextTokenizer, batches: list[Batch], folder: Path) -> Model:
    """Quantize a model as an export does, without its checks, and open it as the runtime runs it.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        batches: a few batches to calibrate on.
        folder: an existing folder for the graph.
    """
    graph = capture(model)
    fusions = fuse(graph, model.config, model.task)
    if model.config.token_pruning is not None:
        fusions = prune_tokens(graph, model.config.token_pruning, fusions)
    activations = measure_activations(graph, batches, _HEADROOM)
    expected = expected_projections(model.config, fusions)
    quantize(graph, expected, activations, weight_bits=choose_weight_bits(model.config, None))
    files = save_graph(lower_for_cpu(graph, fusions).graph, folder, "int8")
    session = Session(folder / files.model.file, model.task.output, available_cores(), int8=True)
    return Model(model.runtime_task(), tokenizer, session)
