"""Markdown sections of a report's timings: latency, throughput, concurrency, LoadGen, speed-ups and share of the peak.

Each function returns Markdown blocks, none where the report has no such measurement.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.reports.report import CaseReport, ConcurrencyTiming, EngineReport, Report
from bert_bench.reports.text_table import NOISY_MARK
from bert_bench.timing_statistics import MIN_ROUNDS, NOISY_SPREAD, Speedup
from bert_runtime.timing import format_ms

__all__ = [
    "batch_size_sections",
    "case_sections",
    "concurrency_sections",
    "loadgen_sections",
    "offline_sections",
    "pairwise_speedup_sections",
    "peak_share_sections",
]


def case_sections(title: str, cases: Sequence[CaseReport], report: Report) -> list[str]:
    """Return a table of medians, then one of p90 and p99."""
    if not cases:
        return []

    def tail_latencies(engine: EngineReport, case: CaseReport) -> str:
        timing = case.timings[engine.name]
        return f"{format_ms(timing.p90_ms)} / {format_ms(timing.p99_ms)}"

    def median_latency(engine: EngineReport, case: CaseReport) -> str:
        return format_ms(case.timings[engine.name].p50_ms)

    return [
        f"## {title}", f"Median milliseconds.\n\n{_by_engine(report, cases, median_latency)}",
        f"p90 / p99 in milliseconds.\n\n{_by_engine(report, cases, tail_latencies)}",
    ]  # fmt: skip


def offline_sections(report: Report) -> list[str]:
    """Return a table of the offline workloads' throughput."""
    if not report.offline:
        return []
    sizes = "; ".join(
        f"{case.name}: {case.texts} texts of {case.tokens['mean']:.0f} tokens each, at most {case.tokens['max']:.0f}"
        for case in report.offline
    )
    table = _by_engine(report, report.offline, lambda engine, case: f"{report.texts_per_s(engine.name, case):,.0f}")
    blocks = ["## Offline: many texts at once, end to end", f"Texts per second. {sizes}.\n\n{table}"]
    return [*blocks, *batch_size_sections(report.offline, report)]


def batch_size_sections(cases: Sequence[CaseReport], report: Report) -> list[str]:
    """Return a table of the batch sizes that engines chose, if any did."""
    if not any(case.name in engine.batch_tokens for engine in report.engines for case in cases):
        return []

    def size(engine: EngineReport, case: CaseReport) -> str:
        if case.name not in engine.batch_tokens:
            return MISSING
        streams = f", {engine.streams[case.name]} at a time" if case.name in engine.streams else ""
        return f"{engine.batch_tokens[case.name]}{streams}"

    return [f"Padded tokens per batch, chosen by trial.\n\n{_by_engine(report, cases, size)}"]


def concurrency_sections(report: Report) -> list[str]:
    """Return a table of throughput and p99 by number of concurrent clients, and the failures."""
    if not report.concurrency:
        return []
    names = [engine.name for engine in report.engines if any(engine.name in c.timings for c in report.concurrency)]
    rows = [[name, *(_concurrency_cell(case.timings.get(name)) for case in report.concurrency)] for name in names]
    table = markdown_table(["engine", *(f"{case.clients} clients" for case in report.concurrency)], rows)
    failed = [
        f"{name} with {case.clients} clients: {reason}"
        for case in report.concurrency
        for name, reason in case.failed.items()
    ]
    text = f"Texts per second of all clients together, in parentheses the p99 of a call in milliseconds.\n\n{table}"
    return ["## Concurrent clients, one short text per call", text, "\n".join(f"* {line}" for line in failed)]


def _concurrency_cell(timing: ConcurrencyTiming | None) -> str:
    return MISSING if timing is None else f"{timing.texts_per_s:,.0f} ({format_ms(timing.p99_ms)})"


_LOADGEN = (
    "LoadGen issues the queries and takes the times. These are not MLPerf results, and runs this short are rarely "
    "valid by its rules. In Server, texts arrive at random, at half the engine's sequential throughput; the bound on "
    "p99 is ten times its median sequential latency."
)


