"""The CUDA variants of a bundle under construction, each with what could be proven of it without a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.cuda.fusion import CUDA_OPSET, fuse_for_cuda
from bert_export.cuda.half import to_half
from bert_export.cuda.ranges import unsafe_values
from bert_export.errors import ParityError
from bert_export.fusion.pipeline import FusionCounts
from bert_export.parity import probe_batches, reference_outputs, tolerance
from bert_export.variants import BuiltVariant, Probe, open_runner, save_graph, self_test_of
from bert_models import TaskModel
from bert_runtime.manifest import Variant
from bert_runtime.tasks import FloatArray, largest_difference
from bert_runtime.tokenization import Batch, as_text_input, pad

__all__ = ["EVALUATED_ON", "HALF_TOLERANCE", "build_cuda", "check_cuda_parity"]

HALF_TOLERANCE = 2e-2
"""Largest difference of FP16 from PyTorch in FP32, as a share of the largest output, or of 0.1 if that is more."""

EVALUATED_ON = "the CPU provider, with a cast around each operator that it has in FP32 alone; not on a GPU"
"""How the numbers of a CUDA variant came about."""

_RANGE_TEXTS = 64
"""Texts on which activations are measured. They only have to bring out the outliers, which every text has."""


@dataclass(frozen=True)
class _Graph:
    """A graph for CUDA, by what becomes of it in the manifest."""

    precision: str
    model: ir.Model
    fusions: FusionCounts
    kept: dict[str, float]


def build_cuda(
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    precisions: Sequence[str],
    progress: Callable[[str], None],
) -> list[BuiltVariant]:
    """The CUDA variants of those precisions, `fp32` and `fp16`, from the fused graph of the FP32 variant for the CPU.

    Raises `FusionError`, or `ParityError` where the CPU provider's answers are too far from PyTorch's.
    """
    if not precisions:
        return []
    progress("fusing for CUDA")
    graph = fp32.graph.clone()
    fusions = {**fp32.variant.fusions, **fuse_for_cuda(graph, model.config)}
    graphs = []
    if "fp32" in precisions:
        graphs.append(_Graph("fp32", graph.clone(), fusions, {}))
    if "fp16" in precisions:
        progress("measuring how large activations become")
        kept = unsafe_values(graph, _range_batches(model, probe))
        if kept:
            progress(f"keeping {len(kept)} operators in FP32, whose values reach {max(kept.values()):.3g}")
        to_half(graph, kept)
        graphs.append(_Graph("fp16", graph, fusions, kept))
    return [_build(each, fp32, model, probe, folder, progress) for each in graphs]


def _build(
    graph: _Graph, fp32: BuiltVariant, model: TaskModel, probe: Probe, folder: Path, progress: Callable[[str], None]
) -> BuiltVariant:
    """Writes a graph, and evaluates it on the CPU."""
    half = graph.precision == "fp16"
    file, data = save_graph(graph.model, folder, graph.precision if half else f"cuda.{graph.precision}")
    progress(f"comparing {graph.precision.upper()} for CUDA with PyTorch on the CPU, under every kind of padding")
    run = open_runner(model, probe, folder / file.file)
    parity = check_cuda_parity(model, run.session.run, probe.tokenizer.max_tokens, half=half)
    outputs = run.outputs(probe.texts)
    largest = largest_difference(outputs, fp32.outputs)
    allowed = max(parity["tolerance"], 2 * largest)
    variant = Variant(
        precision=graph.precision, target="cuda", opset=CUDA_OPSET, fusions=graph.fusions, parity=parity,
        kept_fp32=tuple(graph.kept), evaluated_on=EVALUATED_ON,
        drift={**run.task.agreement(outputs, fp32.outputs), "max_abs_difference": largest, "texts": len(probe.texts)},
        self_test=self_test_of(run, probe, allowed), model=file, external_data=data,
    )  # fmt: skip
    return BuiltVariant(variant, run, outputs, graph.model)


def check_cuda_parity(
    model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int, *, half: bool
) -> dict[str, float]:
    """The largest absolute difference between `run` and PyTorch over `probe_batches`, with its tolerance.

    A row without any token has no right answer, but must give numbers and leave its neighbours' alone. Raises
    `ParityError` naming every kind of mask that fails.
    """
    batches = probe_batches(model, max_tokens)
    expected = {kind: reference_outputs(model, batch) for kind, batch in batches.items()}
    scale = max(0.1, *(_largest(each) for each in expected.values()))
    allowed = HALF_TOLERANCE * scale if half else tolerance(model.task)
    errors = {kind: _largest(run(batch) - expected[kind]) for kind, batch in batches.items()}
    failed = [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= allowed]
    if not np.isfinite(run(_without_a_token(batches["holes"]))).all():
        failed.append("fully masked (no numbers)")
    if failed:
        raise ParityError(
            f"the graph for CUDA differs from PyTorch by more than {allowed:.2g} on inputs that are {', '.join(failed)}"
        )
    return {"max_abs_error": max(errors.values()), "tolerance": allowed}


def _largest(array: FloatArray) -> float:
    return float(np.abs(array).max(initial=0))  # a batch may have no masks, and so no rows


def _without_a_token(batch: Batch) -> Batch:
    """The batch with its first row masked as a whole."""
    mask = batch.attention_mask.copy()
    mask[0] = 0
    return batch._replace(attention_mask=mask)


def _range_batches(model: TaskModel, probe: Probe) -> list[Batch]:
    """Texts one by one, since padding reaches no other values, and random tokens."""
    texts = [as_text_input(each) for each in probe.texts[:_RANGE_TEXTS]]
    windows = [window for encoded in probe.tokenizer.encode(texts) for window in encoded]
    batches = [pad([window], probe.tokenizer.pad_token_id) for window in windows[: 2 * _RANGE_TEXTS]]
    return [*batches, *probe_batches(model, probe.tokenizer.max_tokens).values()]
