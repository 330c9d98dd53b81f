"""Plan which variants an export makes: targets × precisions × padding modes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bert_export.errors import ExportError
from bert_runtime.bundle.manifest import MASKED, PADDING_MODES, PRECISIONS

if TYPE_CHECKING:
    from bert_models import EncoderConfig

__all__ = [
    "ONLY_FP32",
    "PRECISIONS_BY_TARGET",
    "WHY_FP16",
    "VariantPlan",
    "check_gpu_targets",
    "cpu_only_parts",
    "plan_paddings",
    "plan_variants",
]

PRECISIONS_BY_TARGET = {"cpu": ("fp32", "int8", "bf16"), "cuda": ("fp32", "fp16"), "tensorrt": ("fp32", "fp16")}
"""Precisions that a bundle can hold for each target, the kind of device to export for."""

WHY_FP16 = (
    "FP16 for a GPU: the fused INT8 operators have kernels on the CPU alone, and would fall back to it node by node"
)
"""Why `auto` makes FP16 for a GPU."""

_WHY_NOT_FP16 = "ONNX Runtime's CPU provider has no FP16 matmul and would cast around each"

_WHY_NOT_BF16 = (
    "bf16 is for the CPU: a GPU multiplies as fast in FP16, which rounds 8 times finer, and FP32 takes over where FP16 "
    "would overflow"
)


class VariantPlan(NamedTuple):
    """The precisions to make for each target."""

    cpu: tuple[str, ...]
    cuda: tuple[str, ...]
    tensorrt: tuple[str, ...]


ONLY_FP32 = VariantPlan(("fp32",), (), ())
"""The plan of nothing but what is always made, and compared with PyTorch alone."""


def plan_variants(targets: Sequence[str], precisions: Sequence[str] | None) -> VariantPlan:
    """Return the precisions to make for each target.

    FP32 for the CPU is always among them: the others are compared with it, and it runs everywhere.

    Args:
        targets: devices to export for: `cpu`, `cuda`, `tensorrt`.
        precisions: some of `PRECISIONS`; `None` stands for FP32 and INT8 on the CPU, and FP16 on a GPU.

    Raises:
        ExportError: a name is unknown, or none of the targets runs a precision.
    """
    for kind, given, known in (
        ("targets", targets, tuple(PRECISIONS_BY_TARGET)),
        ("precisions", precisions or (), PRECISIONS),
    ):
        if unknown := sorted(set(given) - set(known)):
            raise ExportError(f"expected {kind} among {', '.join(known)}, found {', '.join(unknown)}")
    cpu, gpu = "cpu" in targets, "cuda" in targets or "tensorrt" in targets
    if precisions is None:
        on_gpu = {target: ("fp16",) for target in ("cuda", "tensorrt") if target in targets}
        return VariantPlan(("fp32", "int8") if cpu else ("fp32",), on_gpu.get("cuda", ()), on_gpu.get("tensorrt", ()))
    if (gpu and set(precisions) == {"int8"}) or ("int8" in precisions and not cpu):
        raise ExportError(f"{WHY_FP16}; export with --precision fp16, and INT8 with --target cpu")
    if "bf16" in precisions and (not cpu or (gpu and set(precisions) <= {"int8", "bf16"})):
        raise ExportError(f"{_WHY_NOT_BF16}; export with --precision fp16, and bf16 with --target cpu")
    if "fp16" in precisions and not gpu:
        raise ExportError(f"FP16 is for a GPU: {_WHY_NOT_FP16}; export with --target cuda, or with --precision int8")
    cuda, tensorrt = (
        tuple(precision for precision in PRECISIONS_BY_TARGET[target] if target in targets and precision in precisions)
        for target in ("cuda", "tensorrt")
    )
    return VariantPlan(("fp32", *(name for name in ("int8", "bf16") if name in precisions)), cuda, tensorrt)


def cpu_only_parts(config: "EncoderConfig") -> list[str]:
    """Return the parts of an encoder that the rewrites for a GPU do not know; none if it can be exported for one."""
    parts = {
        "attention with scores of relative positions": config.position_attention is not None,
        "rotary positions": config.positions == "rotary",
        "local attention": bool(config.local_layers),
        "a gated feed-forward block": config.gated_feed_forward,
        "pre-norm layers": config.norm_first,
        "token pruning": config.token_pruning is not None,
    }
    return [part for part, is_used in parts.items() if is_used]


def check_gpu_targets(plan: VariantPlan, config: "EncoderConfig") -> None:
    """Raise `ExportError` if a plan has graphs for a GPU of a model with parts that the GPU rewrites do not know."""
    unknown = cpu_only_parts(config)
    if unknown and (plan.cuda or plan.tensorrt):
        raise ExportError(
            f"{config.family} is exported for the CPU alone: a GPU has no fused operator here for "
            f"{', '.join(unknown)}; export with --target cpu"
        )


def plan_paddings(paddings: Sequence[str] | None, plan: VariantPlan) -> tuple[str, ...]:
    """Return the padding modes to make of each CUDA graph: `masked` and those asked for, by default all.

    Raises:
        ExportError: a padding mode is unknown, or the plan has no CUDA graphs.
    """
    if unknown := sorted(set(paddings or ()) - set(PADDING_MODES)):
        raise ExportError(f"expected padding modes among {', '.join(PADDING_MODES)}, found {', '.join(unknown)}")
    if paddings and not plan.cuda:
        raise ExportError(f"{paddings[0]} graphs are for CUDA, whose operators they need; export with --target cuda")
    return tuple(padding for padding in PADDING_MODES if padding == MASKED or paddings is None or padding in paddings)
