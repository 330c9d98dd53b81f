"""The CUDA variants of a bundle under construction, each with what could be proven of it without a GPU."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bert_export.cuda.decompose_packing import decompose_packed_ops
from bert_export.cuda.drop_mask import drop_attention_mask
from bert_export.cuda.fp16 import convert_to_fp16
from bert_export.cuda.fp16_overflow import find_fp16_overflows
from bert_export.cuda.fusion import CUDA_OPSET, fuse_for_cuda
from bert_export.cuda.packed import pack
from bert_export.errors import ParityError
from bert_export.onnx_graph import FusionCounts
from bert_export.parity import probe_batches, reference_outputs, tolerance
from bert_export.variants import BuiltVariant, Files, Probe, open_runner, save_graph, save_graphs, self_test_of
from bert_models import TaskModel
from bert_runtime.bundle.manifest import MASKED, PACKED, UNMASKED, Variant
from bert_runtime.gpu.shape_buckets import accepts_batch
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import QuestionAnswering, ReplacedTokenDetection, TokenClassification, max_abs_difference
from bert_runtime.tokenization import Batch, as_text_input, pad

__all__ = ["EVALUATED_ON", "HALF_TOLERANCE", "build_cuda", "check_cuda_parity", "range_batches"]

HALF_TOLERANCE = 2e-2
"""Largest difference of FP16 from PyTorch in FP32, as a share of the largest output, or of 0.1 if that is more."""

EVALUATED_ON = "the CPU provider, with a cast around each operator that it has in FP32 alone; not on a GPU"
"""How the numbers of a CUDA variant came about."""

PACKED_EVALUATED_ON = f"{EVALUATED_ON}, nor with the operators that pack and unpack, which CUDA alone has"
"""The same of a packed graph."""

_PER_TOKEN = (TokenClassification, QuestionAnswering, ReplacedTokenDetection)
"""Tasks whose outputs are [B, S, …]."""

_KINDS = {MASKED: "every kind of padding", PACKED: "padding at the end", UNMASKED: "no padding"}
"""Which batches a graph of each padding reads, see `bert_runtime.gpu.shape_buckets.accepts_batch`, in words."""

_RANGE_TEXTS = 64
"""Texts on which activations are measured. They only have to bring out the outliers, which every text has."""


@dataclass(frozen=True)
class _Graph:
    """A graph for CUDA, by what becomes of it in the manifest."""

    precision: str
    model: ir.Model
    fusions: FusionCounts
    kept: dict[str, float]
    padding: str = MASKED

    @property
    def name(self) -> str:
        """What distinguishes its file from those of the other graphs."""
        name = self.precision if self.precision == "fp16" else f"cuda.{self.precision}"
        return name if self.padding == MASKED else f"{name}.{self.padding}"

    def with_padding(self, padding: str, model: TaskModel) -> "_Graph":
        """The same in another padding, which shares its weights."""
        graph = self.model.clone()
        counts = (
            pack(graph, model.config, model.task) if padding == PACKED else drop_attention_mask(graph, model.config)
        )
        return replace(self, model=graph, fusions={**self.fusions, **counts}, padding=padding)


def build_cuda(
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    precisions: Sequence[str],
    progress: Callable[[str], None],
    *,
    paddings: Sequence[str] = (MASKED,),
) -> list[BuiltVariant]:
    """The CUDA variants of those precisions, `fp32` and `fp16`, from the fused graph of the FP32 variant for the CPU.

    Each comes in every padding mode of `paddings`, and they share one file of weights. Masked graphs are always built,
    and come first.

    Raises `FusionError`, or `ParityError` where the CPU provider's answers are too far from PyTorch's.
    """
    if not precisions:
        return []
    progress("fusing for CUDA")
    graph = fp32.graph.clone()
    fusions = {**fp32.fusions, **fuse_for_cuda(graph, model.config)}
    graphs = []
    if "fp32" in precisions:
        graphs.append(_Graph("fp32", graph.clone(), fusions, {}))
    if "fp16" in precisions:
        progress("measuring how large activations become")
        kept = find_fp16_overflows(graph, range_batches(model, probe))
        if kept:
            progress(f"keeping {len(kept)} operators in FP32, whose values reach {max(kept.values()):.3g}")
        convert_to_fp16(graph, kept)
        graphs.append(_Graph("fp16", graph, fusions, kept))
    masked = list(graphs)
    for padding in (each for each in dict.fromkeys(paddings) if each != MASKED):
        progress(f"making {padding} graphs")
        graphs += [each.with_padding(padding, model) for each in masked]
    files: dict[str, Files] = {}
    for each in masked:
        same = {one.name: one.model for one in graphs if one.precision == each.precision}
        files |= save_graphs(same, folder)
    return [_build(each, files[each.name], fp32, model, probe, folder, progress) for each in graphs]


def _build(
    graph: _Graph,
    files: Files,
    fp32: BuiltVariant,
    model: TaskModel,
    probe: Probe,
    folder: Path,
    progress: Callable[[str], None],
) -> BuiltVariant:
    """Evaluates on the CPU a graph that has been written."""
    what = "" if graph.padding == MASKED else f"{graph.padding} "
    progress(
        f"comparing {what}{graph.precision.upper()} for CUDA with PyTorch on the CPU, under {_KINDS[graph.padding]}"
    )
    run = _runner(graph, model, probe, folder / files.model.file)
    parity = check_cuda_parity(
        model, run.session.run, probe.tokenizer.max_tokens, half=graph.precision == "fp16", padding=graph.padding
    )
    outputs = run.outputs(probe.texts)
    largest = max_abs_difference(outputs, fp32.outputs)
    allowed = max(parity["tolerance"], 2 * largest)
    variant = Variant(
        precision=graph.precision, target="cuda", padding=graph.padding, opset=CUDA_OPSET, fusions=graph.fusions,
        parity=parity, kept_fp32=tuple(graph.kept),
        evaluated_on=PACKED_EVALUATED_ON if graph.padding == PACKED else EVALUATED_ON,
        drift={**run.task.agreement(outputs, fp32.outputs), "max_abs_difference": largest, "texts": len(probe.texts)},
        self_test=self_test_of(run, probe, allowed), model=files.model, external_data=files.data,
    )  # fmt: skip
    return BuiltVariant(variant, run, outputs, graph.model, graph.fusions)


def _runner(graph: _Graph, model: TaskModel, probe: Probe, path: Path) -> Model:
    """The graph on the CPU, of a packed one what its operators stand for."""
    if graph.padding != PACKED:
        run = open_runner(model, probe, path)
        if graph.padding == UNMASKED:
            run.max_batch_tokens = 1  # each row alone, as padding is what it cannot take
        return run
    with tempfile.TemporaryDirectory() as folder:
        spelled = save_graph(decompose_packed_ops(graph.model), Path(folder), graph.name)
        return open_runner(model, probe, Path(folder) / spelled.model.file)


def check_cuda_parity(
    model: TaskModel, run: Callable[[Batch], FloatArray], max_tokens: int, *, half: bool, padding: str = MASKED
) -> dict[str, float]:
    """The largest absolute difference between `run` and PyTorch over `probe_batches`, with its tolerance.

    A packed graph reads those that are padded at their end, and has no outputs for padding; an unmasked one those that
    are not padded.

    A row without any token has no right answer, but must give numbers and leave its neighbours' alone. Raises
    `ParityError` naming every kind of mask that fails.
    """
    batches = {kind: batch for kind, batch in probe_batches(model, max_tokens).items() if accepts_batch(padding, batch)}
    expected = {kind: reference_outputs(model, batch) for kind, batch in batches.items()}
    per_token = isinstance(model.task, _PER_TOKEN)
    scale = max(0.1, *(_largest(each) for each in expected.values()))
    allowed = HALF_TOLERANCE * scale if half else tolerance(model.task)
    errors = {}
    for kind, batch in batches.items():
        difference = run(batch) - expected[kind]
        errors[kind] = _largest(
            difference[batch.attention_mask == 1] if padding == PACKED and per_token else difference
        )
    failed = [f"{kind} ({error:.2g})" for kind, error in errors.items() if not error <= allowed]
    partly = batches.get("holes", batches.get("right-padded"))
    if partly is not None and not np.isfinite(run(_without_a_token(partly))).all():
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


def range_batches(model: TaskModel, probe: Probe) -> list[Batch]:
    """What the size of activations is measured on.

    Texts one by one, since padding reaches no other values, and random tokens.
    """
    texts = [as_text_input(each) for each in probe.texts[:_RANGE_TEXTS]]
    windows = [window for encoded in probe.tokenizer.encode(texts) for window in encoded]
    batches = [pad([window], probe.tokenizer.pad_token_id) for window in windows[: 2 * _RANGE_TEXTS]]
    return [*batches, *probe_batches(model, probe.tokenizer.max_tokens).values()]
