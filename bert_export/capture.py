"""Capture a PyTorch model as an ONNX graph with torch's own exporter, before any fusion."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from bert_export.errors import ExportError
from bert_export.onnx_graph import add_initializer, constant, operators
from bert_models import EncoderConfig, TaskModel
from bert_models.disentangled_attention import fold_position_projections
from bert_models.token_pruning import without_pruning

__all__ = ["OPSET", "capture", "check_opset", "input_names"]

OPSET = 23
"""The first opset with the standard Attention operator, and the newest that torch 2.13 exports."""


def check_opset(opset: int) -> None:
    """Check that fused graphs can be written in an opset.

    Raises:
        ExportError: they cannot; gives the reason.
    """
    if opset < OPSET:
        raise ExportError(
            f"opset {opset} has no Attention operator, which the fused graph needs; export with opset {OPSET}"
        )
    if opset > OPSET:
        raise ExportError(f"torch {torch.__version__} captures opsets up to {OPSET}, found {opset}")


def input_names(config: EncoderConfig) -> tuple[str, ...]:
    """Return the names of the graph's inputs, int64 [B, S] each; segment ids only if the model reads them."""
    return ("input_ids", "attention_mask", *(("token_type_ids",) if config.uses_segment_ids else ()))


def capture(torch_model: TaskModel, opset: int = OPSET) -> ir.Model:
    """Capture the graph of a model in evaluation mode, with dynamic batch and sequence axes.

    From opset 23 on, `scaled_dot_product_attention` becomes one Attention node. All tokens are kept: `prune_tokens`
    inserts token pruning into the fused graph.

    Args:
        torch_model: the model; it is switched to evaluation mode.
        opset: the ONNX opset to write.

    Raises:
        ExportError: torch's exporter returned no program.
    """
    batch = torch.export.Dim("batch", min=1)
    sequence = torch.export.Dim("sequence", min=1, max=torch_model.config.max_tokens)
    # One tensor per input: torch.export takes one tensor that is passed twice for one input.
    names = input_names(torch_model.config)
    arguments = tuple(torch.ones((2, 5), dtype=torch.int64) for _ in names)
    with _quiet(), torch.no_grad(), fold_position_projections(torch_model.eval()), without_pruning(torch_model):
        program = torch.onnx.export(
            torch_model,
            arguments,
            dynamo=True,
            opset_version=opset,
            dynamic_shapes={name: {0: batch, 1: sequence} for name in names},
            input_names=list(names),
            output_names=[torch_model.task.output],
            verbose=False,
        )
    if program is None:
        raise ExportError("torch.onnx.export returned no program")
    graph = program.model
    _fold_transposes(graph)
    NameFixPass()(graph)  # torch may give an output the name of an inner value
    for value in graph.graph.initializers.values():
        array = value.const_value.numpy() if value.const_value is not None else None
        if array is not None and not array.flags.c_contiguous:  # a view of a transposed weight, which cannot be hashed
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
    return graph


def _fold_transposes(graph: ir.Model) -> None:
    """Transpose weights now. torch folds only some: it leaves large ones with several consumers to every inference."""
    folded: dict[ir.Value, ir.Value] = {}
    for node in operators(graph, "Transpose"):
        (weight,) = node.inputs
        if weight is None or weight.const_value is None:
            continue
        if weight not in folded:  # once, so that layers which share a weight still do
            array = np.ascontiguousarray(constant(weight).transpose(node.attributes["perm"].as_ints()))
            folded[weight] = add_initializer(graph.graph, f"val_{weight.name}", array)
        node.outputs[0].replace_all_uses_with(folded[weight])
    RemoveUnusedNodesPass()(graph)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's exporter, which warns of torchvision's absence, axis names and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
