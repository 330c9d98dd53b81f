"""The contents of a report's chart: its rows, its panels and its conditions."""

from collections.abc import Sequence
from math import log
from statistics import fmean

from bert_bench.reports.bar_chart import BarChart, BarRow, Panel, Section
from bert_bench.reports.chart_theme import OTHER, OURS
from bert_bench.reports.report import CaseReport, ConcurrencyReport, EngineReport, Report
from bert_bench.reports.text_table import NOISY_MARK
from bert_bench.reports.titles import engine_title, machine_title
from bert_runtime.timing import format_ms

__all__ = ["chart_rows", "report_chart"]

_PREFIX = "bert-export"
_THROUGHPUT = "texts per second, higher is better"


def report_chart(report: Report, shapes: Sequence[CaseReport], singles: Sequence[CaseReport]) -> BarChart:
    """Return the chart of a report.

    Args:
        report: the report; all its offline workloads are shown.
        shapes: the shapes to show.
        singles: the single texts to show.
    """
    latency = "median milliseconds, lower is better"
    sections = (
        Section(title=f"Model only, token ids in: {latency}", panels=_latency_panels(shapes)),
        Section(title=f"End to end, one text: {latency}", panels=_latency_panels(singles)),
        Section(
            title=f"End to end, many texts at once: {_THROUGHPUT}",
            panels=[_throughput_panel(report, case) for case in report.offline if case.timings],
        ),
        Section(
            title=f"Concurrent clients, one short text a call: {_THROUGHPUT}",
            panels=[_clients_panel(case) for case in report.concurrency if case.timings],
        ),
    )
    return BarChart(
        title=f"{report.title}: {report.task}",
        subtitle=_conditions(report),
        rows=chart_rows(report),
        sections=[section for section in sections if section.panels],
    )


def chart_rows(report: Report) -> list[BarRow]:
    """Return a row per engine that was timed: the bundle's first, then the others, each from fast to slow."""
    cases = (*report.shapes, *report.singles, *report.offline)
    names = {name for case in cases for name in case.timings}
    names |= {name for case in report.concurrency for name in case.timings}
    timed = [engine for engine in report.engines if engine.name in names]
    slowness = {engine.name: _slowness(engine, cases) for engine in timed}
    timed.sort(key=lambda engine: (not _is_bundle(engine), slowness[engine.name]))
    return [
        BarRow(
            name=engine.name,
            title=engine_title(engine.name, engine.precision),
            role=f"{OURS if _is_bundle(engine) else OTHER}-{'int8' if engine.precision == 'int8' else 'fp32'}",
            emphasized=_is_bundle(engine),
        )
        for engine in timed
    ]


def _is_bundle(engine: EngineReport) -> bool:
    return engine.name.startswith(_PREFIX) or engine.name == engine.precision


def _slowness(engine: EngineReport, cases: Sequence[CaseReport]) -> float:
    """Return the mean logarithm of an engine's time relative to the fastest, over the cases that it was timed on."""
    logarithms = [
        log(case.timings[engine.name].p50_ms / min(timing.p50_ms for timing in case.timings.values()))
        for case in cases
        if engine.name in case.timings
    ]
    return fmean(logarithms) if logarithms else 0.0


def _latency_panels(cases: Sequence[CaseReport]) -> list[Panel]:
    return [_latency_panel(case) for case in cases if case.timings]


def _latency_panel(case: CaseReport) -> Panel:
    values = {name: timing.p50_ms for name, timing in case.timings.items()}
    title = f"{case.tokens['total']:.0f} tokens" if case.stage != "model" else f"{case.name.replace('x', ' × ')} tokens"
    return _panel(title, case, values, {name: format_ms(value) for name, value in values.items()})


def _throughput_panel(report: Report, case: CaseReport) -> Panel:
    values = {name: report.texts_per_s(name, case) for name in case.timings}
    title = f"{case.name}, {case.tokens['mean']:.0f} tokens a text"
    return _panel(title, case, values, {name: f"{value:,.0f}" for name, value in values.items()})


def _clients_panel(case: ConcurrencyReport) -> Panel:
    values = {name: timing.texts_per_s for name, timing in case.timings.items()}
    labels = {name: f"{value:,.0f}" for name, value in values.items()}
    return Panel(title=f"{case.clients} clients", values=values, labels=labels)


def _panel(title: str, case: CaseReport, values: dict[str, float], labels: dict[str, str]) -> Panel:
    marked = {name: NOISY_MARK * (name in case.noisy) + label for name, label in labels.items()}
    return Panel(title=title, values=values, labels=marked)


def _conditions(report: Report) -> str:
    """Return machine, threads, versions, rounds and date in one line."""
    conditions = report.conditions
    noisy = any(case.noisy for case in (*report.shapes, *report.singles, *report.offline))
    return ", ".join(
        (
            machine_title(conditions.machine),
            f"{conditions.threads} thread{'s' * (conditions.threads > 1)}",
            f"onnxruntime {conditions.versions.get('onnxruntime', '?')}",
            f"{report.settings['rounds']} interleaved rounds",
            conditions.started_at[:10],
            *[f"{NOISY_MARK} noisy"] * noisy,
        )
    )