def loadgen_sections(report: Report) -> list[str]:
    """Return a table of LoadGen's metrics for each scenario."""
    if not report.loadgen:
        return []
    blocks = ["## MLPerf LoadGen", _LOADGEN]
    for scenario, engines in report.loadgen.items():
        header = [scenario, "texts/s", "p50 ms", "p90 ms", "p99 ms", "bound met", "valid"]
        rows = [[name, *_loadgen_cells(values)] for name, values in engines.items()]
        blocks.append(markdown_table(header, rows))
    return blocks


def _loadgen_cells(values: Any) -> list[str]:
    if "error" in values:
        return [MISSING, MISSING, MISSING, MISSING, MISSING, str(values["error"])]
    rate = values.get("texts_per_s")
    latencies = (values.get(f"p{percent}_ms") for percent in (50, 90, 99))
    return [
        MISSING if rate is None else f"{rate:,.0f}",
        *(MISSING if latency is None else format_ms(latency) for latency in latencies),
        "yes" if values["bound_met"] else "no",
        "yes" if values["valid"] else "no",
    ]


def pairwise_speedup_sections(report: Report) -> list[str]:
    """Return the speed-ups of each of the bundle's engines over each compared engine."""
    cases = [case for case in (*report.shapes, *report.singles, *report.offline) if case.pairs]
    blocks = []
    for engine in dict.fromkeys(name for case in cases for name in case.pairs):
        others = dict.fromkeys(other for case in cases for other in case.pairs.get(engine, {}))
        rows = [[other, *(_ratio(case.pairs.get(engine, {}).get(other)) for case in cases)] for other in others]
        header = [f"{engine} over", *(_short_name(case) for case in cases)]
        blocks.append(markdown_table(header, rows))
    if not blocks:
        return []
    text = (
        "Median of the ratios of both engines' times in each round, in parentheses their p10 and p90; "
        f"{NOISY_MARK} where p90 is more than {NOISY_SPREAD:g} times p10, or there were fewer than "
        f"{MIN_ROUNDS} rounds."
    )
    return ["## Speed-ups, pair by pair", text, *blocks]


def _short_name(case: CaseReport) -> str:
    return case.name.replace("x", "×") if case.stage == "model" else case.name


def _ratio(speedup: Speedup | None) -> str:
    if speedup is None:
        return MISSING
    mark = NOISY_MARK if speedup.noisy else ""
    return f"{speedup.median:.2f}{mark} ({speedup.p10:.2f}–{speedup.p90:.2f})"


def peak_share_sections(report: Report) -> list[str]:
    """Return a table of FLOPs as a share of the machine's measured peak."""
    if not report.peaks_gflops or not any(case.flops for case in report.shapes):
        return []

    def cell(engine: EngineReport, case: CaseReport) -> str:
        share = report.peak_share(engine, case)
        return MISSING if share is None else f"{share:.0%}"

    text = (
        "FLOPs of the encoder over the median time, as a share of the peak of large matmuls in the engine's precision. "
        "FLOPs are those of the full encoder, so skipping work that the prediction does not need raises the share."
    )
    return ["## Share of the machine's measured peak", f"{text}\n\n{_by_engine(report, report.shapes, cell)}"]


def _by_engine(report: Report, cases: Sequence[CaseReport], cell: Callable[[EngineReport, CaseReport], str]) -> str:
    """Return a table with a row for each engine that was timed on any of the cases."""
    engines = [engine for engine in report.engines if any(engine.name in case.timings for case in cases)]
    rows = [
        [engine.name, *(cell(engine, case) if engine.name in case.timings else MISSING for case in cases)]
        for engine in engines
    ]
    return markdown_table(["engine", *map(_case_name, cases)], rows)


def _case_name(case: CaseReport) -> str:
    return case.name.replace("x", "×") if case.stage == "model" else f"{case.name} ({case.tokens['total']:.0f} tokens)"
