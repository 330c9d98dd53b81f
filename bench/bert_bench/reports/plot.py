"""A report as a bar chart: a panel per case with its own scale, so that short and long inputs can both be read."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_bench.reports.report import CaseReport, EngineReport, Report
from bert_bench.reports.text_table import NOISY_MARK, format_ms
from bert_runtime.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["plot_report", "require_plotting"]

_ORDER = ("pytorch", "onnxruntime-plain", "fp32", "int8")
"""Order of the bars from left to right: baselines first; other engines follow."""

_COLORS = {"pytorch": "#c9b79c", "onnxruntime-plain": "#8c96a8", "fp32": "#6fb3c9", "int8": "#12607a"}
_OTHER_COLOR = "#555555"
_TEXT_COLOR = "#333333"

_HEADROOM = 1.1
"""Height of a panel relative to its tallest bar, to leave room for the label."""

_FORMATS = (".png", ".svg", ".pdf")


def require_plotting(path: Path) -> None:
    """Check that a chart can be written to `path`.

    Raises:
        InputError: the suffix is not png, svg or pdf.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in _FORMATS:
        raise InputError(f"{path}: expected a chart that ends in {', '.join(_FORMATS)}")
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "bench", "plotting")


def plot_report(report: Report, path: Path) -> None:
    """Draw the chart of a benchmark of one bundle.

    Args:
        report: a report whose every case has timings of every engine.
        path: the file to write; its suffix (png, svg, pdf) decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which would start a window system where there is one
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "plotting") from None
    columns = max(len(report.shapes), len(report.singles) + 2)
    figure = Figure(
        figsize=(max(8.0, 1.9 * columns), 6.6), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    )
    title, top, bottom, footer = _split(figure, 4, 1, height_ratios=(0.24, 1, 1, 0.08))
    engines = sorted(report.engines, key=_bar_order)
    _title(title, report, engines)
    _panel_row(top, "Model only: token ids in, raw outputs out. Median ms, lower is better", report.shapes, engines)
    singles, throughput = _split(bottom, 1, 2, width_ratios=(columns - 2, 2))
    _panel_row(
        singles, "End to end: a text in, its prediction out. Median ms, lower is better", report.singles, engines
    )
    _throughput(throughput, report, engines)
    footer.text(0.5, 0.5, _conditions(report), ha="center", va="center", fontsize=7.5, color="#777777")
    figure.savefig(path)


def _split(area: "Figure | SubFigure", rows: int, columns: int, **ratios: Any) -> "list[SubFigure]":
    """Split a figure into a grid of parts, in reading order."""
    return list(area.subfigures(rows, columns, squeeze=False, **ratios).flat)


def _bar_order(engine: EngineReport) -> int:
    return _ORDER.index(engine.name) if engine.name in _ORDER else len(_ORDER)


def _title(area: "SubFigure", report: Report, engines: Sequence[EngineReport]) -> None:
    """Draw the bundle's name and the legend."""
    from matplotlib.patches import Patch

    name = f"{report.bundle.resolve().name}: {report.task}"
    area.text(0.5, 0.72, name, ha="center", va="center", fontsize=13, fontweight="bold", color=_TEXT_COLOR)
    area.legend(
        handles=[Patch(color=_color(engine.name), label=engine.label) for engine in engines],
        loc="lower center", ncols=len(engines), frameon=False, fontsize=9, labelcolor=_TEXT_COLOR,
    )  # fmt: skip


def _panel_row(area: "SubFigure", title: str, cases: Sequence[CaseReport], engines: Sequence[EngineReport]) -> None:
    """Draw a panel of median latencies per case."""
    _subtitle(area, title)
    for axes, case in zip(area.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        values = [case.timings[engine.name].p50_ms for engine in engines]
        _bars(axes, engines, values, [format_ms(value) for value in values], case.noisy)
        axes.set_xlabel(_case_name(case), fontsize=9, color=_TEXT_COLOR)


def _throughput(area: "SubFigure", report: Report, engines: Sequence[EngineReport]) -> None:
    """Draw the panel of the throughput workload."""
    _subtitle(area, "Texts per second, higher is better")
    axes = area.subplots()
    values = [report.texts_per_s(engine.name) for engine in engines]
    _bars(axes, engines, values, [f"{value:.0f}" for value in values], report.offline[0].noisy)
    mixed = report.offline[0]
    name = f"{mixed.texts} texts of {mixed.tokens['mean']:.0f} tokens on average"
    axes.set_xlabel(name, fontsize=9, color=_TEXT_COLOR)


def _bars(
    axes: "Axes",
    engines: Sequence[EngineReport],
    values: Sequence[float],
    labels: Sequence[str],
    noisy: Sequence[str],
) -> None:
    """Draw a labelled bar per engine, on a linear scale from zero."""
    labels = [NOISY_MARK * (engine.name in noisy) + label for engine, label in zip(engines, labels, strict=True)]
    bars = axes.bar(range(len(values)), values, width=0.82, color=[_color(engine.name) for engine in engines])
    axes.bar_label(bars, labels=labels, fontsize=8.5, padding=2, color=_TEXT_COLOR)
    axes.set_ylim(0, max(values) * _HEADROOM)
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")


def _case_name(case: CaseReport) -> str:
    """Return the size of a case's input in words."""
    if case.stage != "model":
        return f"{case.tokens['total']:.0f} tokens"
    batch, tokens = case.name.split("x")
    return f"{batch} × {tokens} tokens"


def _subtitle(area: "SubFigure", text: str) -> None:
    area.suptitle(text, fontsize=10, color=_TEXT_COLOR, x=0.015, ha="left")


def _color(engine: str) -> str:
    return _COLORS.get(engine, _OTHER_COLOR)


def _conditions(report: Report) -> str:
    """Return machine, threads, versions, rounds and date in one line."""
    conditions = report.conditions
    versions = {name: conditions.versions.get(name) for name in ("onnxruntime", "torch")}
    return ", ".join(
        (
            str(conditions.machine["cpu"]),
            f"{conditions.threads} thread{'s' * (conditions.threads > 1)}",
            *(f"{name} {number}" for name, number in versions.items() if number),
            f"{report.settings['rounds']} interleaved rounds",
            conditions.started_at[:10],
            *[f"{NOISY_MARK} noisy"] * any(case.noisy for case in report.cases),
        )
    )
