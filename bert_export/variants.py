"""The graphs of a bundle under construction, each with the measurements that vouch for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.external_data import convert_tensors_to_external
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from bert_export.capture import OPSET, capture
from bert_export.errors import ExportError
from bert_export.flops import int8_flops_share
from bert_export.fusion import FusionCounts, add_padding_branch, fuse
from bert_export.kernel_functions import outline_kernels
from bert_export.parity import check_parity
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_export.samples import CalibrationTexts
from bert_models import TaskModel
from bert_runtime.bundle.manifest import Asset, SelfTest, Variant, sha256_file
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.model import Model
from bert_runtime.tasks import Outputs, max_abs_difference
from bert_runtime.tokenization import Batch, TextTokenizer
from bert_runtime.verification import self_test_values

__all__ = [
    "BuiltVariant",
    "Files",
    "Probe",
    "asset",
    "build_fp32",
    "build_int8",
    "open_runner",
    "save_graph",
    "save_graphs",
    "self_test_of",
]

_INT8_SELF_TEST_SHARE = 0.25
"""Share of the largest drift from FP32 by which another machine's INT8 answer may be off. Float32 rounds differently
there before an activation is quantized, and the quantized value moves by at most one step."""

_LEAST_EXTERNAL_BYTES = 1024
"""What a weight has at least to be kept beside the graph."""


class Files(NamedTuple):
    """What a graph is written to."""

    model: Asset
    data: Asset | None
    """The weights; `None` where all are too small to be kept beside the graph."""


@dataclass(frozen=True)
class Probe:
    """What the variants of one export are run on."""

    tokenizer: TextTokenizer
    texts: Sequence[Any]
    """Inputs on which drift is measured."""
    self_test_inputs: Sequence[Any]
    calibration: CalibrationTexts
    """Inputs on which the ranges of INT8 are measured."""


@dataclass(frozen=True)
class BuiltVariant:
    """A graph on disk, the model that runs it, and its raw outputs on the probe's texts."""

    variant: Variant
    model: Model
    outputs: list[Outputs]
    graph: ir.Model
    """What others start from: as it is on disk, but for the branches of `add_padding_branch` and the
    functions of `outline_kernels`."""
    fusions: FusionCounts
    """Those of `graph`."""

    def with_measurements(self, **measured: Any) -> "BuiltVariant":
        """The same with more of the variant's fields filled in."""
        return replace(self, variant=replace(self.variant, **measured))


def build_fp32(model: TaskModel, probe: Probe, folder: Path, progress: Callable[[str], None]) -> BuiltVariant:
    """Captures and fuses the model, and holds it against PyTorch; raises `FusionError` or `ParityError`."""
    progress("capturing the graph with torch.onnx")
    graph = capture(model)
    progress("fusing")
    fusions = fuse(graph, model.config, model.task)
    branched, branches = add_padding_branch(graph, fusions)
    outlined, calls = outline_kernels(branched)
    files = save_graph(outlined, folder, "fp32")
    progress("comparing FP32 with PyTorch under every kind of padding")
    runner = open_runner(model, probe, folder / files.model.file)
    parity = check_parity(model, runner.session.run, probe.tokenizer.max_tokens)
    variant = Variant(
        precision="fp32", target="cpu", opset=OPSET, fusions=branches, functions=calls, parity=parity,
        self_test=self_test_of(runner, probe, parity["tolerance"]), model=files.model, external_data=files.data,
    )  # fmt: skip
    return BuiltVariant(variant, runner, runner.outputs(probe.texts), graph, fusions)


