"""Summaries of a bundle, printed by `export` and `inspect`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from bert_export.cli.terminal import is_terminal, print_heading, print_table, print_text
from bert_export.compression_summary import COMPRESSION_KEY, PRUNING_KEY, describe_compression, describe_pruning
from bert_export.input_summary import describe_inputs
from bert_runtime.bundle.manifest import AttentionGraph, Manifest, Variant
from bert_runtime.cpu.native_kernels import HOW_TO_GET_KERNELS, kernel_names, kernels_missing
from bert_runtime.errors import BundleError
from bert_runtime.machine import has_instruction_set
from bert_runtime.plan import tuned_plan
from bert_runtime.timing import format_ms
from bert_runtime.variant_choice import WHY_BF16_IS_FP32, cpu_plan, gains_speed

__all__ = ["print_bundle", "print_export", "print_variants"]


def print_bundle(bundle: Path, manifest: Manifest) -> None:
    """Print a bundle's settings, origin, variants and measurements."""
    print_heading(f"{bundle}: {manifest.task.name}")
    settings = _settings(bundle, manifest)
    if is_terminal(sys.stdout):
        print_table(settings)
    else:
        click.echo("\n".join(f"  {name}: {value}" for name, value in settings))
    click.echo()
    print_variants(manifest)
    click.echo()
    rows = [row for variant in manifest.variants for row in _variant_rows(variant)]
    print_table(rows if manifest.attention is None else [*rows, *_attention_rows(manifest.attention)])


