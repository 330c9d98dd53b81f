"""A report as aligned plain text, for the terminal."""

from collections.abc import Sequence
from textwrap import fill
from typing import NamedTuple

from bert_bench.reports.report import CaseReport, EngineReport, Report
from bert_bench.timing_statistics import MIN_ROUNDS, NOISY_SPREAD
from bert_runtime.timing import format_ms

__all__ = ["NOISY_MARK", "TextBlock", "report_blocks", "report_table"]

NOISY_MARK = "~"
"""Marks a noisy speed-up, see `Speedup.noisy`."""

_WIDTH = 100


class TextBlock(NamedTuple):
    """A topic of a report: a text, and a table with a header, which may be missing."""

    text: str
    """Lines of any length; above a table, its title."""
    rows: Sequence[Sequence[str]] = ()


def report_table(report: Report) -> str:
    """Return the report as text: a block for each topic, at most 100 columns wide with four engines."""
    return "\n\n".join(f"{text}\n{_align(rows)}" if rows else _fill(text) for text, rows in report_blocks(report))


def report_blocks(report: Report) -> list[TextBlock]:
    """Return the topics of the report."""
    blocks = [
        _heading(report),
        _latencies("Model only: token ids in, raw outputs out", "batch x tokens", report.shapes, report),
        _latencies("End to end: one text in, its decoded prediction out", "tokens", report.singles, report),
        _tail_latencies(report),
        _stages(report),
        _engines(report),
        _fidelity(report),
        _notes(report),
    ]
    return [block for block in blocks if block is not None]


def _heading(report: Report) -> TextBlock:
    conditions = report.conditions
    versions = ", ".join(f"{name} {number}" for name, number in conditions.versions.items())
    machine, threads = conditions.machine, f"{conditions.threads} thread{'s' * (conditions.threads > 1)}"
    lines = (
        f"{report.bundle} ({report.task}), {conditions.started_at}",
        f"{machine['cpu']}, {machine['cores']} cores, {threads} for every engine",
        versions,
    )
    return TextBlock("\n".join(lines))


def _latencies(title: str, first: str, cases: Sequence[CaseReport], report: Report) -> TextBlock:
    """Return the median latency and speed-up over the baseline, of each case on each engine."""
    names = [engine.name for engine in report.engines]
    rows = [[_case_name(case), *(_latency(case, name, report.baseline) for name in names)] for case in cases]
    return TextBlock(f"{title}; median ms, speed-up over {report.baseline}", [[first, *names], *rows])


def _tail_latencies(report: Report) -> TextBlock:
    """Return the p90 and p99 latency of each case on each engine."""
    names = [engine.name for engine in report.engines]
    rows = [
        [
            _tail_case_name(case),
            *(
                f"{format_ms(timing.p90_ms)} / {format_ms(timing.p99_ms)}"
                for timing in map(case.timings.get, names)
                if timing
            ),
        ]
        for case in (*report.shapes, *report.singles)
    ]
    return TextBlock("Tails: p90 / p99 in ms", [["", *names], *rows])


def _tail_case_name(case: CaseReport) -> str:
    return case.name if case.stage == "model" else f"{_case_name(case)} end to end"


def _case_name(case: CaseReport) -> str:
    return case.name if case.stage == "model" else f"{case.tokens['total']:.0f}"


def _latency(case: CaseReport, engine: str, baseline: str) -> str:
    time = format_ms(case.timings[engine].p50_ms)
    return time if engine == baseline else f"{time}{_speedup(case, engine):>9}"


def _speedup(case: CaseReport, engine: str) -> str:
    speedup = case.speedups[engine]
    return f"{speedup.median:.2f}x{NOISY_MARK if speedup.noisy else ' '}"


def _stages(report: Report) -> TextBlock | None:
    """Return the stages of the shortest end-to-end call."""
    if not report.latency_breakdowns:
        return None
    tokens = next(iter(report.latency_breakdowns.values())).tokens
    rows = [
        [
            name,
            *map(format_ms, (breakdown.end_to_end_ms, breakdown.tokenization_ms, breakdown.model_ms)),
            f"{breakdown.wrapper_ms:.3f}",
        ]
        for name, breakdown in report.latency_breakdowns.items()
    ]
    header = ["", "end to end", "tokenization", "model", "rest"]
    return TextBlock(f"Inside the call on {tokens} tokens: median ms", [header, *rows])


def _engines(report: Report) -> TextBlock:
    """Return each engine's throughput, loading time, memory and size."""
    mixed = report.offline[0]
    header = ["", "texts/s", "", "ready s", "first s", "memory MiB", "file MiB"]
    rows = [_engine_row(engine, report) for engine in report.engines]
    tokens = f"{mixed.tokens['mean']:.1f} tokens on average, {mixed.tokens['max']:.0f} at most"
    return TextBlock(f"Throughput on {mixed.texts} texts at once ({tokens}), end to end", [header, *rows])


def _engine_row(engine: EngineReport, report: Report) -> list[str]:
    return [
        engine.name,
        f"{report.texts_per_s(engine.name):.0f}",
        "" if engine.name == report.baseline else _speedup(report.offline[0], engine.name),
        f"{engine.ready_s:.2f}",
        f"{engine.first_prediction_s:.2f}",
        f"{engine.resident_bytes / 2**20:.0f}",
        f"{engine.size_bytes / 2**20:.1f}",
    ]


def _fidelity(report: Report) -> TextBlock | None:
    """Return the differences and the agreement of the engines' outputs with the reference's."""
    fidelity = {engine.name: engine.fidelity for engine in report.engines if engine.fidelity is not None}
    if not fidelity:
        return None
    first = next(iter(fidelity.values()))
    header = ["", "max abs error", *(name.replace("_", " ") for name in first.agreement)]
    rows = [
        [name, f"{values.max_abs_error:.2g}", *(f"{value:.4f}" for value in values.agreement.values())]
        for name, values in fidelity.items()
        if name != first.reference
    ]
    return TextBlock(f"Raw outputs on {first.texts} texts, compared with {first.reference}", [header, *rows])


def _notes(report: Report) -> TextBlock:
    """Return the engines that did not run, notes, noise and method."""
    lines = [f"Not run: {name}: {reason}" for name, reason in report.not_run.items()]
    lines += report.notes
    noisy = [f"{case.name} ({', '.join(case.noisy)})" for case in report.cases if case.noisy]
    if noisy:
        lines.append(
            f"Noisy ({NOISY_MARK}): the speed-up's p90 over the rounds is more than {NOISY_SPREAD:g} times its p10, or "
            f"there were fewer than {MIN_ROUNDS} rounds, in {'; '.join(noisy)}."
        )
    samples = [timing.samples for case in report.cases for timing in case.timings.values()]
    lines.append(
        f"{report.settings['rounds']} rounds, {min(samples)} to {max(samples)} calls per median, "
        f"{report.duration_s:.0f} s in all. {report.method}"
    )
    lines.append("ready, first: from the start of a process until the model is loaded, and until its first prediction.")
    return TextBlock("\n".join(lines))


def _fill(text: str) -> str:
    """Wrap each line."""
    return "\n".join(fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Align columns to their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )
