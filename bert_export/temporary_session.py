"""Run a graph under construction for values inside it, without writing it to the bundle."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bert_export.errors import ExportError
from bert_runtime.cpu.session import open_onnxruntime_session
from bert_runtime.machine import available_cores
from bert_runtime.tokenization import Batch

__all__ = ["RunValues", "temporary_graph", "temporary_session"]

RunValues = Callable[[Sequence[str], Batch], list[Any]]
"""Runs a graph on a batch, and returns the arrays of the outputs that are named."""


@contextmanager
def temporary_graph(graph: ir.Model) -> Iterator[Path]:
    """Yield the path of a graph, which is in the system's temporary folder until the block ends.

    Raises:
        ExportError: the folder cannot be written, such as a full `/tmp`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            ir.save(graph, path, external_data="model.onnx.data")  # one file could not hold the largest models
        except OSError as error:
            raise ExportError(
                f"{folder}: cannot be written: {error}; set TMPDIR to a folder with room for the model in FP32"
            ) from error
        yield path


@contextmanager
def temporary_session(graph: ir.Model) -> Iterator[RunValues]:
    """Yield a function that runs a graph, see `temporary_graph`."""
    with temporary_graph(graph) as path:
        session = open_onnxruntime_session(path, available_cores())
        inputs = {value.name for value in session.get_inputs()}

        def run(names: Sequence[str], batch: Batch) -> list[Any]:
            feed = {name: array for name, array in batch._asdict().items() if name in inputs}
            return list(session.run(list(names), feed))

        yield run
