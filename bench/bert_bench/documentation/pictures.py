"""Pictures made from bench/results: the charts of comparisons, and README's picture for light and dark pages.

Images of two machines differ in their bytes (fonts, compression), so a picture carries the hash of what it was drawn
from, and is drawn again when that changes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bert_bench.documentation.catalog import Picture
from bert_bench.documentation.experiment_charts import experiment_chart, picture_name
from bert_bench.documentation.results_pages import FIGURES, ResultsPages
from bert_bench.errors import DocumentationError
from bert_bench.reports.bar_chart import BarChart, BarRow, Panel, Section, draw_chart, save_chart
from bert_bench.reports.chart_theme import DARK, LIGHT, Theme
from bert_bench.reports.plot import comparison_chart
from bert_bench.reports.report import CaseReport, Report
from bert_bench.reports.report_chart import chart_rows

__all__ = ["Drawing", "drawings", "is_current", "speed_chart"]

_DESIGN = 1
"""Changes when pictures must be drawn again although their contents are the same."""

_MAX_PANELS = 3


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture that can be drawn."""

    chart: BarChart
    theme: Theme = LIGHT

    @property
    def mark(self) -> str:
        """The text that identifies the contents in a picture's metadata."""
        contents = json.dumps([_DESIGN, asdict(self.theme), asdict(self.chart)], sort_keys=True)
        return f"bert_bench.documentation {hashlib.sha256(contents.encode()).hexdigest()}"

    def write(self, path: Path) -> None:
        """Draw it into a file; the suffix decides the format."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_chart(draw_chart(self.chart, theme=self.theme), path, description=self.mark)


def drawings(pages: ResultsPages) -> dict[str, Drawing]:
    """Return every picture by its path below docs."""
    found = {
        f"results/{FIGURES}/{name}.png": Drawing(chart=chart)
        for name, report in pages.reports.items()
        if (chart := comparison_chart(report)).sections
    }
    for name in pages.catalog.results:
        if (drawn := experiment_chart(pages.results, pages.catalog, name)) is not None:
            found[f"results/{FIGURES}/{picture_name(name)}"] = Drawing(chart=drawn)
    speed = speed_chart(pages.catalog.picture, pages.reports)
    for suffix, theme in (("", LIGHT), ("-dark", DARK)):
        found[f"pictures/speed{suffix}.svg"] = Drawing(chart=speed, theme=theme)
    return found


def is_current(path: Path, drawing: Drawing) -> bool:
    """Return whether a file has the picture."""
    return path.is_file() and drawing.mark.encode() in path.read_bytes()


def speed_chart(picture: Picture, reports: Mapping[str, Report]) -> BarChart:
    """Return README's picture: texts per second of a few cases, in INT8.

    Args:
        picture: its title and panels.
        reports: the comparisons by name.

    Raises:
        DocumentationError: there are more than three panels, or a result has no such case of texts.
    """
    if len(picture.panels) > _MAX_PANELS:
        raise DocumentationError(f"picture: expected at most {_MAX_PANELS} panels, found {len(picture.panels)}")
    panels, rows = [], dict[str, BarRow]()
    for panel in picture.panels:
        report = reports[panel.result]
        case = _text_case(report, panel.case, panel.result)
        precision = {engine.name: engine.precision for engine in report.engines}
        engines = [name for name in case.timings if precision[name] == "int8" and not name.startswith("pipeline")]
        values = {name: report.texts_per_s(name, case) for name in engines}
        labels = {name: f"{value:,.0f}" for name, value in values.items()}
        panels.append(Panel(title=panel.title, values=values, labels=labels))
        rows |= {row.name: row for row in chart_rows(report) if row.name in engines and row.name not in rows}
    return BarChart(
        title=picture.title,
        subtitle=picture.subtitle,
        rows=list(rows.values()),
        sections=[Section(title="", panels=panels)],
    )


def _text_case(report: Report, name: str, result: str) -> CaseReport:
    cases = {case.name: case for case in (*report.singles, *report.offline)}
    if name not in cases:
        raise DocumentationError(f"picture: expected a case of {result} ({', '.join(cases)}), found {name!r}")
    return cases[name]
