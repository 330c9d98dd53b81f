"""Which graphs an export makes: targets × precisions."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_export.errors import ExportError

__all__ = ["PRECISIONS", "WHY_FP16", "Graphs", "graphs_for"]

PRECISIONS = {"cpu": ("fp32", "int8"), "cuda": ("fp32", "fp16")}
"""Precisions that a bundle can hold for each target, the kind of device to export for."""

WHY_FP16 = (
    "FP16 for CUDA: the fused INT8 operators have kernels on the CPU alone, and would fall back to it node by node"
)
"""Why `auto` takes FP16 where the target is CUDA."""

_WHY_NOT_FP16 = "ONNX Runtime's CPU provider has no FP16 matrix product and would cast around each"


class Graphs(NamedTuple):
    """The precisions of the graphs to make, by target."""

    cpu: tuple[str, ...]
    cuda: tuple[str, ...]


def graphs_for(targets: Sequence[str], precisions: Sequence[str] | None) -> Graphs:
    """The graphs to make for those targets.

    FP32 for the CPU is always among them: the others are judged by it, and it answers where nothing else can. `None`
    for the precisions stands for FP32 and INT8 on the CPU and for FP16 on CUDA. Raises `ExportError` for what no target
    can run.
    """
    every = ("fp32", "fp16", "int8")
    for kind, given, known in (("targets", targets, PRECISIONS), ("precisions", precisions or (), every)):
        if unknown := sorted(set(given) - set(known)):
            raise ExportError(f"expected {kind} of {', '.join(known)}, found {', '.join(unknown)}")
    cpu, cuda = "cpu" in targets, "cuda" in targets
    if precisions is None:
        return Graphs(("fp32", "int8") if cpu else ("fp32",), ("fp16",) if cuda else ())
    if (cuda and set(precisions) == {"int8"}) or ("int8" in precisions and not cpu):
        raise ExportError(f"{WHY_FP16}; export with --precision fp16, and INT8 with --target cpu")
    if "fp16" in precisions and not cuda:
        raise ExportError(f"FP16 is for CUDA: {_WHY_NOT_FP16}; export with --target cuda, or with --precision int8")
    return Graphs(
        ("fp32", *(["int8"] if "int8" in precisions else [])),
        tuple(each for each in PRECISIONS["cuda"] if cuda and each in precisions),
    )
