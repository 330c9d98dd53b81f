"""The checkpoint in PyTorch, as a `bert_models.TaskModel`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_bench.engines.engine_spec import CheckpointSpec, EngineConfig, Forward
from bert_runtime import Manifest
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from bert_models import TaskModel

__all__ = ["CONFIGS", "EAGER", "PyTorchSpec", "load_checkpoint"]

EAGER = EngineConfig(name="pytorch", label="PyTorch eager FP32")
"""The reference that outputs are compared with."""

CONFIGS = (
    EAGER,
    EngineConfig(name="pytorch-bf16", label="PyTorch eager bf16", precision="bf16"),
    EngineConfig(name="pytorch-compile", label="torch.compile FP32", settings={"compile": True}),
)


def load_checkpoint(checkpoint: Path, task: Task) -> "TaskModel":
    """Load the checkpoint's model of that task in FP32 and evaluation mode."""
    from bert_models import load_model, open_checkpoint

    return load_model(open_checkpoint(checkpoint), task)


@dataclass(frozen=True, kw_only=True)
class PyTorchSpec(CheckpointSpec):
    """PyTorch under `torch.inference_mode`: eager or compiled, its weights in FP32 or bf16."""

    def open_session(self, manifest: Manifest) -> tuple[Forward, int]:
        """Load the weights; the forward pass runs without gradients."""
        import torch

        from bert_models.weights import weight_files

        torch.set_num_threads(self.threads)
        loaded = load_checkpoint(self.checkpoint, manifest.task)
        if self.config.precision == "bf16":
            loaded = loaded.bfloat16()
        model = _compiled(loaded) if self.config.settings.get("compile") else loaded

        def forward(batch: Batch) -> FloatArray:
            with torch.inference_mode():
                output: FloatArray = model(*map(torch.from_numpy, batch)).float().numpy()
            graph_output: FloatArray = manifest.task.graph_output(output, batch.input_ids)
            return graph_output

        return forward, sum(path.stat().st_size for path in weight_files(self.checkpoint))


def _compiled(model: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the model with Inductor and frozen weights, once for all shapes.

    With static shapes, every new text length would compile again.
    """
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    compiled: Callable[..., Any] = torch.compile(model, dynamic=True)
    return compiled
