"""Write a report as JSON, Markdown and a chart, all files or none."""

import json
from pathlib import Path

from bert_bench.errors import BenchError
from bert_bench.reports.markdown import report_markdown
from bert_bench.reports.plot import plot_comparison, require_plotting
from bert_bench.reports.report import Report
from bert_runtime.bundle.atomic_folders import atomic_replace_dir, check_replaceable

__all__ = ["CHART", "MARKDOWN", "RESULT", "check_output", "write_outputs"]

RESULT, MARKDOWN, CHART = "result.json", "result.md", "result.png"


def check_output(folder: Path, *, force: bool) -> None:
    """Check that a report can be written to `folder`: before minutes of measuring, not after.

    Args:
        folder: the folder to write to.
        force: allow to replace an older report.

    Raises:
        BenchError: `folder` exists without `force`, or holds other files than a report's.
        BertError: `folder` cannot be replaced.
        MissingExtraError: matplotlib is not installed.
    """
    require_plotting()
    check_replaceable(folder)
    if folder.exists() and not force:
        raise BenchError(f"{folder}: exists already; name another folder, or replace it with --force")
    if folder.exists() and not (
        folder.is_dir() and {path.name for path in folder.iterdir()} <= {RESULT, MARKDOWN, CHART}
    ):
        raise BenchError(f"{folder}: holds more than a report, which --force does not replace; name another folder")


def write_outputs(report: Report, folder: Path) -> None:
    """Write the three files of a report into `folder`, replacing an older report."""
    with atomic_replace_dir(folder) as building:
        text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        (building / RESULT).write_text(text + "\n", encoding="utf-8")
        (building / MARKDOWN).write_text(report_markdown(report, chart=CHART), encoding="utf-8")
        plot_comparison(report, building / CHART)
