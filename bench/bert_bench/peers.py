"""The engines a bundle is compared with: PyTorch, and ONNX Runtime on the plain export."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bert_bench.engines import PeerSpec
from bert_bench.errors import BenchError
from bert_runtime import Manifest
from bert_runtime.errors import MissingExtraError
from bert_runtime.tasks import FloatArray, Task
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from bert_models import TaskModel

__all__ = ["PlainSpec", "PyTorchSpec", "check_checkpoint", "find_checkpoint", "write_plain_graph"]

_PLAIN_OPSET = 20
"""The opset that `torch.onnx.export` writes when nobody asks for another."""


def find_checkpoint(manifest: Manifest, given: str | Path | None) -> tuple[str | Path, str | None]:
    """The checkpoint to compare with, a folder or a hub id, and the hash that its weights must have (`None`: any).

    Raises `BenchError` where there is none.
    """
    if given is not None:
        return given, None
    path, sha256 = manifest.source.get("path"), manifest.source.get("sha256")
    if not path or not sha256:
        raise BenchError("the bundle does not say which checkpoint it was made from; name it with --checkpoint")
    if revision := manifest.source.get("revision"):
        return f"{path.partition('@')[0]}@{revision}", sha256
    if not Path(path).is_dir():
        raise BenchError(
            f"the checkpoint that the bundle was made from is not at {path} any more; name it with --checkpoint"
        )
    return Path(path), sha256


def check_checkpoint(name: str | Path, sha256: str | None) -> Path:
    """The checkpoint's folder; raises unless PyTorch is installed and the weights have that hash."""
    try:
        import torch  # noqa: F401 - whether it is there

        from bert_models import open_checkpoint
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "export", "comparing with PyTorch") from None
    checkpoint = open_checkpoint(name)
    if sha256 is not None and (found := checkpoint.sha256()) != sha256:
        raise BenchError(
            f"the checkpoint {name} has changed since the bundle was made (sha256 {found[:12]}… now, {sha256[:12]}… "
            "then); export it again, or name the right one with --checkpoint"
        )
    return checkpoint.path


def write_plain_graph(checkpoint: Path, task: Task, path: Path) -> None:
    """Writes what `torch.onnx.export` makes of the checkpoint, without any of this project's fusions."""
    import onnx_ir

    from bert_export.capture import capture

    onnx_ir.save(capture(_load(checkpoint, task), opset=_PLAIN_OPSET), path)


def _load(checkpoint: Path, task: Task) -> "TaskModel":
    from bert_models import load_model, open_checkpoint

    return load_model(open_checkpoint(checkpoint), task)


@dataclass(frozen=True, kw_only=True)
class PyTorchSpec(PeerSpec):
    """The checkpoint in PyTorch: eager mode, FP32, `torch.inference_mode`."""

    checkpoint: Path

    name: ClassVar[str] = "pytorch"
    label: ClassVar[str] = "PyTorch eager FP32"

    def open_session(self, manifest: Manifest) -> tuple[Callable[[Batch], FloatArray], int]:
        """Loads the weights; runs them without gradients."""
        import torch

        from bert_models.weights import weight_files

        torch.set_num_threads(self.threads)
        model = _load(self.checkpoint, manifest.task)

        def forward(batch: Batch) -> FloatArray:
            with torch.inference_mode():
                output: FloatArray = model(*map(torch.from_numpy, batch)).numpy()
            chosen: FloatArray = manifest.task.graph_output(output, batch.input_ids)
            return chosen

        return forward, sum(path.stat().st_size for path in weight_files(self.checkpoint))


@dataclass(frozen=True, kw_only=True)
class PlainSpec(PeerSpec):
    """The plain export in ONNX Runtime with its default options, which include all of its optimizations."""

    graph: Path

    name: ClassVar[str] = "onnxruntime-plain"
    label: ClassVar[str] = "ONNX Runtime, plain export FP32"

    def open_session(self, manifest: Manifest) -> tuple[Callable[[Batch], FloatArray], int]:
        """Loads the graph with all that ONNX Runtime does by default."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])
        inputs = {each.name for each in session.get_inputs()}
        outputs = [manifest.output.name]

        def forward(batch: Batch) -> FloatArray:
            feed = {name: array for name, array in batch._asdict().items() if name in inputs}
            output: FloatArray = session.run(outputs, feed)[0]
            chosen: FloatArray = manifest.task.graph_output(output, batch.input_ids)
            return chosen

        return forward, self.graph.stat().st_size
