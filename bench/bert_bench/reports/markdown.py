"""A report of many engines as Markdown: an engine a row, a case a column."""

from collections.abc import Callable, Sequence
from typing import Any

from bert_bench.reports.report import CaseReport, EngineReport, Report
from bert_bench.reports.text_table import NOISY_MARK, format_ms
from bert_bench.timing_statistics import NOISY_SPREAD, Speedup

__all__ = ["markdown_table", "report_markdown"]

_NONE = "–"


def report_markdown(report: Report, *, chart: str | None = None) -> str:
    """Every figure a reader compares; `chart` is the file name of a picture to show first."""
    title = f"# {report.task}: {report.title}"
    blocks = [
        title,
        f"![chart]({chart})" if chart else "",
        _conditions(report),
        *_cases("Model only: token ids in, raw outputs out", report.shapes, report),
        *_batch_tokens(report.shapes, report),
        *_cases("End to end: one text in, its decoded answer out", report.singles, report),
        *_offline(report),
        *_callers(report),
        *_loadgen(report),
        *_pairs(report),
        *_shares(report),
        _engines(report),
        _fidelity(report),
        _not_run(report),
        _notes(report),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for first, *others in (header, rule, *rows):
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"| {' | '.join([first.ljust(widths[0]), *padded])} |")
    return "\n".join(lines)


def _conditions(report: Report) -> str:
    conditions, machine = report.conditions, report.conditions.machine
    peaks = ", ".join(f"{name} {peak:.0f}" for name, peak in report.peaks_gflops.items())
    versions = ", ".join(f"{name} {number}" for name, number in conditions.versions.items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} core{'s' * (machine['cores'] > 1)}, {conditions.threads} "
        f"thread{'s' * (conditions.threads > 1)} for every engine; {conditions.started_at}.",
        f"{versions}; versions of the peers are below.",
        f"Largest matrix products measured in this run, GFLOP/s: {peaks}." if peaks else "",
    ]
    return "\n".join(line for line in lines if line)


def _by_engine(
    report: Report, cases: Sequence[CaseReport], cell: Callable[[EngineReport, CaseReport], str], first: str = "engine"
) -> str:
    """A row for each engine that took any of the cases."""
    engines = [each for each in report.engines if any(each.name in case.timings for case in cases)]
    rows = [
        [each.name, *(cell(each, case) if each.name in case.timings else _NONE for case in cases)] for each in engines
    ]
    return markdown_table([first, *map(_case_name, cases)], rows)


def _case_name(case: CaseReport) -> str:
    return case.name.replace("x", "×") if case.stage == "model" else f"{case.name} ({case.tokens['total']:.0f} tokens)"


def _cases(title: str, cases: Sequence[CaseReport], report: Report) -> list[str]:
    """Medians, then tails."""
    if not cases:
        return []

    def tail(engine: EngineReport, case: CaseReport) -> str:
        timing = case.timings[engine.name]
        return f"{format_ms(timing.p90_ms)} / {format_ms(timing.p99_ms)}"

    def middle(engine: EngineReport, case: CaseReport) -> str:
        return format_ms(case.timings[engine.name].p50_ms)

    return [
        f"## {title}", f"Median milliseconds.\n\n{_by_engine(report, cases, middle)}",
        f"p90 / p99 in milliseconds.\n\n{_by_engine(report, cases, tail)}",
    ]  # fmt: skip


def _offline(report: Report) -> list[str]:
    if not report.offline:
        return []
    sizes = "; ".join(
        f"{case.name}: {case.texts} texts of {case.tokens['mean']:.0f} tokens each, at most {case.tokens['max']:.0f}"
        for case in report.offline
    )
    table = _by_engine(report, report.offline, lambda engine, case: f"{report.texts_per_s(engine.name, case):,.0f}")
    blocks = ["## Offline: many texts at once, end to end", f"Texts per second. {sizes}.\n\n{table}"]
    return [*blocks, *_batch_tokens(report.offline, report)]


