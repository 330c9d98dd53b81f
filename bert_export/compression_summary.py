"""Describe how a bundle's model was compressed, from its manifest."""

from collections.abc import Mapping
from typing import Any

__all__ = ["COMPRESSION_KEY", "describe_compression"]

COMPRESSION_KEY = "compression"
"""Key of the manifest that says what was done."""


def describe_compression(record: Mapping[str, Any]) -> list[str]:
    """Return what was done to the uncompressed model, a line each; nothing for a record that cannot be read."""
    try:
        gate, speed = record["gate"], record["time"]
        kept = ", ".join(map(str, record["layers_kept"]))
        lines = [
            f"{len(record['layers_kept'])} of {record['num_layers_before']} layers ({kept}), feed-forward width "
            f"{record['intermediate_size']} of {record['intermediate_size_before']}",
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
