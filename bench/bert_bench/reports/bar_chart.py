"""A chart of horizontal bars: a row per engine, a panel per case, each panel with a scale of its own.

All panels have the same rows in the same order, so that a row's name stands once, at the left, and the eye follows an
engine across the chart. Sizes are in inches, so that text keeps its distance whatever the number of panels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_bench.reports.chart_theme import LIGHT, Theme
from bert_runtime.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BarChart", "BarRow", "Panel", "Section", "draw_chart", "save_chart"]

_MIN_LINEAR_RATIO = 1 / 25
"""Ratio of a panel's smallest to its largest value below which the panel has a logarithmic scale."""

_COLUMNS = 3
"""Maximum panels side by side."""

_WIDTH = 8.3
"""Width in inches. At 100 dots per inch, it is that of a page of Markdown on a code host."""

_HEADER, _SECTION, _PANEL_TITLE, _ROW, _GAP, _MARGIN = 0.62, 0.34, 0.24, 0.21, 0.12, 0.15
"""Heights in inches, and the margin around the chart."""

_TITLE_SIZE, _TEXT_SIZE, _SMALL_SIZE = 13, 9, 8
_CHARACTER = 0.072
"""Width in inches of an average character of `_SMALL_SIZE`, and a little more."""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A row of every panel."""

    name: str
    title: str
    """The name for readers."""
    role: str
    """Key of `Theme.bars`."""
    emphasized: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The values of one case."""

    title: str
    values: Mapping[str, float]
    """Positive values by row name; a row without one stays empty."""
    labels: Mapping[str, str]
    """Text at the bars' ends, by row name."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Panels of one kind."""

    title: str
    """The unit of the values, and which way is better."""
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """The data of a chart."""

    title: str
    subtitle: str
    rows: Sequence[BarRow]
    """From top to bottom."""
    sections: Sequence[Section]


def draw_chart(chart: BarChart, *, theme: Theme = LIGHT) -> "Figure":
    """Draw a chart.

    Args:
        chart: what to show.
        theme: the colors.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which would start a window system where there is one
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "plotting") from None
    width = _WIDTH
    height = _HEADER + sum(_section_height(chart, section) for section in chart.sections) + _MARGIN
    figure = Figure(figsize=(width, height), facecolor=theme.background)
    left, top = _MARGIN / width, 1 - 0.22 / height
    figure.text(left, top, chart.title, fontsize=_TITLE_SIZE, fontweight="bold", color=theme.text, va="center")
    figure.text(left, top - 0.24 / height, chart.subtitle, fontsize=_SMALL_SIZE, color=theme.muted, va="center")
    y = height - _HEADER
    for section in chart.sections:
        _draw_section(figure, chart, section, y, theme)
        y -= _section_height(chart, section)
    return figure


def save_chart(figure: "Figure", path: Path, *, description: str = "") -> None:
    """Write a figure so that the same figure gives the same bytes.

    Args:
        figure: the figure.
        path: the file; its suffix (png, svg, pdf) decides the format.
        description: stored in the metadata of a png or svg.
    """
    from matplotlib import rc_context

    metadata: dict[str, str | None] = {}
    if path.suffix != ".pdf" and description:
        metadata["Description"] = description
    if path.suffix == ".svg":
        metadata["Date"] = None
    with rc_context({"svg.hashsalt": "bert-export"}):
        figure.savefig(path, dpi=120, metadata=metadata)


def _section_height(chart: BarChart, section: Section) -> float:
    panel_rows = -(-len(section.panels) // _COLUMNS)
    return _heading_height(section) + panel_rows * (_PANEL_TITLE + len(chart.rows) * _ROW + _GAP)


def _heading_height(section: Section) -> float:
    return _SECTION if section.title else 0.0


def _draw_section(figure: "Figure", chart: BarChart, section: Section, top: float, theme: Theme) -> None:
    """Draw a section's heading and panels; its upper edge lies at `top` inches."""
    width, height = figure.get_size_inches()
    heading = (top - _SECTION / 2) / height
    figure.text(_MARGIN / width, heading, section.title, fontsize=_TEXT_SIZE, color=theme.text, va="center")
    names = max(len(row.title) for row in chart.rows) * _CHARACTER + 0.1
    columns = min(_COLUMNS, max(len(section.panels) for section in chart.sections))
    pitch = (width - 2 * _MARGIN - names) / columns
    bars_height = len(chart.rows) * _ROW
    for number, panel in enumerate(section.panels):
        line, column = divmod(number, columns)
        x = _MARGIN + names + column * pitch
        y = top - _heading_height(section) - (line + 1) * (_PANEL_TITLE + bars_height + _GAP) + _GAP
        area = (x / width, y / height, (pitch - _GAP) / width, bars_height / height)
        axes = figure.add_axes(area, facecolor="none")
        _draw_panel(axes, panel, chart.rows, pitch - _GAP, theme)
        titles = [row.title if column == 0 else "" for row in chart.rows]
        axes.set_yticks(range(len(titles)), titles, fontsize=_SMALL_SIZE)
        for text, row in zip(axes.get_yticklabels(), chart.rows, strict=True):
            text.set(color=theme.text, fontweight="bold" if row.emphasized else "normal")


def _draw_panel(axes: "Axes", panel: Panel, rows: Sequence[BarRow], width: float, theme: Theme) -> None:
    """Draw a panel's title, its bars and the labels at their ends."""
    shown = [(place, row) for place, row in enumerate(rows) if row.name in panel.values]
    values, labels = [panel.values[row.name] for _, row in shown], [panel.labels[row.name] for _, row in shown]
    logarithmic = min(values) < _MIN_LINEAR_RATIO * max(values)
    start = min(values) / 3 if logarithmic else 0.0
    _scale(axes, start, values, labels, width)
    colors = [theme.bars[row.role] for _, row in shown]
    lengths = [value - start for value in values]
    bars = axes.barh([place for place, _ in shown], lengths, left=start, color=colors, height=0.78)
    for text, (_, row) in zip(axes.bar_label(bars, labels, fontsize=_SMALL_SIZE, padding=3), shown, strict=True):
        text.set(color=theme.text, fontweight="bold" if row.emphasized else "normal")
    for place in set(range(len(rows))) - {place for place, _ in shown}:
        axes.text(
            0.0, place, " –", transform=axes.get_yaxis_transform(), color=theme.muted, va="center", fontsize=_SMALL_SIZE
        )
    title = f"{panel.title} (log scale)" if logarithmic else panel.title
    axes.set_title(title, fontsize=_SMALL_SIZE, color=theme.muted, loc="left", pad=4)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0)
    for minor in (False, True):
        axes.set_xticks([], minor=minor)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(theme.line)


def _scale(axes: "Axes", start: float, values: Sequence[float], labels: Sequence[str], width: float) -> None:
    """Set the scale, which is logarithmic unless bars start at zero, and leave room for the longest bar's label."""
    bar_share = 1 - (max(map(len, labels)) * _CHARACTER + 0.1) / width
    if start:
        axes.set_xscale("log")
        axes.set_xlim(start, start * (max(values) / start) ** (1 / bar_share))
    else:
        axes.set_xlim(0, max(values) / bar_share)