def _batch_tokens(cases: Sequence[CaseReport], report: Report) -> list[str]:
    """How much engines that could choose run at once."""
    if not any(case.name in each.batch_tokens for each in report.engines for case in cases):
        return []

    def size(engine: EngineReport, case: CaseReport) -> str:
        return str(engine.batch_tokens.get(case.name, _NONE))

    return [f"Padded tokens per run, chosen by trial.\n\n{_by_engine(report, cases, size)}"]


def _callers(report: Report) -> list[str]:
    if not report.callers:
        return []
    names = [each.name for each in report.engines if any(each.name in case.timings for case in report.callers)]
    rows = []
    for name in names:
        found = [case.timings.get(name) for case in report.callers]
        rows.append([name, *(_NONE if t is None else f"{t.texts_per_s:,.0f} ({format_ms(t.p99_ms)})" for t in found)])
    table = markdown_table(["engine", *(f"{case.callers} callers" for case in report.callers)], rows)
    failed = [
        f"{name} with {case.callers} callers: {reason}"
        for case in report.callers
        for name, reason in case.failed.items()
    ]
    text = f"Texts per second of all together, and in parentheses the p99 of a call in milliseconds.\n\n{table}"
    return ["## Concurrent callers, one short text a call", text, "\n".join(f"* {line}" for line in failed)]


_LOADGEN = (
    "LoadGen's arrivals and clock; these are not MLPerf results, and runs this short are rarely valid by its rules. In "
    "Server, texts arrive at random, half as many as the engine answers one after another; the bound on p99 is ten "
    "times its median latency then."
)


def _loadgen(report: Report) -> list[str]:
    if not report.loadgen:
        return []
    blocks = ["## Driven by MLPerf LoadGen", _LOADGEN]
    for scenario, engines in report.loadgen.items():
        header = [scenario, "texts/s", "p50 ms", "p90 ms", "p99 ms", "bound met", "valid"]
        rows = [[name, *_loadgen_cells(values)] for name, values in engines.items()]
        blocks.append(markdown_table(header, rows))
    return blocks


def _loadgen_cells(values: Any) -> list[str]:
    if "error" in values:
        return [_NONE, _NONE, _NONE, _NONE, _NONE, str(values["error"])]
    rate = values.get("texts_per_s")
    latencies = (values.get(f"p{share}_ms") for share in (50, 90, 99))
    return [
        _NONE if rate is None else f"{rate:,.0f}",
        *(_NONE if each is None else format_ms(each) for each in latencies),
        "yes" if values["bound_met"] else "no",
        "yes" if values["valid"] else "no",
    ]


def _pairs(report: Report) -> list[str]:
    """How many times faster each of the bundle's engines is than each peer."""
    cases = [case for case in (*report.shapes, *report.singles, *report.offline) if case.pairs]
    blocks = []
    for own in dict.fromkeys(name for case in cases for name in case.pairs):
        peers = dict.fromkeys(peer for case in cases for peer in case.pairs.get(own, {}))
        rows = [[peer, *(_ratio(case.pairs.get(own, {}).get(peer)) for case in cases)] for peer in peers]
        header = [f"{own} over", *(_short_name(case) for case in cases)]
        blocks.append(markdown_table(header, rows))
    if not blocks:
        return []
    text = (
        "Median of the per-round ratios of the times of one round, in parentheses their p10 and p90; "
        f"{NOISY_MARK} where p90 is more than {NOISY_SPREAD:g} times p10, or there was one round."
    )
    return ["## How many times faster, pair by pair", text, *blocks]


def _short_name(case: CaseReport) -> str:
    return case.name.replace("x", "×") if case.stage == "model" else case.name


def _ratio(speedup: Speedup | None) -> str:
    if speedup is None:
        return _NONE
    mark = NOISY_MARK if speedup.noisy else ""
    return f"{speedup.median:.2f}{mark} ({speedup.p10:.2f}–{speedup.p90:.2f})"


