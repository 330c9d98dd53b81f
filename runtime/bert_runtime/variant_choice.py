"""Choice of the variant and the plan that run, by device, processor and the arguments of `load`."""

import logging
from dataclasses import replace
from pathlib import Path

from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.native_kernels import has_bf16_kernels
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason, parse_device
from bert_runtime.errors import BundleError, InputError
from bert_runtime.machine import available_cores, has_instruction_set
from bert_runtime.plan import Plan, default_plan, tuned_plan

__all__ = [
    "WHY_BF16_IS_FP32",
    "can_run",
    "choose_gpu_variant",
    "choose_variant",
    "chosen_variant",
    "cpu_plan",
    "gains_speed",
    "is_for_cuda",
]

_log = logging.getLogger("bert_runtime")

WHY_BF16_IS_FP32 = "bf16 kernels need AVX512-BF16 or arm64's BF16, and an installation with native kernels"


def cpu_plan(
    manifest: Manifest,
    measured: Plan | None,
    precision: str = "auto",
    threads: int | None = None,
    inter_threads: int | None = None,
    max_batch_tokens: int | None = None,
) -> Plan:
    """Return the plan that `load` follows on this machine's CPU with these arguments.

    Args:
        manifest: the bundle's manifest.
        measured: the result of `tuned_plan`.
        precision: see `load`; so are the following.
        threads: see `load`.
        inter_threads: see `load`.
        max_batch_tokens: see `load`.

    Raises:
        InputError: an argument is out of range.
        BundleError: the bundle has no such variant for the CPU.
    """
    max_inter_threads = available_cores() if threads is None else threads
    if inter_threads is not None and not 1 <= inter_threads <= max_inter_threads:
        raise InputError(
            f"inter_threads must lie in 1 to {max_inter_threads}, the number of threads, found {inter_threads}"
        )
    if measured is None or precision not in ("auto", measured.precision):  # measured for another precision
        plan = default_plan(choose_variant(manifest, precision).precision, threads, inter_threads)
    elif (
        threads not in (None, measured.threads)
        or inter_threads not in (None, measured.inter_threads)
        or (threads is not None and measured.inter_threads > threads)  # who names threads gives no more cores
    ):
        plan = replace(default_plan(measured.precision, threads, inter_threads), kernels=measured.kernels)
    else:
        plan = measured
    return plan if max_batch_tokens is None else replace(plan, max_batch_tokens=max_batch_tokens)


def choose_variant(manifest: Manifest, precision: str) -> Variant:
    """Return the variant that `load` runs on this CPU.

    Raises:
        BundleError: the bundle has no such variant, or none that this processor can run.
    """
    if precision != "auto":
        variant = manifest.variant(precision)
        if not gains_speed(variant):
            _log.warning("%s runs as FP32 here: %s", precision, WHY_BF16_IS_FP32)
        return variant
    variant = manifest.variant(manifest.default_precision)
    others = [other for other in manifest.variants_for("cpu") if can_run(other)]
    if not gains_speed(variant):  # FP32 is as fast, and more exact
        return next((other for other in others if other.precision == "fp32"), variant)
    if can_run(variant):
        return variant
    for other in others:
        _log.warning(
            "this processor has no %s, which the %s variant was made for; running %s instead",
            variant.instruction_set, variant.precision, other.precision,
        )  # fmt: skip
        return other
    raise BundleError(f"no variant of this bundle runs without {variant.instruction_set}; export one with fp32")


def can_run(variant: Variant) -> bool:
    """Return whether this processor computes the variant correctly.

    INT8 is correct without VNNI, too, only slower; see `open_onnxruntime_session`. bf16 without bf16 instructions is
    FP32 with rounded weights, see `gains_speed`.
    """
    return variant.instruction_set in ("vnni", "bf16") or has_instruction_set(variant.instruction_set)


def gains_speed(variant: Variant) -> bool:
    """Return whether a variant can be faster than FP32 on this CPU: bf16 cannot without kernels for bf16."""
    return variant.precision != "bf16" or has_bf16_kernels()


def choose_gpu_variant(manifest: Manifest, precision: str, kind: str = "cuda") -> Variant:
    """Return the variant that `load` runs on a GPU.

    Args:
        manifest: the bundle's manifest.
        precision: see `load`.
        kind: `cuda` or `tensorrt`.

    Raises:
        BundleError: the bundle has no such variant.
    """
    found = manifest.variants_for(kind)
    if not found:
        raise BundleError(f"this bundle has no variant for {kind}; export the checkpoint again with --target {kind}")
    if precision != "auto":
        return manifest.variant(precision, kind)
    return next((variant for variant in found if variant.precision == "fp16"), found[0])


def chosen_variant(bundle: str | Path, precision: str = "auto", device: str = "auto") -> tuple[str, str]:
    """Return what `load` tries first with these arguments on this machine: the kind of device, and the precision.

    Whether a GPU can be used is known only once a session is opened on it.

    Args:
        bundle: the bundle's directory, not of a cascade.
        precision: see `load`.
        device: see `load`.

    Raises:
        BundleError: there is no bundle, or it has no such variant.
        InputError: there is no such device.
    """
    path = Path(bundle)
    manifest, chosen = Manifest.read(path), parse_device(device)
    if chosen is None and is_for_cuda(manifest, precision):
        chosen = Device(kind="cuda")
    if chosen is None or chosen == CPU:
        return CPU.kind, cpu_plan(manifest, tuned_plan(path), precision).precision
    return chosen.kind, choose_gpu_variant(manifest, precision, chosen.kind).precision


def is_for_cuda(manifest: Manifest, precision: str) -> bool:
    """Return whether `load` tries CUDA where no device is named: the bundle and ONNX Runtime are made for it."""
    has_variant = any(precision in ("auto", variant.precision) for variant in manifest.variants_for("cuda"))
    return has_variant and cuda_unavailable_reason() is None
