"""Speed-ups of the bundle's engines over others of the same precision, summarized over the cases of a report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.reports.report import CaseReport, Report
from bert_bench.reports.titles import engine_title

__all__ = [
    "SpeedupSummary",
    "bundle_engines",
    "compared_engines",
    "mean_and_range",
    "speedup_table",
    "summarize_speedups",
]


@dataclass(frozen=True, kw_only=True)
class SpeedupSummary:
    """Speed-ups over several cases, each the median over the rounds of a run."""

    cases: Sequence[str]
    least: float
    geometric_mean: float
    most: float


def bundle_engines(report: Report) -> list[str]:
    """Return the bundle's engines that a report compares with another engine of the same precision."""
    names = {name for case in _compared_cases(report) for name in case.pairs}
    return [engine.name for engine in report.engines if engine.name in names and compared_engines(report, engine.name)]


def compared_engines(report: Report, engine: str) -> list[str]:
    """Return the other engines of the same precision as an engine of the bundle that were timed on a case with it."""
    precision = _precisions(report)
    timed = {other for case in _compared_cases(report) for other in case.pairs.get(engine, {})}
    return [other.name for other in report.engines if other.name in timed and other.precision == precision[engine]]


def summarize_speedups(cases: Sequence[CaseReport], engine: str, others: Sequence[str]) -> SpeedupSummary | None:
    """Return the speed-ups over the fastest of the other engines at each case; `None` if no case has any.

    Args:
        cases: the cases of a report.
        engine: an engine of the bundle.
        others: the engines that it is compared with; with one, the speed-ups are those over it.
    """
    nearest: dict[str, float] = {}
    for case in cases:
        speedups = case.pairs.get(engine, {})
        if found := [speedups[other].median for other in others if other in speedups]:
            nearest[case.name] = min(found)
    if not nearest:
        return None
    ratios = list(nearest.values())
    return SpeedupSummary(
        cases=tuple(nearest), least=min(ratios), geometric_mean=geometric_mean(ratios), most=max(ratios)
    )


def speedup_table(report: Report) -> str:
    """Return the speed-ups by kind of case and other engine as a Markdown table, empty if there are none."""
    kinds: Mapping[str, Sequence[CaseReport]] = {
        "model only": report.shapes, "one text": report.singles, "many texts": report.offline,
    }  # fmt: skip
    precision = _precisions(report)
    engines = bundle_engines(report)
    titles = dict.fromkeys(_title(report, other) for engine in engines for other in compared_engines(report, engine))
    rows = []
    for engine in engines:
        others = {_title(report, other): other for other in compared_engines(report, engine)}
        for kind, cases in kinds.items():
            fastest = summarize_speedups(cases, engine, list(others.values()))
            if fastest is None:
                continue
            single = [summarize_speedups(cases, engine, [others[title]] if title in others else []) for title in titles]
            means = [MISSING if summary is None else f"{summary.geometric_mean:.2f}×" for summary in single]
            rows.append(
                [f"{precision[engine].upper()}, {kind}", _range(fastest.cases), mean_and_range(fastest), *means]
            )
    return markdown_table(["bert-export", "cases", "the fastest other engine", *titles], rows) if rows else ""


def mean_and_range(summary: SpeedupSummary) -> str:
    """Format the geometric mean, and in parentheses the least and the greatest."""
    return f"**{summary.geometric_mean:.2f}×** ({summary.least:.2f}–{summary.most:.2f})"


def _compared_cases(report: Report) -> tuple[CaseReport, ...]:
    return (*report.shapes, *report.singles, *report.offline)


def _precisions(report: Report) -> dict[str, str]:
    return {engine.name: engine.precision for engine in report.engines}


def _title(report: Report, engine: str) -> str:
    """Return an engine's product; the precision is that of the row."""
    precision = _precisions(report)[engine]
    return engine_title(engine, precision).removesuffix(precision.upper()).strip()


def _range(cases: Sequence[str]) -> str:
    """Return the names of a few cases, or the number of many with the first and the last."""
    if all(name.startswith("text") for name in cases):
        return f"{', '.join(name.removeprefix('text') for name in cases)} tokens"
    names = [re.sub(r"^(\d+)x(\d+)$", r"\1×\2", name) for name in cases]
    return ", ".join(names) if len(names) < 4 else f"{len(names)} shapes, {names[0]} to {names[-1]}"
