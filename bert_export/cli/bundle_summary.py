"""A summary of a bundle as text, printed by `export` and `inspect`."""

from collections.abc import Mapping
from pathlib import Path

from bert_export.cli.output import format_table
from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.native_kernels import HOW_TO_GET_KERNELS, kernel_names, kernels_missing
from bert_runtime.errors import BundleError
from bert_runtime.machine import has_instruction_set
from bert_runtime.plan import tuned_plan
from bert_runtime.variant_choice import cpu_plan

__all__ = ["format_bundle"]


def format_bundle(bundle: Path, manifest: Manifest) -> str:
    """Format a bundle's settings, origin, variants and measurements as text."""
    settings = manifest.task.to_dict()
    name = settings.pop("name")
    source = manifest.source
    lines = [
        f"{bundle}: {name}",
        *(f"  {key}: {_shorten(value)}" for key, value in settings.items()),
        f"  max_tokens: {manifest.max_tokens}",
        f"  made from: {source.get('path')} ({source.get('family')}, sha256 {str(source.get('sha256'))[:12]}…)",
        f"  made with: {', '.join(f'{tool} {version}' for tool, version in manifest.versions.items())}",
        f"  measured on: {manifest.machine.get('cpu')}, {manifest.machine.get('cores')} cores",
        f"  default: {manifest.default_precision} ({manifest.default_reason})",
        f"  here, on the CPU: {_format_plan(bundle, manifest)}",
        *_advice(manifest),
        "",
    ]
    return "\n".join(lines) + "\n" + format_table([row for v in manifest.variants for row in _variant_rows(v)])


def _format_plan(bundle: Path, manifest: Manifest) -> str:
    """Format what `load` does on this machine's CPU, or why it cannot."""
    tuned = tuned_plan(bundle)
    try:
        plan = cpu_plan(manifest, tuned)
    except BundleError as error:
        return str(error)
    return f"{plan} ({'not measured, see bert-export tune' if tuned is None else 'as measured here'})"


def _advice(manifest: Manifest) -> list[str]:
    """Return a line of advice if something would be faster on this processor."""
    if any(variant.functions for variant in manifest.variants) and kernels_missing():
        return [f"  faster here: native kernels, which this installation lacks; {HOW_TO_GET_KERNELS}"]
    instruction_sets = {
        variant.instruction_set for variant in manifest.variants_for("cpu") if variant.precision == "int8"
    }
    if "vnni" not in instruction_sets or has_instruction_set("vnni"):
        return []
    return ["  faster here: INT8 of export --weight-bits 7, because this processor has no VNNI; slightly less accurate"]


def _variant_rows(variant: Variant) -> list[tuple[str, str]]:
    """Return the rows of one variant: its title and files, then a line for each measurement."""
    files = " + ".join(asset.file for asset in variant.assets)
    size_mb = sum(asset.size_bytes for asset in variant.assets) / 1e6
    details = [*_graph_details(variant), *_measurements(variant)]
    return [
        (variant.title, f"{files}, {size_mb:.1f} MB, opset {variant.opset}"),
        *(("", detail) for detail in details),
    ]


def _graph_details(variant: Variant) -> list[str]:
    counts = {name: count for name, count in variant.fusions.items() if count["expected"]}
    fusions = ", ".join(f"{name} {count['found']}/{count['expected']}" for name, count in counts.items())
    details = [f"fusions: {fusions}"]
    if variant.int8_flops_share:
        details.append(f"INT8 share of matrix-multiply FLOPs: {variant.int8_flops_share:.1%}")
    if variant.functions:
        details.append(f"functions with native kernels: {_format_calls(variant.functions)}")
    if variant.kept_fp32:
        details.append(f"kept in FP32 because FP16 would overflow: {_shorten(variant.kept_fp32)}")
    if variant.evaluated_on:
        details.append(f"evaluated on: {variant.evaluated_on}")
    if texts := variant.quantization.get("calibration"):
        details.append(f"calibrated on: {texts['inputs']} inputs of {texts['source']}, {texts['tokens']} tokens")
    return details


def _measurements(variant: Variant) -> list[str]:
    titled = {
        "parity with PyTorch": variant.parity,
        "drift from FP32": variant.drift,
        "metrics": variant.metrics,
        "median latency in ms": variant.latency_ms,
    }
    return [
        f"{title}: " + ", ".join(f"{key} {_format_number(value)}" for key, value in values.items())
        for title, values in titled.items()
        if values
    ]


def _format_calls(calls: Mapping[str, int]) -> str:
    """Format how often a graph calls each function, and whether this machine has a kernel for it."""
    available = kernel_names()
    return ", ".join(f"{count} × {name}{'' if name in available else ' (not here)'}" for name, count in calls.items())


def _shorten(value: object, max_items: int = 8) -> str:
    """Format a setting on one line."""
    if not isinstance(value, tuple):
        return str(value)
    if value and isinstance(value[0], tuple):
        return f"{len(value)} × {len(value[0])} numbers"
    names = ", ".join(map(str, value[:max_items]))
    return f"{len(value)}: {names}" + (", …" if len(value) > max_items else "")


def _format_number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