def _settings(bundle: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the settings and the origin of a bundle by name."""
    source = manifest.source
    return [
        *((key, _shorten(value)) for key, value in manifest.task.to_dict().items() if key != "name"),
        ("max_tokens", str(manifest.max_tokens)),
        ("made from", f"{source.get('path')} ({source.get('family')}, sha256 {str(source.get('sha256'))[:12]}…)"),
        *(("compressed", line) for line in describe_compression(manifest.extra.get(COMPRESSION_KEY) or {})),
        *(("token pruning", line) for line in _pruning(manifest)),
        ("made with", ", ".join(f"{tool} {version}" for tool, version in manifest.versions.items())),
        ("measured on", f"{manifest.machine.get('cpu')}, {manifest.machine.get('cores')} cores"),
        ("default", f"{manifest.default_precision} ({manifest.default_reason})"),
        ("here, on the CPU", _format_plan(bundle, manifest)),
        *(("faster here", advice) for advice in _advice(manifest)),
    ]


def print_export(bundle: Path, manifest: Manifest) -> None:
    """Print what an export has made: size, speed and fidelity of each variant, and which is the default and why."""
    print_heading(f"{bundle}: {manifest.task.name}")
    print_variants(manifest)
    for line in _pruning(manifest):
        print_text(f"\ntoken pruning: {line}")
    print_text(f"\ndefault: {manifest.default_precision}, since {manifest.default_reason}")


def _pruning(manifest: Manifest) -> list[str]:
    return describe_pruning(manifest.extra.get(PRUNING_KEY) or {})


def print_variants(manifest: Manifest) -> None:
    """Print a table of the variants: size, median latency, speed compared with FP32, and fidelity."""
    shapes = list(dict.fromkeys(shape for variant in manifest.variants for shape in variant.latency_ms))
    measured = next((variant.metrics for variant in manifest.variants if variant.metrics), None)
    metric = manifest.task.deciding_metric(measured) if measured else None
    header = ["variant", "size", *(f"{shape}, ms" for shape in shapes), *["speed"] * bool(shapes)]
    rows = [[*header, *[metric] * (metric is not None), "fidelity"]]
    for variant in manifest.variants:
        row = [variant.title, f"{variant.size_bytes / 1e6:.1f} MB"]
        row += [format_ms(variant.latency_ms[shape]) if shape in variant.latency_ms else "-" for shape in shapes]
        row += [_speed(variant, manifest.variants[0], shapes[-1])] if shapes else []
        row += [_format_number(variant.metrics.get(metric, "-"), ".4f")] if metric is not None else []
        rows.append([*row, _fidelity(variant, manifest.task.agreement_floor[0])])
    print_table(rows, has_header=True)


def _speed(variant: Variant, fp32: Variant, shape: str) -> str:
    if shape not in variant.latency_ms or shape not in fp32.latency_ms:
        return "-"
    return f"{fp32.latency_ms[shape] / variant.latency_ms[shape]:.2f}×"


def _fidelity(variant: Variant, agreement: str) -> str:
    """Describe how close a variant is to what it was made from, by the measure that decides on the default."""
    if agreement in variant.drift:
        texts = variant.drift.get("texts")
        measured = f" on {texts} texts" if texts else ""
        return f"{agreement} {_format_number(variant.drift[agreement], '.4f')} with FP32{measured}"
    if "max_abs_error" in variant.parity:
        return f"at most {_format_number(variant.parity['max_abs_error'], '.1e')} from PyTorch"
    return "not measured"


def _format_plan(bundle: Path, manifest: Manifest) -> str:
    """Format what `load` does on this machine's CPU, or why it cannot."""
    tuned = tuned_plan(bundle)
    try:
        plan = cpu_plan(manifest, tuned)
    except BundleError as error:
        return str(error)
    return f"{plan} ({'not measured, see bert-export tune' if tuned is None else 'as measured here'})"


def _advice(manifest: Manifest) -> list[str]:
    """Return advice if something would be faster on this processor."""
    if any(variant.functions for variant in manifest.variants) and kernels_missing():
        return [f"native kernels, which this installation lacks; {HOW_TO_GET_KERNELS}"]
    if any(not gains_speed(variant) for variant in manifest.variants_for("cpu")):
        return [f"a processor for bf16, which runs as FP32 here: {WHY_BF16_IS_FP32}"]
    instruction_sets = {
        variant.instruction_set for variant in manifest.variants_for("cpu") if variant.precision == "int8"
    }
    if "vnni" not in instruction_sets or has_instruction_set("vnni"):
        return []
    return ["INT8 of export --weight-bits 7, because this processor has no VNNI; slightly less accurate"]


def _variant_rows(variant: Variant) -> list[tuple[str, str]]:
    """Return the rows of one variant: its title and files, then a line for each measurement."""
    files = " + ".join(asset.file for asset in variant.assets)
    details = [*_graph_details(variant), *_measurements(variant)]
    return [
        (variant.title, f"{files}, {variant.size_bytes / 1e6:.1f} MB, opset {variant.opset}"),
        *(("", detail) for detail in details),
    ]


def _attention_rows(graph: AttentionGraph) -> list[tuple[str, str]]:
    """Return the rows of the attention graph, whose weights are those of FP32."""
    files = " + ".join(asset.file for asset in graph.assets)
    return [
        (graph.title, f"{files}, {graph.model.size_bytes / 1e6:.1f} MB more, opset {graph.opset}"),
        ("", f"probabilities: {len(graph.outputs)} layers of {graph.num_heads} heads"),
        ("", _format_measurement("parity with PyTorch", graph.parity)),
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
        details.append(f"calibrated on: {describe_inputs(texts)}, {texts['tokens']} tokens")
    if texts := variant.quantization.get("judged_on"):
        details.append(f"judged on: {describe_inputs(texts)}")
    return details


def _measurements(variant: Variant) -> list[str]:
    titled = {
        "parity with PyTorch": variant.parity,
        "drift from FP32": variant.drift,
        "metrics": variant.metrics,
        "median latency in ms": variant.latency_ms,
    }
    return [_format_measurement(title, values) for title, values in titled.items() if values]


def _format_measurement(title: str, values: Mapping[str, object]) -> str:
    return f"{title}: " + ", ".join(f"{key} {_format_number(value)}" for key, value in values.items())


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
    names = ", ".join(map(str, value[:max_items])) + (", …" if len(value) > max_items else "")
    return names if value and isinstance(value[0], int) else f"{len(value)}: {names}"


def _format_number(value: object, digits: str = ".4g") -> str:
    return f"{value:{digits}}" if isinstance(value, float) else str(value)
