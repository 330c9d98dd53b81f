"""Describe how a bundle's model was compressed, and which tokens it prunes, from its manifest."""

from collections.abc import Mapping
from typing import Any

__all__ = ["COMPRESSION_KEY", "PRUNING_KEY", "describe_compression", "describe_pruning"]

COMPRESSION_KEY = "compression"
"""Key of the manifest that says what was done."""

PRUNING_KEY = "token_pruning"
"""Key of the manifest that says which tokens leave after which layers, and what that changes."""


def describe_compression(record: Mapping[str, Any]) -> list[str]:
    """Return what was done to the uncompressed model, a line each; nothing for a record that cannot be read."""
    try:
        gate, speed = record["gate"], record["time"]
        kept = ", ".join(map(str, record["layers_kept"]))
        narrowed = f", trained with {record['narrowed_from']} first" if record.get("narrowed_from") else ""
        lines = [
            f"{len(record['layers_kept'])} of {record['num_layers_before']} layers ({kept}), feed-forward width "
            f"{record['intermediate_size']} of {record['intermediate_size_before']}{narrowed}",
            *([f"token pruning {record['token_pruning']}"] if record.get("token_pruning") else []),
            f"{speed['speedup']:.2f}× as fast as the uncompressed INT8 ({speed['latency_ms']:.3f} against "
            f"{speed['uncompressed_latency_ms']:.3f} ms for a text of dev)",
            f"{gate['metric']} {gate['compressed']:.4f} against {gate['uncompressed']:.4f}: a loss of "
            f"{gate['drop_percent']:.2f} % (95 % interval {gate['drop_percent_interval'][0]:.2f} to "
            f"{gate['drop_percent_interval'][1]:.2f}) on {gate['rows']} rows that the search never saw",
        ]
        if record.get("vocabulary"):
            lines.append(
                f"{record['vocabulary']['after']} of {record['vocabulary']['before']} pieces of the vocabulary"
            )
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    return lines


def describe_pruning(record: Mapping[str, Any]) -> list[str]:
    """Return what token pruning changes, a line each; nothing for a record that cannot be read."""
    try:
        drift, metrics = dict(record["drift"]), record.get("metrics")
        texts = drift.pop("texts")
        measured = ", ".join(f"{name} {value:.4g}" for name, value in drift.items())
        lines = [
            f"{record['schedule']} (layer:share of a text's tokens that stays)",
            f"FP32 compared with all tokens on {texts} texts: {measured}",
        ]
        if metrics:
            interval = metrics.get("drop_percent_interval")
            within = f", 95 % interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
            percent = f": a loss of {metrics['drop_percent']:.2f} %{within}" if interval else ""
            compared = f"{metrics['pruned']:.4f} against {metrics['all_tokens']:.4f} with all tokens"
            lines.append(f"{metrics['metric']} {compared}{percent}")
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    return lines
