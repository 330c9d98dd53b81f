"""The charts of a benchmark."""

from pathlib import Path

from bert_bench.reports.bar_chart import BarChart, draw_chart, save_chart
from bert_bench.reports.report import Report
from bert_bench.reports.report_chart import report_chart

__all__ = ["comparison_chart", "plot_comparison", "plot_report", "require_plotting"]

_COMPARISON_SHAPES = ("1x16", "1x128", "32x128")
"""Shapes of a comparison's chart, if they were measured; else the first three."""


def require_plotting(path: Path | None = None) -> None:
    """Check that charts can be drawn, and written to `path` if it is given.

    Raises:
        InputError: the suffix is not png, svg or pdf, or there cannot be such a file.
        MissingExtraError: matplotlib is not installed.
    """
    # A worker imports this module without bert_export.
    from bert_export.figure_files import check_figure_path, require_matplotlib

    if path is None:
        require_matplotlib("bench", "plotting")
    else:
        check_figure_path(path, "bench", "plotting", kind="chart")


def plot_report(report: Report, path: Path) -> None:
    """Draw the chart of a benchmark of one bundle: every shape, every single text, and throughput.

    Args:
        report: the report.
        path: the file to write; its suffix (png, svg, pdf) decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    save_chart(draw_chart(report_chart(report, report.shapes, report.singles)), path)


def plot_comparison(report: Report, path: Path) -> None:
    """Draw the chart of a comparison with many engines.

    Args:
        report: the report.
        path: the file to write; its suffix (png, svg, pdf) decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    save_chart(draw_chart(comparison_chart(report)), path)


def comparison_chart(report: Report) -> BarChart:
    """Return the chart of a comparison: a few shapes, the single texts, and throughput."""
    named = {case.name: case for case in report.shapes}
    shapes = [named[name] for name in _COMPARISON_SHAPES if name in named] or list(report.shapes[:3])
    return report_chart(report, shapes, report.singles)
