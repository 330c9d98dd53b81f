"""Summaries of a cascade, printed by `cascade` and `inspect`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_export.cli.terminal import print_heading, print_table
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.timing import format_ms

if TYPE_CHECKING:
    from bert_runtime.cascade import CascadeManifest

__all__ = ["print_cascade", "print_measurements"]


def print_cascade(bundle: Path, manifest: "CascadeManifest") -> None:
    """Print the two bundles of a cascade, its threshold, and what the gate and the clock said."""
    print_heading(f"{bundle}: cascade")
    rows = []
    for part in manifest.parts:
        found = Manifest.read(bundle / part.folder, verify=False)
        rows.append((part.folder, f"{found.source.get('path')}, {found.task.name}, {found.default_precision}"))
    print_table([*rows, ("measured on", f"{manifest.machine.get('cpu')}, {manifest.machine.get('cores')} cores")])
    print_measurements(manifest)


def print_measurements(manifest: "CascadeManifest") -> None:
    """Print the threshold, the loss on rows that did not choose it, and the latencies."""
    judged = manifest.judged_on
    interval = judged["drop_interval"]
    print_table(
        [
            ("threshold", f"{manifest.threshold:.4f}"),
            ("texts answered by small", f"{judged['small_share']:.1%} of {judged['rows']} rows{_how(judged)}"),
            (manifest.metric, f"{judged['found']:.4f}; of large alone {judged['reference']:.4f}{_small_alone(judged)}"),
            (
                "loss",
                f"{judged['drop_percent']:.2f} % (95 % interval {interval['low']:.2f} to {interval['high']:.2f} %), "
                f"at most {manifest.max_drop_percent:g} % allowed",
            ),
        ]
    )
    names = ("mean", "p50", "p99", "max")
    rows = [(model, *(format_ms(times[name]) for name in names)) for model, times in manifest.latency_ms.items()]
    print_table([("ms per text", *names), *rows], has_header=True)


def _how(judged: Mapping[str, Any]) -> str:
    """Return how the rows were judged: earlier releases set half of them aside."""
    return f" in {judged['folds']} folds" if "folds" in judged else " set aside"


def _small_alone(judged: Mapping[str, Any]) -> str:
    """Return the small model's own metric, which earlier releases did not record."""
    return f", of small alone {judged['small']:.4f}" if "small" in judged else ""
