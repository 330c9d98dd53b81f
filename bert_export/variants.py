"""The variants of a bundle under construction: what every builder takes, measures and returns.

A builder (`bert_export.cpu`, `bert_export.cuda`, `bert_export.tensorrt`) makes a graph, writes it, opens it with
`BuildContext.open_runtime_model`, checks its parity with PyTorch, measures its drift from FP32 with `measure_drift`,
and returns `finish_variant`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from bert_export.calibration_texts import CalibrationTexts
from bert_export.errors import ExportError
from bert_export.graph_files import GraphFiles
from bert_export.onnx_graph import FusionCounts
from bert_export.parity import tolerance as parity_tolerance
from bert_models import TaskModel
from bert_runtime.bundle.manifest import SelfTest, Variant
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.model import Model
from bert_runtime.tasks import Outputs, Task, max_abs_difference
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.verification import self_test_values

__all__ = [
    "BuildContext",
    "BuiltVariant",
    "Fp32Variant",
    "Probe",
    "check_drift",
    "check_finite",
    "finish_variant",
    "measure_drift",
    "self_test_of",
]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The inputs that the variants of one export are run on."""

    tokenizer: TextTokenizer
    texts: Sequence[Any]
    """Inputs on which drift is measured."""
    texts_record: Mapping[str, Any]
    """Source of these texts, as the manifest states it."""
    self_test_inputs: Sequence[Any]
    calibration: CalibrationTexts
    """Inputs on which the ranges of INT8 are measured."""
    calibration_warning: str | None = None
    """The problem with the choice of calibration inputs; `None` where there is none."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The state that the builders of one export share."""

    torch_model: TaskModel
    """The reference that every graph is compared with."""
    probe: Probe
    folder: Path
    """Folder that the bundle is written to."""
    progress: Callable[[str], None]
    """Called with a line at the start of each stage."""
    attention: bool = False
    """Whether the bundle also gets a graph with attention probabilities."""

    @property
    def max_tokens(self) -> int:
        """The maximum length of a sequence, in tokens."""
        return self.probe.tokenizer.max_tokens

    def open_runtime_model(self, path: Path, *, int8: bool = False) -> Model:
        """Open a graph on the CPU as the runtime runs it."""
        session = Session(path, self.torch_model.task.output, available_cores(), int8=int8)
        return Model(self.torch_model.runtime_task(), self.probe.tokenizer, session)


@dataclass(frozen=True)
class BuiltVariant:
    """A variant on disk, the runtime's model of it, and its raw outputs on the probe's texts."""

    variant: Variant
    runtime_model: Model
    outputs: list[Outputs]

    def with_measurements(self, **measured: Any) -> Self:
        """Return a copy with more of the manifest entry's fields filled in."""
        return replace(self, variant=replace(self.variant, **measured))


@dataclass(frozen=True)
class Fp32Variant(BuiltVariant):
    """The FP32 variant for the CPU: all others start from its graph, and are compared with its outputs."""

    graph: ir.Model
    """The fused graph: the one on disk without the branches of `add_padding_branch` and the functions of
    `outline_kernels`."""
    fusions: FusionCounts
    """The fusions of `graph`."""
    attention_files: GraphFiles | None = None
    """The graph with attention probabilities, which shares the weights' file; `None` where none was asked for."""


def check_finite(outputs: Sequence[Outputs], precision: str) -> None:
    """Check a graph's outputs on the probe's texts.

    Raises:
        ExportError: a number among them is not finite.
    """
    if not all(np.isfinite(output.flat).all() for output in outputs):
        raise ExportError(f"the {precision} graph's outputs are not all finite; export with --precision fp32")


def measure_drift(task: Task, outputs: Sequence[Outputs], fp32: Sequence[Outputs]) -> dict[str, float]:
    """Measure how far a variant's outputs are from the FP32 variant's on the same texts.

    Returns:
        The task's agreement (see `Task.agreement`), `max_abs_difference` over all outputs, and the number of `texts`.
    """
    largest = max_abs_difference(outputs, fp32)
    return {**task.agreement(outputs, fp32), "max_abs_difference": largest, "texts": len(outputs)}


def check_drift(drift: Mapping[str, float]) -> None:
    """Raise `ExportError` if a measure is not defined (NaN), such as the correlation of outputs that are all equal."""
    if undefined := [name for name, value in drift.items() if math.isnan(value)]:
        raise ExportError(
            f"{', '.join(undefined)} with FP32 is not defined on {drift['texts']} inputs, whose outputs are equal or "
            "not finite; judge on other inputs"
        )


def self_test_of(runtime_model: Model, probe: Probe, tolerance: float) -> SelfTest:
    """Record a graph's outputs on the self-test inputs, for other machines to compare with.

    The tolerance is at least the one of FP32's parity for the largest output of these inputs.
    """
    outputs = [self_test_values(runtime_model.outputs([item])[0]) for item in probe.self_test_inputs]
    largest = max((float(np.abs(values).max(initial=0)) for values in outputs), default=0.0)
    return SelfTest(
        # Nine digits identify a float32; more would only make the manifest longer.
        outputs=tuple(tuple(float(f"{x:.9g}") for x in values) for values in outputs),
        tolerance=max(tolerance, parity_tolerance(runtime_model.task, largest)),
    )


def finish_variant(
    context: BuildContext,
    runtime_model: Model,
    outputs: list[Outputs],
    files: GraphFiles,
    *,
    tolerance: float,
    **fields: Any,
) -> BuiltVariant:
    """Record the self-test of a graph on disk, and assemble the variant's manifest entry.

    Args:
        context: the export's context.
        runtime_model: runs the graph.
        outputs: what it computed on the probe's texts.
        files: what the graph was written to.
        tolerance: maximum absolute difference of the self-test's outputs on another machine, see `self_test_of`.
        fields: the other fields of `Variant`: `precision`, `target`, `opset`, `parity`, `drift` and so on.

    Raises:
        ExportError: the drift is not defined.
    """
    check_drift(fields.get("drift", {}))
    self_test = self_test_of(runtime_model, context.probe, tolerance)
    variant = Variant(**fields, self_test=self_test, model=files.model, external_data=files.data)
    return BuiltVariant(variant, runtime_model, outputs)
