"""Charts of experiments that draw one: their modules have a `results_chart`."""

from importlib import import_module
from pathlib import Path

from bert_bench.documentation.catalog import Catalog
from bert_bench.documentation.generators import GENERATORS
from bert_bench.reports.bar_chart import BarChart

__all__ = ["experiment_chart", "picture_name"]


def experiment_chart(results: Path, catalog: Catalog, name: str) -> BarChart | None:
    """Return the chart of an experiment's result, `None` if it has none.

    Args:
        results: the folder bench/results.
        catalog: its catalog.
        name: the result's path below that folder.
    """
    table = catalog.results[name].table
    if table is None or table not in GENERATORS:  # an unknown one is an error of its table
        return None
    draw = getattr(import_module(f"bert_bench.experiments.{table.replace('-', '_')}"), "results_chart", None)
    chart: BarChart | None = draw and draw(results / name)
    return chart if chart is not None and chart.sections else None


def picture_name(name: str) -> str:
    """Return the file name of a result's chart."""
    return f"{name.removesuffix('.json').replace('/', '-')}.png"
