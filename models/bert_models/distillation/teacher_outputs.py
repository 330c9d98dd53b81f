"""The teacher's outputs for a training set: read from a file, or computed by its PyTorch model or a faster one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Encoding
from torch import Tensor

from bert_models.distillation.hidden_states import HiddenStates
from bert_models.distillation.teacher import Teacher
from bert_models.training.data import ExampleDataset
from bert_models.training.distributed.process_group import ProcessGroup
from bert_runtime.bundle.atomic_files import atomic_path
from bert_runtime.numerics import FloatArray

__all__ = ["ComputeOutputs", "TeacherOutputs"]

ComputeOutputs = Callable[[Sequence[Encoding]], Sequence[FloatArray]]
"""Return the raw output of each tokenized sequence, without padding."""


@dataclass(frozen=True)
class TeacherOutputs:
    """The source of a teacher's outputs."""

    path: Path | None = None
    """File that they are read from if it is there, and else written to."""
    compute: ComputeOutputs | None = None
    """Computes them in place of the teacher's PyTorch model."""
    hidden_states: HiddenStates | None = None
    """Keeps the hidden states of the teacher's layers, which its PyTorch model computes."""

    def read(
        self, teacher: Teacher, examples: ExampleDataset, identity: dict[str, Any], process_group: ProcessGroup
    ) -> list[Tensor]:
        """Return the outputs by sequence index: those in the file if it has the same identity, else new ones.

        Args:
            teacher: the teacher.
            examples: the training set in its tokens.
            identity: what the outputs depend on.
            process_group: of the training; the first process writes the file.
        """
        path = self.path
        if path is not None and path.is_file():
            stored = torch.load(path, map_location="cpu", weights_only=True)
            if stored["identity"] == identity:
                outputs: list[Tensor] = stored["outputs"]
                return outputs
        outputs = self._compute(teacher, examples, show_progress=process_group.is_rank_zero)
        if path is not None and process_group.is_rank_zero:
            with atomic_path(path) as partial:
                torch.save({"identity": identity, "outputs": outputs}, partial)
        return outputs

    def _compute(self, teacher: Teacher, examples: ExampleDataset, *, show_progress: bool) -> list[Tensor]:
        if self.compute is not None:
            return [torch.tensor(array) for array in self.compute(examples.encodings)]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return teacher.outputs(examples, device, show_progress=show_progress)
