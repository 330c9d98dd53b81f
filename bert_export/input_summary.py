"""Describe the inputs that INT8 was calibrated or judged on, from a bundle's manifest."""

from collections.abc import Mapping
from typing import Any

__all__ = ["describe_inputs"]


def describe_inputs(record: Mapping[str, Any]) -> str:
    """Return how many inputs of which file they were, and how many built-in ones were added.

    Args:
        record: `calibration` or `judged_on` of a variant's `quantization`.
    """
    built_in = record.get("built_in_inputs", 0)
    added = f" and {built_in:,} built-in ones" if built_in else ""
    same = ", which it was calibrated on, too" if record.get("calibrated_on_too") else ""
    return f"{record['inputs'] - built_in:,} inputs of {record['source']}{added}{same}"
