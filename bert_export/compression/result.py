"""The result of a search: what was chosen, what the gate says, and everything that was tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_runtime.tasks import Task

__all__ = ["CompressionResult", "pareto_rows"]


@dataclass(frozen=True, kw_only=True)
class CompressionResult:
    """The outcome of a search."""

    passed: bool
    """Whether the bundle is what was asked for; else it is the best that was found."""
    reason: str
    """The verdict of the gate."""
    bundle: Path
    """The verified bundle."""
    checkpoint: Path
    """The checkpoint that it was exported from."""
    task: Task
    record: Mapping[str, Any]
    """The record of the search, kept in the bundle's manifest under `compression`."""
    measured: Sequence[Mapping[str, Any]]
    """Everything that was exported and measured: see `pareto_rows`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "passed": self.passed,
            "reason": self.reason,
            "bundle": str(self.bundle),
            "checkpoint": str(self.checkpoint),
            "compression": dict(self.record),
            "measured": [dict(row) for row in self.measured],
        }


def pareto_rows(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return measured candidates, the fastest first, with whether one is on the Pareto front.

    A candidate is on the front if no other is at least as fast and loses less.

    Args:
        measured: rows with `speedup` and `compressed`, the metric, among others.
    """
    ordered = sorted(measured, key=lambda row: (-row["speedup"], -row["compressed"]))
    rows, best = [], float("-inf")
    for row in ordered:
        rows.append({**row, "pareto": row["compressed"] > best})
        best = max(best, row["compressed"])
    return rows
