"""Two runs side by side: what got slower, what got faster, and what the runs cannot tell."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_bench.reports.report import CaseReport, Report

__all__ = ["Change", "ReportDiff", "compare_reports"]

_LEAST_ROUNDS = 3
"""Rounds of a case without which its spread is not known, and no change is certain."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One engine on one case in both runs."""

    engine: str
    case: str
    before_ms: float
    after_ms: float
    ratio: float
    """Median after over median before: above 1 is slower."""
    certain: bool
    """Whether the rounds of the two runs, three at least, do not overlap: their p10 and p90 lie apart."""


@dataclass(frozen=True, kw_only=True)
class ReportDiff:
    """What changed from one run to another."""

    changes: tuple[Change, ...]
    """Every engine on every case that both runs have, the slowest change first."""
    only_before: tuple[str, ...]
    """Engines that ran before and not after."""
    only_after: tuple[str, ...]
    machine: float | None
    """How much faster the machine's own FP32 matrix product was after: what has nothing to do with the engines."""
    notes: tuple[str, ...]

    def slower(self, least: float) -> list[Change]:
        """Changes that are certain and slower by more than the factor `least`."""
        return [each for each in self.changes if each.certain and each.ratio > least]

    def faster(self, least: float) -> list[Change]:
        """Changes that are certain and faster by more than the factor `least`."""
        return [each for each in reversed(self.changes) if each.certain and each.ratio < 1 / least]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "changes": [vars(each) for each in self.changes],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "machine": self.machine,
            "notes": list(self.notes),
        }


def compare_reports(before: Report, after: Report) -> ReportDiff:
    """The changes from `before` to `after`."""
    cases = {case.name: case for case in before.cases}
    changes = [change for case in after.cases if case.name in cases for change in _changes(cases[case.name], case)]
    names = [{each.name for each in report.engines} for report in (before, after)]
    peaks = [report.peaks_gflops.get("fp32") for report in (before, after)]
    return ReportDiff(
        changes=tuple(sorted(changes, key=lambda each: -each.ratio)),
        only_before=tuple(sorted(names[0] - names[1])),
        only_after=tuple(sorted(names[1] - names[0])),
        machine=peaks[1] / peaks[0] if peaks[0] and peaks[1] else None,
        notes=tuple(_notes(before, after)),
    )


def _changes(before: CaseReport, after: CaseReport) -> Iterator[Change]:
    if before.tokens != after.tokens:  # texts of the same name that are not the same
        return
    for name, timing in after.timings.items():
        if name not in before.timings:
            continue
        old = before.timings[name]
        ratio = float(np.median(timing.round_medians_ms) / np.median(old.round_medians_ms))
        low, high = (np.percentile(each.round_medians_ms, (10, 90)) for each in (old, timing))
        rounds = min(len(each.round_medians_ms) for each in (old, timing))
        yield Change(
            engine=name, case=after.name, before_ms=old.p50_ms, after_ms=timing.p50_ms, ratio=ratio,
            certain=rounds >= _LEAST_ROUNDS and bool(high[0] > low[1] or high[1] < low[0]),
        )  # fmt: skip


def _notes(before: Report, after: Report) -> Iterator[str]:
    """What else differs between the runs."""
    for what, old, new in (
        ("processor", before.conditions.machine["cpu"], after.conditions.machine["cpu"]),
        ("threads", before.conditions.threads, after.conditions.threads),
        ("task", before.task, after.task),
    ):
        if old != new:
            yield f"The runs differ in {what}: {old} before, {new} after."
    old_versions, new_versions = before.conditions.versions, after.conditions.versions
    for name in sorted({*old_versions, *new_versions}):
        if old_versions.get(name) != new_versions.get(name):
            yield f"{name}: {old_versions.get(name, 'none')} before, {new_versions.get(name, 'none')} after."
    for report, when in ((before, "before"), (after, "after")):
        for note in report.notes:
            if "busy" in note:
                yield f"The run {when}: {note}"