def _shares(report: Report) -> list[str]:
    if not report.peaks_gflops or not any(case.flops for case in report.shapes):
        return []

    def cell(engine: EngineReport, case: CaseReport) -> str:
        share = report.peak_share(engine, case)
        return _NONE if share is None else f"{share:.0%}"

    text = (
        "FLOPs of the encoder over the median time, as a share of the largest matrix product's in the engine's own "
        "precision. The work that was asked for is counted: who leaves out what the answer does not need has more."
    )
    return ["## Share of the machine's measured peak", f"{text}\n\n{_by_engine(report, report.shapes, cell)}"]


def _engines(report: Report) -> str:
    """Start, memory, size and versions."""
    header = ["engine", "ready s", "first answer s", "memory MiB", "peak MiB", "disk MiB", "precision", "what it is"]
    rows = [
        [
            each.name, f"{each.ready_s:.2f}", f"{each.first_answer_s:.2f}", _mebibytes(each.resident_bytes),
            _mebibytes(each.peak_resident_bytes), _mebibytes(each.size_bytes), each.precision, each.label,
        ]
        for each in report.engines
    ]  # fmt: skip
    versions = dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in each.versions.items())
        for each in report.engines
        if each.versions
    )
    lines = "\n".join(f"* {line}" for line in versions)
    text = "From the start of a process until the model is loaded, and until its first answer; memory after the rounds."
    peers = f"\n\nEnvironments of the peers:\n\n{lines}" if lines else ""
    return f"## Cold start, memory, size\n\n{text}\n\n{markdown_table(header, rows)}{peers}"


def _mebibytes(size: int | None) -> str:
    return _NONE if size is None else f"{size / 2**20:.0f}"


def _fidelity(report: Report) -> str:
    """How far the engines' outputs are from the reference's, and how good their answers."""
    found = {each.name: each.fidelity for each in report.engines if each.fidelity is not None}
    if not found:
        return ""
    first = next(iter(found.values()))
    keys = [*first.agreement, *first.metrics]
    header = ["engine", "max abs error", *(name.replace("_", " ") for name in keys)]
    rows = [
        [name, f"{each.max_abs_error:.2g}", *(f"{({**each.agreement, **each.metrics})[key]:.4f}" for key in keys)]
        for name, each in found.items()
    ]
    source = f" of {report.labelled.name}" if report.labelled is not None else ""
    text = f"Raw outputs on {first.texts} texts{source}, held against {first.reference} in the same run."
    return f"## Same work?\n\n{text}\n\n{markdown_table(header, rows)}"


def _not_run(report: Report) -> str:
    if not report.not_run:
        return ""
    lines = "\n".join(f"* {name}: {reason}" for name, reason in report.not_run.items())
    return f"## Not run\n\n{lines}"


def _notes(report: Report) -> str:
    """How it was measured, and what to be wary of."""
    timings = [timing for case in report.cases for timing in case.timings.values()]
    samples = [timing.samples for timing in timings]
    calls = f"{min(samples)} to {max(samples)} calls per median, " if samples else ""
    noisy = sum(speedup.noisy for case in report.cases for speedup in case.speedups.values())
    total = sum(len(case.speedups) for case in report.cases)
    others = (
        "" if report.others_share is None else f" Other processes took {report.others_share:.1%} of the processors."
    )
    lines = [
        report.method,
        "Engines that read token ids run behind the same tokenization, padding, batching by length and decoding, those "
        "of bert_runtime; products that read texts themselves are called as they stand.",
        f"{report.settings['rounds']} rounds, {calls}"
        f"{report.duration_s:.0f} s in all.{others} {noisy} of {total} speed-ups over {report.baseline} are noisy.",
        *report.notes,
    ]
    return "## Method and notes\n\n" + "\n".join(f"* {line}" for line in lines)
