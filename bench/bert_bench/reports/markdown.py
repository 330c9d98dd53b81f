"""A report of many engines as Markdown: one row per engine, one column per case."""

from bert_bench.fidelity import Fidelity
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.reports.markdown_timings import (
    batch_size_sections,
    case_sections,
    concurrency_sections,
    loadgen_sections,
    offline_sections,
    pairwise_speedup_sections,
    peak_share_sections,
)
from bert_bench.reports.report import Report

__all__ = ["report_markdown"]


def report_markdown(report: Report, *, chart: str | None = None) -> str:
    """Return the report as Markdown.

    Args:
        report: the report.
        chart: file name of a chart to show first.
    """
    title = f"# {report.task}: {report.title}"
    blocks = [
        title,
        f"![chart]({chart})" if chart else "",
        _conditions(report),
        *case_sections("Model only: token ids in, raw outputs out", report.shapes, report),
        *batch_size_sections(report.shapes, report),
        *case_sections("End to end: one text in, its decoded prediction out", report.singles, report),
        *offline_sections(report),
        *concurrency_sections(report),
        *loadgen_sections(report),
        *pairwise_speedup_sections(report),
        *peak_share_sections(report),
        _engines(report),
        _fidelity(report),
        _not_run(report),
        _notes(report),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _conditions(report: Report) -> str:
    conditions, machine = report.conditions, report.conditions.machine
    peaks = ", ".join(f"{name} {peak:.0f}" for name, peak in report.peaks_gflops.items())
    versions = ", ".join(f"{name} {number}" for name, number in conditions.versions.items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} core{'s' * (machine['cores'] > 1)}, {conditions.threads} "
        f"thread{'s' * (conditions.threads > 1)} for every engine; {conditions.started_at}.",
        f"{versions}; versions of the other engines are below.",
        f"Peak of large matmuls measured in this run, GFLOP/s: {peaks}." if peaks else "",
    ]
    return "\n".join(line for line in lines if line)


def _engines(report: Report) -> str:
    """Return start times, memory, size and versions of the engines."""
    header = [
        "engine", "ready s", "first prediction s", "memory MiB", "peak MiB", "disk MiB", "precision", "description",
    ]  # fmt: skip
    rows = [
        [
            engine.name, f"{engine.ready_s:.2f}", f"{engine.first_prediction_s:.2f}", _mebibytes(engine.resident_bytes),
            _mebibytes(engine.peak_resident_bytes), _mebibytes(engine.size_bytes), engine.precision, engine.label,
        ]
        for engine in report.engines
    ]  # fmt: skip
    versions = dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in engine.versions.items())
        for engine in report.engines
        if engine.versions
    )
    lines = "\n".join(f"* {line}" for line in versions)
    text = (
        "Seconds from the start of a process until the model is loaded, and until its first prediction; memory after "
        "the rounds."
    )
    environments = f"\n\nEnvironments of the other engines:\n\n{lines}" if lines else ""
    return f"## Cold start, memory, size\n\n{text}\n\n{markdown_table(header, rows)}{environments}"


def _mebibytes(size: int | None) -> str:
    return MISSING if size is None else f"{size / 2**20:.0f}"


def _fidelity(report: Report) -> str:
    """Return differences from and agreement with the reference's outputs, and the task metric."""
    fidelity = {engine.name: engine.fidelity for engine in report.engines if engine.fidelity is not None}
    if not fidelity:
        return ""
    first = next(iter(fidelity.values()))
    keys = [*_scores(first)]
    header = ["engine", "max abs error", *(name.replace("_", " ") for name in keys)]
    rows = [
        [name, f"{values.max_abs_error:.2g}", *(f"{_scores(values)[key]:.4f}" for key in keys)]
        for name, values in fidelity.items()
    ]
    source = f" of {report.labelled.name}" if report.labelled is not None else ""
    text = f"Raw outputs on {first.texts} texts{source}, compared with {first.reference} in the same run."
    return f"## Fidelity\n\n{text}\n\n{markdown_table(header, rows)}"


def _scores(fidelity: Fidelity) -> dict[str, float]:
    """Return agreement and task metrics by name."""
    return {**fidelity.agreement, **fidelity.metrics}


def _not_run(report: Report) -> str:
    if not report.not_run:
        return ""
    lines = "\n".join(f"* {name}: {reason}" for name, reason in report.not_run.items())
    return f"## Not run\n\n{lines}"


def _notes(report: Report) -> str:
    """Return method, rounds, noise and notes."""
    timings = [timing for case in report.cases for timing in case.timings.values()]
    samples = [timing.samples for timing in timings]
    calls = f"{min(samples)} to {max(samples)} calls per median, " if samples else ""
    noisy = sum(speedup.noisy for case in report.cases for speedup in case.speedups.values())
    total = sum(len(case.speedups) for case in report.cases)
    load = report.background_load
    background = "" if load is None else f" Other processes took {load:.1%} of the processors."
    lines = [
        report.method,
        "Engines that read token ids use the tokenization, padding, batching by length and decoding of bert_runtime; "
        "engines that read texts themselves are called as they stand.",
        f"{report.settings['rounds']} rounds, {calls}"
        f"{report.duration_s:.0f} s in all.{background} {noisy} of {total} speed-ups over {report.baseline} are noisy.",
        *report.notes,
    ]
    return "## Method and notes\n\n" + "\n".join(f"* {line}" for line in lines)
