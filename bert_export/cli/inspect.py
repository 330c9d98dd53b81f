"""`bert-export inspect`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bert_export.cli.bundle_summary import print_bundle
from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import bundle_argument, json_option
from bert_export.cli.output import print_json
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.errors import BundleError, CascadeBundleError
from bert_runtime.plan import tuned_plan
from bert_runtime.variant_choice import cpu_plan

__all__ = ["inspect"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export inspect bundle",
        "# Which variants are there, for a script",
        "bert-export inspect bundle --json | jq '.variants[].precision'",
    ],
)
@bundle_argument
@json_option
def inspect(bundle: Path, as_json: bool) -> None:
    """Show BUNDLE's contents, origin and measurements."""
    try:
        manifest = Manifest.read(bundle)
    except CascadeBundleError:
        _inspect_cascade(bundle, as_json=as_json)
        return
    if as_json:
        print_json({**manifest.to_dict(), "here": _plan_here(bundle, manifest)})
    else:
        print_bundle(bundle, manifest)


def _inspect_cascade(bundle: Path, *, as_json: bool) -> None:
    from bert_export.cli.cascade_summary import print_cascade
    from bert_runtime.cascade import CascadeManifest

    manifest = CascadeManifest.read(bundle)
    if as_json:
        print_json(manifest.to_dict())
    else:
        print_cascade(bundle, manifest)


def _plan_here(bundle: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what `load` does on this machine's CPU, or why it cannot, as JSON values."""
    tuned = tuned_plan(bundle)
    try:
        plan = cpu_plan(manifest, tuned)
    except BundleError as error:
        return {"problem": str(error)}
    return {**asdict(plan), "tuned": tuned is not None, "kernel_names": kernel_names()}
