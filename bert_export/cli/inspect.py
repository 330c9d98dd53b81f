"""`bert-export inspect`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from bert_export.cli.common import bundle_argument, json_option, print_json, table
from bert_runtime.bundle.manifest import Manifest, Variant
from bert_runtime.cpu.native_kernels import kernel_names, kernels_missing
from bert_runtime.errors import BundleError
from bert_runtime.loading import cpu_plan
from bert_runtime.machine import has_instruction_set
from bert_runtime.plan import tuned_plan

__all__ = ["inspect", "summary"]


@click.command()
@bundle_argument
@json_option
def inspect(bundle: Path, as_json: bool) -> None:
    """Show what is inside BUNDLE, how it was made and what was measured."""
    manifest = Manifest.read(bundle)
    if as_json:
        measured = tuned_plan(bundle)
        try:
            here = {
                **asdict(cpu_plan(manifest, measured)),
                "tuned": measured is not None,
                "kernel_names": kernel_names(),
            }
        except BundleError as error:
            here = {"problem": str(error)}
        print_json({**manifest.to_dict(), "here": here})
    else:
        click.echo(summary(bundle, manifest))


def summary(bundle: Path, manifest: Manifest) -> str:
    """A bundle in a screenful of text."""
    settings = manifest.task.to_dict()
    name = settings.pop("name")
    shown = {key: _shorten(value) for key, value in settings.items()}
    lines = [
        f"{bundle}: {name}",
        *(f"  {key}: {value}" for key, value in shown.items()),
        f"  max_tokens: {manifest.max_tokens}",
        f"  made from: {manifest.source.get('path')} ({manifest.source.get('family')}, "
        f"sha256 {str(manifest.source.get('sha256'))[:12]}…)",
        f"  made with: {', '.join(f'{tool} {version}' for tool, version in manifest.versions.items())}",
        f"  measured on: {manifest.machine.get('cpu')}, {manifest.machine.get('cores')} cores",
        f"  default: {manifest.default_precision} ({manifest.default_reason})",
        f"  here, on the CPU: {_here(bundle, manifest)}",
        *_advice(manifest),
        "",
    ]
    return "\n".join(lines) + "\n" + table([row for v in manifest.variants for row in _variant_rows(v)])


def _here(bundle: Path, manifest: Manifest) -> str:
    """What `load` does on this machine's CPU, or why it cannot."""
    measured = tuned_plan(bundle)
    try:
        plan = cpu_plan(manifest, measured)
    except BundleError as error:
        return str(error)
    return f"{plan} ({'not measured, see bert-export tune' if measured is None else 'as measured here'})"


def _advice(manifest: Manifest) -> list[str]:
    """What would run faster on this processor, where something would."""
    if any(each.functions for each in manifest.variants) and kernels_missing():
        return ["  faster here: bert-export installed where there is g++, which its own kernels are compiled with"]
    made_for = {each.instruction_set for each in manifest.variants_for("cpu") if each.precision == "int8"}
    if "vnni" not in made_for or has_instruction_set("vnni"):
        return []
    return [
        "  faster here: INT8 of export --weight-bits 7, since this processor has no VNNI; it is a little less exact"
    ]


def _variant_rows(variant: Variant) -> list[tuple[str, str]]:
    """What is known of one variant, a line each."""
    fusions = ", ".join(f"{name} {c['found']}/{c['expected']}" for name, c in variant.fusions.items() if c["expected"])
    files = " + ".join(asset.file for asset in variant.assets)
    size_mb = sum(asset.size_bytes for asset in variant.assets) / 1e6
    rows = [
        (
            variant.title,
            f"{files}, {size_mb:.1f} MB, opset {variant.opset}",
        ),
        ("", f"fusions: {fusions}"),
    ]
    if variant.int8_flops_share:
        rows.append(("", f"INT8 share of matrix-multiply FLOPs: {variant.int8_flops_share:.1%}"))
    if variant.functions:
        rows.append(("", f"functions with kernels: {_kernels(variant.functions)}"))
    if variant.kept_fp32:
        rows.append(("", f"kept in FP32, for the size of their values: {_shorten(variant.kept_fp32)}"))
    if variant.evaluated_on:
        rows.append(("", f"evaluated on: {variant.evaluated_on}"))
    if texts := variant.quantization.get("calibration"):
        rows.append(("", f"calibrated on: {texts['inputs']} inputs of {texts['source']}, {texts['tokens']} tokens"))
    for title, values in (
        ("parity with PyTorch", variant.parity),
        ("drift from FP32", variant.drift),
        ("metrics", variant.metrics),
        ("median latency in ms", variant.latency_ms),
    ):
        if values:
            rows.append(("", f"{title}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())))
    return rows


def _kernels(calls: Mapping[str, int]) -> str:
    """The functions of a graph, and whether they have kernels here."""
    here = kernel_names()
    return ", ".join(f"{count} × {name}{'' if name in here else ' (not here)'}" for name, count in calls.items())


def _shorten(value: object, shown: int = 8) -> str:
    """A setting on one line."""
    if not isinstance(value, tuple):
        return str(value)
    if value and isinstance(value[0], tuple):
        return f"{len(value)} × {len(value[0])} numbers"
    names = ", ".join(map(str, value[:shown]))
    return f"{len(value)}: {names}" + (", …" if len(value) > shown else "")


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
