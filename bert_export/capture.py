"""PyTorch to ONNX: the model as torch's own exporter captures it, before any fusion."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import torch
from onnx_ir.passes.common import NameFixPass

from bert_export.errors import ExportError
from bert_models import TaskModel

__all__ = ["INPUTS", "OPSET", "capture"]

OPSET = 23
"""The first opset with the standard Attention operator, and the newest that torch exports (2.13)."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the graph's inputs: int64 [batch, sequence] each."""


def capture(model: TaskModel, opset: int = OPSET) -> ir.Model:
    """The graph of `model` in evaluation mode with dynamic batch and sequence axes.

    From opset 23 on, `scaled_dot_product_attention` becomes one Attention node.
    """
    batch = torch.export.Dim("batch", min=1)
    sequence = torch.export.Dim("sequence", min=1, max=model.config.max_positions)
    # Three tensors: torch.export takes one tensor passed twice for one input.
    ids, mask, types = (torch.full((2, 5), value) for value in (1, 1, 0))
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            model.eval(),
            (ids, mask, types),
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=({0: batch, 1: sequence},) * len(INPUTS),
            input_names=list(INPUTS),
            output_names=[model.task.output],
            verbose=False,
        )
    if program is None:
        raise ExportError("torch.onnx.export returned no program")
    graph = program.model
    NameFixPass()(graph)  # torch names an output without looking whether a value inside has that name
    return graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what torch's exporter says about itself: torchvision's absence, axis names, its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
