"""The difference of two reports: what got slower, what got faster, and what stayed within the noise."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_bench.reports.report import CaseReport, Report
from bert_bench.timing_statistics import MIN_ROUNDS

__all__ = ["Change", "ReportDiff", "compare_reports"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change of one engine on one case. Field names are JSON keys of `bert-bench compare --json`."""

    engine: str
    case: str
    before_ms: float
    """Median latency over all calls."""
    after_ms: float
    ratio: float
    """Median of the round medians after, divided by that before: above 1 is slower."""
    certain: bool
    """Whether the p10–p90 ranges of the round medians do not overlap, given at least three rounds in both runs."""


@dataclass(frozen=True, kw_only=True)
class ReportDiff:
    """The changes from one run to another."""

    changes: tuple[Change, ...]
    """Changes of every engine on every case that both runs have, the largest slowdown first."""
    only_before: tuple[str, ...]
    """Engines that ran before but not after."""
    only_after: tuple[str, ...]
    """Engines that ran after but not before."""
    missing: tuple[str, ...]
    """Other timings that the run before has and the one after lacks, such as `int8: 8x128`."""
    machine_speed: float | None
    """Peak FP32 matmul throughput after, divided by that before: changes of the machine, not of the engines."""
    notes: tuple[str, ...]
    """Other differences between the runs, and their notes on busy machines."""

    def slower(self, min_factor: float) -> list[Change]:
        """Return the certain changes that are slower by more than a factor, largest first."""
        return [change for change in self.changes if change.certain and change.ratio > min_factor]

    def faster(self, min_factor: float) -> list[Change]:
        """Return the certain changes that are faster by more than a factor, largest first."""
        return [change for change in reversed(self.changes) if change.certain and change.ratio < 1 / min_factor]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values."""
        return {
            "changes": [vars(change) for change in self.changes],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "missing": list(self.missing),
            "machine": self.machine_speed,
            "notes": list(self.notes),
        }


def compare_reports(before: Report, after: Report) -> ReportDiff:
    """Compare two reports.

    Cases are matched by name and token lengths, engines by name.
    """
    cases = {case.name: case for case in before.cases}
    changes = [change for case in after.cases if case.name in cases for change in _changes(cases[case.name], case)]
    names = [{engine.name for engine in report.engines} for report in (before, after)]
    peaks = [report.peaks_gflops.get("fp32") for report in (before, after)]
    return ReportDiff(
        changes=tuple(sorted(changes, key=lambda change: -change.ratio)),
        only_before=tuple(sorted(names[0] - names[1])),
        only_after=tuple(sorted(names[1] - names[0])),
        missing=tuple(
            f"{engine}: {case}"
            for engine, case, tokens in _timed(before)
            if engine in names[1] and (engine, case, tokens) not in _timed(after)
        ),
        machine_speed=peaks[1] / peaks[0] if peaks[0] and peaks[1] else None,
        notes=tuple(_notes(before, after)),
    )


def _timed(report: Report) -> list[tuple[str, str, Mapping[str, float]]]:
    """Return each engine with the name and the lengths of a case that it was timed on, in the order of the report."""
    return [(name, case.name, case.tokens) for case in report.cases for name in case.timings]


def _changes(before: CaseReport, after: CaseReport) -> Iterator[Change]:
    """Yield the change of every engine that was timed on the case in both runs."""
    if before.tokens != after.tokens:  # other texts under the same name
        return
    for name, timing in after.timings.items():
        if name not in before.timings:
            continue
        old = before.timings[name]
        ratio = float(np.median(timing.round_medians_ms) / np.median(old.round_medians_ms))
        low, high = (np.percentile(part.round_medians_ms, (10, 90)) for part in (old, timing))
        rounds = min(len(part.round_medians_ms) for part in (old, timing))
        yield Change(
            engine=name, case=after.name, before_ms=old.p50_ms, after_ms=timing.p50_ms, ratio=ratio,
            certain=rounds >= MIN_ROUNDS and bool(high[0] > low[1] or high[1] < low[0]),
        )  # fmt: skip


def _notes(before: Report, after: Report) -> Iterator[str]:
    """Yield differences in machine, threads, task and versions, and the runs' notes on busy machines."""
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
