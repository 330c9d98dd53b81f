"""ONNX Runtime with default options on a plain `torch.onnx.export` of the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_bench.engines.engine_spec import ComparedEngineSpec, EngineConfig, Forward
from bert_bench.engines.pytorch import load_checkpoint
from bert_bench.errors import BenchError
from bert_runtime import Manifest
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

__all__ = ["CONFIGS", "PLAIN_EXPORT", "PlainExportSpec", "export_plain_graph", "onnx_session"]

PLAIN_EXPORT = EngineConfig(name="onnxruntime-plain", label="ONNX Runtime, plain export FP32")
"""The baseline of speed-ups, where it ran."""

CONFIGS = (PLAIN_EXPORT,)

_PLAIN_OPSET = 20
"""Default opset of `torch.onnx.export`."""


def export_plain_graph(checkpoint: Path, task: Task, path: Path) -> None:
    """Write the `torch.onnx.export` of the checkpoint to `path`, without bert-export's fusions."""
    import onnx_ir

    from bert_export.capture import capture

    onnx_ir.save(capture(load_checkpoint(checkpoint, task), opset=_PLAIN_OPSET), path)


def onnx_session(
    graph: Path, threads: int, manifest: Manifest, providers: Sequence[Any] = ("CPUExecutionProvider",)
) -> Forward:
    """Return the forward pass of a graph in an ONNX Runtime session with all default optimizations.

    A question-answering graph may have start and end logits as two outputs, as optimum exports it; they are stacked.

    Args:
        graph: the ONNX file.
        threads: intra-op threads.
        manifest: the bundle's manifest, for the output's name and the task.
        providers: execution providers, the CPU by default.

    Raises:
        BenchError: the first of `providers` cannot be used.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=list(providers))
    wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if wanted not in session.get_providers():
        raise BenchError(
            f"{graph.name}: expected ONNX Runtime to use {wanted}, found {', '.join(session.get_providers())}"
        )
    inputs = {value.name for value in session.get_inputs()}
    output_names = [value.name for value in session.get_outputs()]
    pair = ["start_logits", "end_logits"]
    outputs = pair if set(pair) <= set(output_names) else [manifest.output.name]

    def forward(batch: Batch) -> FloatArray:
        feed = {name: array for name, array in batch._asdict().items() if name in inputs}
        arrays = session.run(outputs, feed)
        output: FloatArray = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)
        graph_output: FloatArray = manifest.task.graph_output(output, batch.input_ids)
        return graph_output

    return forward


@dataclass(frozen=True, kw_only=True)
class PlainExportSpec(ComparedEngineSpec):
    """The plain export in ONNX Runtime with default options, which include all graph optimizations."""

    graph: Path

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Load the graph."""
        return onnx_session(self.graph, self.threads, manifest), self.graph.stat().st_size

    def open_streams(self, manifest: Manifest) -> Forward:
        """Load the graph again, with one thread for each caller."""
        return onnx_session(self.graph, 1, manifest)
