"""Turn the data of a report into one HTML page that needs nothing else: no network, no scripts."""

import shlex
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader

from bert_export.input_summary import describe_inputs
from bert_export.report import charts
from bert_export.report.data import Report
from bert_export.report.evaluation import VariantEvaluation
from bert_export.report.glossary import FUSIONS, heading, measure_note, readable
from bert_export.report.summary import is_noisy, shown_variant, summary_tiles

__all__ = ["render_page"]

_MAX_TABLE_LABELS = 16
"""Labels of a confusion matrix that is a table of numbers; of more, it is a map."""

_MAX_LABEL_ROWS = 20
"""Labels in the table of scores by label, those with the lowest F1."""

_MAX_SETTING_ITEMS = 12
"""Items of a long setting, such as the labels, that are shown."""


def render_page(report: Report) -> str:
    """Return a report as HTML. Its texts are escaped, and the page's own policy forbids scripts and network."""
    page = _environment().get_template("page.html.jinja")
    html = page.render(
        report=report,
        shown=shown_variant(report),
        noisy=is_noisy(report.latency),
        tiles=summary_tiles(report),
        settings=_settings(report),
        source_name=_source_name(report),
        style=files("bert_export.report").joinpath("templates/style.css").read_text(encoding="utf-8"),
        command=f"bert-export report {shlex.quote(report.bundle)} --evaluate FILE -o report.html",
        latency_chart=charts.latency_chart(
            report.latency.tokens, {readable(title): times for title, times in report.latency.medians_ms.items()}
        ),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # names in a manifest may hold lone surrogates


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bert_export.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "readable": readable,
        "heading": heading,
        "number": _number,
        "inputs": describe_inputs,
        "measure": _measure,
        "percent": lambda share: f"{share * 100:.1f} %",
        "points": lambda share: f"{share * 100:+.1f}",
        "megabytes": lambda size: f"{size / 1e6:.1f} MB",
        "milliseconds": _milliseconds,
        "signed": lambda value: f"{value:+.4f}" if abs(value) >= 5e-5 else "±0",
    }
    environment.globals |= {
        "fusion_notes": FUSIONS,
        "measure_note": measure_note,
        "series_class": charts.series_class,
        "reliability_diagram": charts.reliability_diagram,
        "scatter_plot": charts.scatter_plot,
        "confusion_map": charts.heatmap,
        "max_table_labels": _MAX_TABLE_LABELS,
        "max_label_rows": _MAX_LABEL_ROWS,
        "evaluated": _evaluated,
        "recorded_keys": _recorded_keys,
    }
    return environment


def _number(value: Any) -> str:
    """Format whole numbers with separators, others with four digits."""
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _measure(value: Any) -> str:
    """Format a measurement with four decimals, unless it is a whole number, very small or large."""
    return f"{value:.4f}" if isinstance(value, float) and (value == 0 or 1e-3 <= abs(value) < 1e4) else _number(value)


def _milliseconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _evaluated(report: Report, title: str) -> VariantEvaluation:
    """Return what the labelled file says of a variant; of the reference if it was not run."""
    assert report.evaluation is not None
    by_title = {item.variant: item for item in report.evaluation.variants}
    return by_title.get(title, report.evaluation.variants[0])


def _recorded_keys(report: Report, measures: str) -> list[str]:
    """Return the keys of all variants' `drift` or `metrics`, in their order."""
    return list(dict.fromkeys(key for variant in report.variants for key in getattr(variant, measures)))


def _settings(report: Report) -> list[tuple[str, str]]:
    """Return the task's settings by name, as text."""
    settings = {key: value for key, value in report.task.items() if key not in ("name", "transitions")}
    return [(heading(key), _setting(value)) for key, value in settings.items()]


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _number(value)
    shown = ", ".join(map(str, value[:_MAX_SETTING_ITEMS]))
    return f"{len(value)}: {shown}{', …' if len(value) > _MAX_SETTING_ITEMS else ''}" if value else "none"


def _source_name(report: Report) -> str:
    """Return the checkpoint's hub id, or the name of its folder without where that was."""
    path = str(report.source.get("path", "unknown"))
    return path if "revision" in report.source else PurePath(path).name
