"""A report of many engines as a bar chart: a panel per case, in which engines are ranked by speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_bench.reports.report import CaseReport, Report
from bert_bench.reports.text_table import NOISY_MARK, format_ms
from bert_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_ranking"]

_SHAPES = ("1x16", "1x128", "8x128", "32x128")
"""Shapes to draw if they were measured; else the first four."""

_COLUMNS = 3
_BUNDLE_COLORS = {"fp32": "#6fb3c9", "int8": "#12607a"}
_COMPARED_COLORS = {"fp32": "#c9c4bb", "bf16": "#a9a399", "int8": "#857f76"}
_OTHER_COLOR = "#d8d8d8"
_TEXT_COLOR = "#333333"


def plot_ranking(report: Report, path: Path) -> None:
    """Draw the chart of a comparison of many engines.

    Args:
        report: the report.
        path: the file to write; its suffix (png, svg, pdf) decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which would start a window system where there is one
        from matplotlib.patches import Patch
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "plotting") from None
    panels = _panels(report)
    rows = -(-len(panels) // _COLUMNS)
    bars = max((len(panel.values) for panel in panels), default=1)
    figure = Figure(figsize=(5.2 * _COLUMNS, rows * (0.9 + 0.2 * bars) + 1.1), dpi=130, layout="constrained")
    axes = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat) if panels else []
    for panel_axes, panel in zip(axes, panels, strict=False):
        _draw(panel_axes, panel, report)
    for unused_axes in axes[len(panels) :]:
        unused_axes.set_axis_off()
    figure.suptitle(f"{report.title}: {report.task}", fontsize=13, fontweight="bold", color=_TEXT_COLOR)
    handles = [
        *(Patch(color=color, label=f"bert-export {name.upper()}") for name, color in _BUNDLE_COLORS.items()),
        *(Patch(color=color, label=f"others, {name.upper()}") for name, color in _COMPARED_COLORS.items()),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, title=_conditions(report)
    )
    figure.savefig(path)


@dataclass(frozen=True)
class _Panel:
    """One panel of the chart."""

    title: str
    values: Mapping[str, float]
    """By engine."""
    noisy: Sequence[str]
    """Engines with a noisy speed-up."""
    lower_is_better: bool


def _panels(report: Report) -> list[_Panel]:
    """Return the panels: median ms of shapes and the first single text, texts per second of offline workloads."""
    named = {case.name: case for case in report.shapes}
    shapes = [named[name] for name in _SHAPES if name in named] or list(report.shapes[:4])
    panels: list[_Panel] = []
    for case in (*shapes, *report.singles[:1]):
        values = {name: timing.p50_ms for name, timing in case.timings.items()}
        panels.append(_Panel(f"{_title(case)}, median ms (lower is better)", values, case.noisy, True))
    for case in report.offline:
        values = {name: report.texts_per_s(name, case) for name in case.timings}
        title = f"{case.name}, {case.tokens['mean']:.0f} tokens a text: texts/s (higher is better)"
        panels.append(_Panel(title, values, case.noisy, False))
    return panels


def _title(case: CaseReport) -> str:
    if case.stage == "model":
        return f"{case.name.replace('x', ' × ')} tokens, model only"
    return f"a text of {case.tokens['total']:.0f} tokens, end to end"


def _draw(axes: "Axes", panel: _Panel, report: Report) -> None:
    """Draw a labelled bar per engine, the best on top."""
    values = panel.values
    names = sorted(values, key=lambda name: values[name], reverse=panel.lower_is_better)
    engines = {engine.name: engine for engine in report.engines}
    colors: list[Any] = [
        (_BUNDLE_COLORS if name.startswith("bert-export") or name in _BUNDLE_COLORS else _COMPARED_COLORS).get(
            engines[name].precision, _OTHER_COLOR
        )
        for name in names
    ]
    bars = axes.barh(range(len(names)), [values[name] for name in names], color=colors, height=0.8)
    labels = [
        NOISY_MARK * (name in panel.noisy)
        + (format_ms(values[name]) if panel.lower_is_better else f"{values[name]:,.0f}")
        for name in names
    ]
    axes.bar_label(bars, labels=labels, fontsize=7.5, padding=2, color=_TEXT_COLOR)
    axes.set_yticks(range(len(names)), names, fontsize=7.5, color=_TEXT_COLOR)
    axes.set_xticks([])
    axes.margins(x=0.16, y=0.01)
    axes.set_title(panel.title, fontsize=9, color=_TEXT_COLOR, loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color("#bbbbbb")


def _conditions(report: Report) -> str:
    """Return machine, threads, rounds and date in one line."""
    conditions = report.conditions
    return (
        f"{conditions.machine['cpu']}, {conditions.threads} thread{'s' * (conditions.threads > 1)}, "
        f"{report.settings['rounds']} interleaved rounds, {conditions.started_at[:10]}; {NOISY_MARK} noisy"
    )
