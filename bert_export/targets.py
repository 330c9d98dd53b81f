"""Which graphs an export makes: targets × precisions."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_export.errors import ExportError
from bert_runtime.bundle.manifest import MASKED, PADDING_MODES

__all__ = ["PRECISIONS", "WHY_FP16", "Graphs", "graphs_for", "paddings_for"]

PRECISIONS = {"cpu": ("fp32", "int8"), "cuda": ("fp32", "fp16"), "tensorrt": ("fp32", "fp16")}
"""Precisions that a bundle can hold for each target, the kind of device to export for."""

WHY_FP16 = (
    "FP16 for a GPU: the fused INT8 operators have kernels on the CPU alone, and would fall back to it node by node"
)
"""Why `auto` takes FP16 where the target is a GPU."""

_WHY_NOT_FP16 = "ONNX Runtime's CPU provider has no FP16 matrix product and would cast around each"


class Graphs(NamedTuple):
    """The precisions of the graphs to make, by target."""

    cpu: tuple[str, ...]
    cuda: tuple[str, ...]
    tensorrt: tuple[str, ...]


def paddings_for(paddings: Sequence[str] | None, graphs: Graphs) -> tuple[str, ...]:
    """The paddings to make of each graph for CUDA: those asked for, masked always, and all by default.

    Raises `ExportError` for paddings that are unknown, or that none of the graphs could have.
    """
    if unknown := sorted(set(paddings or ()) - set(PADDING_MODES)):
        raise ExportError(f"expected paddings of {', '.join(PADDING_MODES)}, found {', '.join(unknown)}")
    if paddings and not graphs.cuda:
        raise ExportError(f"{paddings[0]} graphs are for CUDA, whose operators they need; export with --target cuda")
    return tuple(each for each in PADDING_MODES if each == MASKED or paddings is None or each in paddings)


def graphs_for(targets: Sequence[str], precisions: Sequence[str] | None) -> Graphs:
    """The graphs to make for those targets.

    FP32 for the CPU is always among them: the others are judged by it, and it answers where nothing else can. `None`
    for the precisions stands for FP32 and INT8 on the CPU and for FP16 on a GPU. Raises `ExportError` for what no
    target can run.
    """
    every = ("fp32", "fp16", "int8")
    for kind, given, known in (("targets", targets, PRECISIONS), ("precisions", precisions or (), every)):
        if unknown := sorted(set(given) - set(known)):
            raise ExportError(f"expected {kind} of {', '.join(known)}, found {', '.join(unknown)}")
    cpu, gpu = "cpu" in targets, "cuda" in targets or "tensorrt" in targets
    if precisions is None:
        cuda, tensorrt = (("fp16",) if target in targets else () for target in ("cuda", "tensorrt"))
        return Graphs(("fp32", "int8") if cpu else ("fp32",), cuda, tensorrt)
    if (gpu and set(precisions) == {"int8"}) or ("int8" in precisions and not cpu):
        raise ExportError(f"{WHY_FP16}; export with --precision fp16, and INT8 with --target cpu")
    if "fp16" in precisions and not gpu:
        raise ExportError(f"FP16 is for a GPU: {_WHY_NOT_FP16}; export with --target cuda, or with --precision int8")
    return Graphs(
        ("fp32", *(["int8"] if "int8" in precisions else [])),
        *(
            tuple(each for each in PRECISIONS[target] if target in targets and each in precisions)
            for target in ("cuda", "tensorrt")
        ),
    )
