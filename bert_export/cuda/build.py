"""The CUDA variants of a bundle under construction, each with what could be proven of it without a GPU."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.cuda.fusion import CUDA_OPSET, fuse_for_cuda
from bert_export.cuda.half import to_half
from bert_export.cuda.packed import pack
from bert_export.cuda.ranges import unsafe_values
from bert_export.cuda.spelled_out import spell_out
from bert_export.errors import ParityError
from bert_export.fusion.pipeline import FusionCounts
from bert_export.parity import probe_batches, reference_outputs, tolerance
from bert_export.variants import BuiltVariant, Probe, open_runner, save_graph, self_test_of
from bert_models import TaskModel
from bert_runtime.buckets import is_right_padded
from bert_runtime.manifest import Variant
from bert_runtime.model import Model
from bert_runtime.tasks import (
    FloatArray,
    QuestionAnswering,
    ReplacedTokenDetection,
    TokenClassification,
    largest_difference,
)
from bert_runtime.tokenization import Batch, as_text_input, pad

__all__ = ["EVALUATED_ON", "HALF_TOLERANCE", "build_cuda", "check_cuda_parity"]

HALF_TOLERANCE = 2e-2
"""Largest difference of FP16 from PyTorch in FP32, as a share of the largest output, or of 0.1 if that is more."""

EVALUATED_ON = "the CPU provider, with a cast around each operator that it has in FP32 alone; not on a GPU"
"""How the numbers of a CUDA variant came about."""

PACKED_EVALUATED_ON = f"{EVALUATED_ON}, nor with the operators that pack and unpack, which CUDA alone has"
"""The same of a packed graph."""

_PER_TOKEN = (TokenClassification, QuestionAnswering, ReplacedTokenDetection)
"""Tasks whose outputs are [B, S, …]."""

_RANGE_TEXTS = 64
"""Texts on which activations are measured. They only have to bring out the outliers, which every text has."""


@dataclass(frozen=True)
class _Graph:
    """A graph for CUDA, by what becomes of it in the manifest."""

    precision: str
    model: ir.Model
    fusions: FusionCounts
    kept: dict[str, float]
    packed: bool = False

    @property
    def name(self) -> str:
        """What distinguishes its file from those of the other graphs."""
        name = self.precision if self.precision == "fp16" else f"cuda.{self.precision}"
        return f"{name}.packed" if self.packed else name

    def packing(self, model: TaskModel) -> "_Graph":
        """The same without padding."""
        graph = self.model.clone()
        fusions = {**self.fusions, **pack(graph, model.config, model.task)}
        return replace(self, model=graph, fusions=fusions, packed=True)


def build_cuda(
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    precisions: Sequence[str],
    progress: Callable[[str], None],
    *,
    packed: bool = False,
) -> list[BuiltVariant]:
    """The CUDA variants of those precisions, `fp32` and `fp16`, from the fused graph of the FP32 variant for the CPU.

    With `packed`, each also without padding. The padded ones come first.
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
    if packed:
        progress("packing")
        graphs += [each.packing(model) for each in graphs]
    return [_build(each, fp32, model, probe, folder, progress) for each in graphs]


def _build(
    graph: _Graph, fp32: BuiltVariant, model: TaskModel, probe: Probe, folder: Path, progress: Callable[[str], None]
) -> BuiltVariant:
    """Writes a graph, and evaluates it on the CPU."""
    file, data = save_graph(graph.model, folder, graph.name)
    what, kinds = ("packed ", "padding at the end") if graph.packed else ("", "every kind of padding")
    progress(f"comparing {what}{graph.precision.upper()} for CUDA with PyTorch on the CPU, under {kinds}")
    run = _runner(graph, model, probe, folder / file.file)
    parity = check_cuda_parity(
        model, run.session.run, probe.tokenizer.max_tokens, half=graph.precision == "fp16", packed=graph.packed
    )
    outputs = run.outputs(probe.texts)
    largest = largest_difference(outputs, fp32.outputs)
    allowed = max(parity["tolerance"], 2 * largest)
    variant = Variant(
        precision=graph.precision, target="cuda", packed=graph.packed, opset=CUDA_OPSET, fusions=graph.fusions,
        parity=parity, kept_fp32=tuple(graph.kept),
        evaluated_on=PACKED_EVALUATED_ON if graph.packed else EVALUATED_ON,
        drift={**run.task.agreement(outputs, fp32.outputs), "max_abs_difference": largest, "texts": len(probe.texts)},
        self_test=self_test_of(run, probe, allowed), model=file, external_data=data,
    )  # fmt: skip
    return BuiltVariant(variant, run, outputs, graph.model)


def _runner(graph: _Graph, model: TaskModel, probe: Probe, path: Path) -> Model:
    """The graph on the CPU, of a packed one what its operators stand for."""
    if not graph.packed:
        return open_runner(model, probe, path)
    with tempfile.TemporaryDirectory() as folder:
        file, _ = save_graph(spell_out(graph.model), Path(folder), graph.name)
        return open_runner(model, probe, Path(folder) / file.file)


def check_cuda_parity(
    model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int, *, half: bool, packed: bool = False
) -> dict[str, float]:
    """The largest absolute difference between `run` and PyTorch over `probe_batches`, with its tolerance.

    A packed graph reads those that are padded at their end, and has no outputs for padding.

    A row without any token has no right answer, but must give numbers and leave its neighbours' alone. Raises
    `ParityError` naming every kind of mask that fails.
    """
    batches = probe_batches(model, max_tokens)
    if packed:
        batches = {kind: batch for kind, batch in batches.items() if is_right_padded(batch)}
    expected = {kind: reference_outputs(model, batch) for kind, batch in batches.items()}
    per_token = isinstance(model.task, _PER_TOKEN)
    scale = max(0.1, *(_largest(each) for each in expected.values()))
    allowed = HALF_TOLERANCE * scale if half else tolerance(model.task)
    errors = {}
    for kind, batch in batches.items():
        difference = run(batch) - expected[kind]
        errors[kind] = _largest(difference[batch.attention_mask == 1] if packed and per_token else difference)
    failed = [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= allowed]
    if not np.isfinite(run(_without_a_token(batches["right-padded" if packed else "holes"]))).all():
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
