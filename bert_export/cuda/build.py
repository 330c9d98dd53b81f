"""Build the CUDA variants of a bundle, with the proof of them that a machine without a GPU can give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from bert_export.cuda.decompose_packing import decompose_packed_ops
from bert_export.cuda.drop_mask import drop_attention_mask
from bert_export.cuda.fp16 import convert_to_fp16
from bert_export.cuda.fp16_overflow import find_fp16_overflows, overflow_batches
from bert_export.cuda.fusion import CUDA_OPSET, fuse_for_cuda
from bert_export.cuda.packed import pack
from bert_export.cuda.parity import check_cuda_parity
from bert_export.graph_files import GraphFiles, save_graphs
from bert_export.onnx_graph import FusionCounts
from bert_export.temporary_session import temporary_graph
from bert_export.variants import BuildContext, BuiltVariant, Fp32Variant, finish_variant, measure_drift
from bert_models import TaskModel
from bert_runtime.bundle.manifest import MASKED, PACKED, UNMASKED
from bert_runtime.model import Model

__all__ = ["EVALUATED_ON", "build_cuda"]

EVALUATED_ON = "the CPU provider, with a cast around each operator that it has in FP32 alone; not on a GPU"
"""How a CUDA variant was measured."""

PACKED_EVALUATED_ON = f"{EVALUATED_ON}, nor with the operators that pack and unpack, which CUDA alone has"
"""How a packed CUDA variant was measured."""

_PROBED_PADDING = {MASKED: "every kind of padding", PACKED: "padding at the end", UNMASKED: "no padding"}
"""The probe batches that each padding mode accepts (`bert_runtime.gpu.shape_buckets.accepts_batch`), in words."""


@dataclass(frozen=True, kw_only=True)
class _CudaGraph:
    """A graph for CUDA: one precision in one padding mode."""

    precision: str
    graph: ir.Model
    fusions: FusionCounts
    kept_fp32: tuple[str, ...] = ()
    """Values of an FP16 graph that are computed in FP32."""
    padding: str = MASKED

    @property
    def name(self) -> str:
        """The part of the file's name that differs between graphs."""
        name = self.precision if self.precision == "fp16" else f"cuda.{self.precision}"
        return name if self.padding == MASKED else f"{name}.{self.padding}"

    def with_padding(self, padding: str, torch_model: TaskModel) -> "_CudaGraph":
        """Return a copy in another padding mode; it shares the weights."""
        graph, config = self.graph.clone(), torch_model.config
        counts = pack(graph, config) if padding == PACKED else drop_attention_mask(graph, config)
        return replace(self, graph=graph, fusions={**self.fusions, **counts}, padding=padding)


def build_cuda(
    context: BuildContext, fp32: Fp32Variant, precisions: Sequence[str], paddings: Sequence[str] = (MASKED,)
) -> list[BuiltVariant]:
    """Build the CUDA variants, in every padding mode, from the fused graph of the CPU's FP32 variant.

    Args:
        context: the export's context.
        fp32: the CPU's FP32 variant.
        precisions: `fp32`, `fp16`, both or none.
        paddings: padding modes; `masked` graphs are always built. Graphs of one precision share one file of weights.

    Returns:
        The variants, `masked` ones first.

    Raises:
        FusionError: a rewrite replaced a different number of operators than the model's configuration demands.
        ParityError: the graph's outputs on the CPU are too far from PyTorch's.
    """
    if not precisions:
        return []
    masked = _masked_graphs(context, fp32, precisions)
    graphs = list(masked)
    for padding in dict.fromkeys(paddings):
        if padding != MASKED:
            context.progress(f"making {padding} graphs")
            graphs += [graph.with_padding(padding, context.torch_model) for graph in masked]
    files: dict[str, GraphFiles] = {}
    for precision in (graph.precision for graph in masked):
        files |= save_graphs({g.name: g.graph for g in graphs if g.precision == precision}, context.folder)
    return [_build_variant(context, fp32, graph, files[graph.name]) for graph in graphs]


def _masked_graphs(context: BuildContext, fp32: Fp32Variant, precisions: Sequence[str]) -> list[_CudaGraph]:
    """Fuse for CUDA, and convert to FP16 what does not overflow there."""
    context.progress("fusing for CUDA")
    graph = fp32.graph.clone()
    fusions = {**fp32.fusions, **fuse_for_cuda(graph, context.torch_model.config)}
    graphs = []
    if "fp32" in precisions:
        graphs.append(_CudaGraph(precision="fp32", graph=graph.clone(), fusions=fusions))
    if "fp16" in precisions:
        context.progress("measuring how large activations become")
        overflows = find_fp16_overflows(graph, overflow_batches(context.torch_model, context.probe))
        if overflows:
            context.progress(
                f"keeping {len(overflows)} operators in FP32, whose values reach {max(overflows.values()):.3g}"
            )
        convert_to_fp16(graph, overflows)
        graphs.append(_CudaGraph(precision="fp16", graph=graph, fusions=fusions, kept_fp32=tuple(overflows)))
    return graphs


def _build_variant(context: BuildContext, fp32: Fp32Variant, cuda: _CudaGraph, files: GraphFiles) -> BuiltVariant:
    """Measure on the CPU a graph that has been written."""
    title = f"{'' if cuda.padding == MASKED else f'{cuda.padding} '}{cuda.precision.upper()}"
    context.progress(f"comparing {title} for CUDA with PyTorch on the CPU, under {_PROBED_PADDING[cuda.padding]}")
    runtime_model = _open_runtime_model(context, cuda, files)
    parity = check_cuda_parity(
        context.torch_model,
        runtime_model.session.run,
        context.max_tokens,
        fp16=cuda.precision == "fp16",
        padding=cuda.padding,
    )
    outputs = runtime_model.outputs(context.probe.texts)
    drift = measure_drift(runtime_model.task, outputs, fp32.outputs)
    return finish_variant(
        context, runtime_model, outputs, files, tolerance=max(parity["tolerance"], 2 * drift["max_abs_difference"]),
        precision=cuda.precision, target="cuda", padding=cuda.padding, opset=CUDA_OPSET, fusions=cuda.fusions,
        parity=parity, kept_fp32=cuda.kept_fp32, drift=drift,
        evaluated_on=PACKED_EVALUATED_ON if cuda.padding == PACKED else EVALUATED_ON,
    )  # fmt: skip


def _open_runtime_model(context: BuildContext, cuda: _CudaGraph, files: GraphFiles) -> Model:
    """Open a graph on the CPU; of a packed one, a copy whose packing operators are decomposed."""
    if cuda.padding == PACKED:
        with temporary_graph(decompose_packed_ops(cuda.graph)) as path:
            return context.open_runtime_model(path)
    runtime_model = context.open_runtime_model(context.folder / files.model.file)
    if cuda.padding == UNMASKED:
        runtime_model.max_batch_tokens = 1  # one sequence per batch, since the graph accepts no padding
    return runtime_model
