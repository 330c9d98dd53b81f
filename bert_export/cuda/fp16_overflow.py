"""Which values of a graph are too large for half precision, measured and not guessed."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.cuda.fp16 import LARGEST, fp16_nodes
from bert_export.onnx_graph import constant
from bert_runtime.cpu.session import open_onnxruntime_session
from bert_runtime.machine import available_cores
from bert_runtime.tokenization import Batch

__all__ = ["SAFE", "find_fp16_overflows", "largest_values"]

SAFE = LARGEST / 8
"""What a value may reach on the texts that were measured; on others it may be larger, or its terms may be."""


def find_fp16_overflows(model: ir.Model, batches: Iterable[Batch], limit: float = SAFE) -> dict[str, float]:
    """The values of an FP32 graph, by name, whose nodes must not run in half precision, with the size they reach.

    Those are nodes whose outputs, inputs or constants exceed `limit`, or are no numbers, on any of the batches. An
    addend counts as much as the sum: normalization adds before it scales.
    """
    largest = largest_values(model, batches)
    found = {}
    for node in _measured(model):
        sizes = [largest[str(value.name)] for value in node.outputs]
        for value in node.inputs:
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            if value.const_value is None:
                sizes.append(largest.get(str(value.name), 0.0))
            else:
                sizes.append(float(np.abs(constant(value)).max(initial=0)))
        if not max(sizes) <= limit:
            found[str(node.outputs[0].name)] = max(sizes)
    return found


def _measured(model: ir.Model) -> list[ir.Node]:
    """The nodes that can run in half precision, but for those that make the mask of constants."""
    return [
        node
        for node in fp16_nodes(model)
        if node.op_type != "Where" or any(value is None or value.const_value is None for value in node.inputs[1:])
    ]


def largest_values(model: ir.Model, batches: Iterable[Batch]) -> dict[str, float]:
    """The largest absolute element over all batches of each value that may be in half precision, by name."""
    measured = model.clone()
    names = []
    outputs = list(measured.graph.outputs)
    for node in _measured(measured):
        for value in node.outputs:
            absolute = ir.node("Abs", [value])
            largest = ir.node("ReduceMax", [absolute.outputs[0]], {"keepdims": 0})
            largest.outputs[0].name = f"largest of {value.name}"
            largest.outputs[0].type, largest.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
            measured.graph.extend([absolute, largest])
            outputs.append(largest.outputs[0])
            names.append(str(value.name))
    measured.graph.outputs[:] = outputs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.onnx"
        ir.save(measured, path, external_data="measured.data")
        session = open_onnxruntime_session(path, available_cores())
        inputs = {each.name for each in session.get_inputs()}
        found = np.zeros(len(names))
        for batch in batches:
            feed = {name: array for name, array in batch._asdict().items() if name in inputs}
            sizes = session.run([f"largest of {name}" for name in names], feed)
            found = np.maximum(found, np.array(sizes, dtype=np.float64))  # which keeps NaN
    return dict(zip(names, found.tolist(), strict=True))