def build_int8(
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    weight_bits: int,
    progress: Callable[[str], None],
) -> BuiltVariant:
    """Quantizes a copy of the fused graph and measures how far its answers move from FP32's."""
    calibration = probe.calibration
    progress(f"calibrating INT8 on {len(calibration.inputs)} inputs of {calibration.source}")
    batches = calibration.batches(probe.tokenizer)
    activations = measure_activations(fp32.graph, batches, calibration.headroom)
    progress("quantizing to INT8")
    graph = fp32.graph.clone()
    counts, recipe = quantize(
        graph, expected_projections(model.config, fp32.fusions), activations, weight_bits=weight_bits
    )
    branched, branches = add_padding_branch(graph, fp32.fusions)
    outlined, calls = outline_kernels(branched)
    files = save_graph(outlined, folder, "int8")
    progress(f"measuring INT8 drift on {len(probe.texts)} texts")
    runner = open_runner(model, probe, folder / files.model.file, int8=True)
    outputs = runner.outputs(probe.texts)
    largest = max_abs_difference(outputs, fp32.outputs)
    if not np.isfinite(largest):
        raise ExportError("the INT8 graph gives answers that are no numbers; export with --precision fp32")
    drift = {**runner.task.agreement(outputs, fp32.outputs), "max_abs_difference": largest, "texts": len(probe.texts)}
    variant = Variant(
        precision="int8", target="cpu", opset=OPSET, instruction_set="vnni" if weight_bits == 8 else None,
        fusions={**branches, **counts}, functions=calls, int8_flops_share=round(int8_flops_share(graph), 4),
        drift=drift, quantization=recipe | _calibrated_with(calibration, batches),
        self_test=self_test_of(runner, probe, max(1e-4, _INT8_SELF_TEST_SHARE * largest)), model=files.model,
        external_data=files.data,
    )  # fmt: skip
    return BuiltVariant(variant, runner, outputs, graph, fp32.fusions)


def _calibrated_with(calibration: CalibrationTexts, batches: Sequence[Batch]) -> dict[str, Any]:
    """The calibration as the manifest states it."""
    return {
        "calibration": {
            "source": calibration.source,
            "sha256": calibration.sha256,
            "inputs": len(calibration.inputs),
            "tokens": sum(int(batch.attention_mask.sum()) for batch in batches),
            "headroom": calibration.headroom,
        }
    }


def asset(path: Path) -> Asset:
    """A file of the bundle as the manifest lists it."""
    return Asset(file=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path))


def save_graph(graph: ir.Model, folder: Path, name: str) -> Files:
    """Writes `model.<name>.onnx`, and the weights into a file beside it."""
    return save_graphs({name: graph}, folder)[name]


def save_graphs(graphs: Mapping[str, ir.Model], folder: Path) -> dict[str, Files]:
    """Writes each graph as `model.<name>.onnx`, and the weights of all into one file, named after the first.

    Of weights, those that are the same object in several graphs, as clones have them, are in it once. They are no part
    of the graph's file, which can hold 2 GB and is read into memory, so that sessions and processes map one copy.
    """
    copies = {name: graph.clone() for name, graph in graphs.items()}
    for graph in copies.values():
        ClearMetadataAndDocStringPass()(graph)  # torch notes the stack of every call, with the paths of this machine
    weights = {
        id(value.const_value): value.const_value
        for graph in copies.values()
        for value in graph.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _LEAST_EXTERNAL_BYTES
    }
    data = None
    if weights:
        data = folder / f"model.{next(iter(copies))}.onnx.data"
        external = dict(zip(weights, convert_tensors_to_external([*weights.values()], folder, data.name), strict=True))
        for graph in copies.values():
            for value in graph.graph.initializers.values():
                value.const_value = external.get(id(value.const_value), value.const_value)
    for name, graph in copies.items():
        ir.save(graph, folder / f"model.{name}.onnx")
    shared = None if data is None else asset(data)
    return {name: Files(asset(folder / f"model.{name}.onnx"), shared) for name in copies}


def open_runner(model: TaskModel, probe: Probe, path: Path, *, int8: bool = False) -> Model:
    """The graph as the runtime will run it."""
    session = Session(path, model.task.output, available_cores(), int8=int8)
    return Model(model.runtime_task(), probe.tokenizer, session)


def self_test_of(runner: Model, probe: Probe, tolerance: float) -> SelfTest:
    """What a graph answers to the self-test inputs, for other machines to be held against."""
    rows = (self_test_values(runner.outputs([each])[0]) for each in probe.self_test_inputs)
    # Nine digits name a float32; more would only make the manifest longer.
    return SelfTest(outputs=tuple(tuple(float(f"{x:.9g}") for x in row) for row in rows), tolerance=tolerance)
