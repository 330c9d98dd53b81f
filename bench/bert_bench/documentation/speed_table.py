"""README's table: speed and fidelity of the bundle next to other engines, with the conditions of the measurement."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import Any

from bert_bench.documentation.catalog import Catalog, read_catalog
from bert_bench.documentation.speedups import (
    bundle_engines,
    compared_engines,
    mean_and_range,
    summarize_speedups,
)
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_bench.reports.read_report import read_report
from bert_bench.reports.report import Report
from bert_bench.reports.titles import engine_product, machine_title
from bert_bench.reports.write_report import RESULT

__all__ = ["speed_table"]

_LINE_WIDTH = 120
_LABELS, _DRIFT = "label_agreement", "mean_abs_logit_drift"


def speed_table(results: Path) -> str:
    """Return the table of the results that the catalog names, and a line of conditions.

    Args:
        results: the folder bench/results.

    Raises:
        DocumentationError: the catalog does not fit.
        BenchError: a result cannot be read.
    """
    catalog = read_catalog(results)
    reports = {name: read_report(results / name / RESULT) for name in catalog.speed_table}
    engines = [(report, engine) for report in reports.values() for engine in bundle_engines(report)]
    compared = [{engine_product(name) for name in compared_engines(*pair)} for pair in engines]
    products = [name for name in dict.fromkeys(_products(engines)) if all(name in group for group in compared)]
    over = [f"over {product}" for product in products]
    header = ["model", "speed-up over the fastest", *over, "labels equal to FP32's", "mean logit difference"]
    rows = [_row(report, engine, products) for report, engine in engines]
    processors = [_machine(catalog, name) for name, report in reports.items() for _ in bundle_engines(report)]
    if len({*processors}) > 1:
        header.insert(1, "processor")
        rows = [[row[0], processor, *row[1:]] for row, processor in zip(rows, processors, strict=True)]
    table = markdown_table(header, rows)
    paragraphs = filter(None, (_conditions(catalog, reports), _embedding_fidelity(results, catalog)))
    return "\n\n".join([table, *(fill(text, _LINE_WIDTH, break_on_hyphens=False) for text in paragraphs)])


def _machine(catalog: Catalog, result: str) -> str:
    return catalog.machines[catalog.results[result].page].title


def _products(engines: Sequence[tuple[Report, str]]) -> list[str]:
    return [engine_product(name) for report, engine in engines for name in compared_engines(report, engine)]


def _row(report: Report, engine: str, products: Sequence[str]) -> list[str]:
    others = compared_engines(report, engine)
    fastest = summarize_speedups(report.shapes, engine, others)
    assert fastest is not None  # the engine was compared
    precision = next(item.precision for item in report.engines if item.name == engine)
    cells = []
    for product in products:
        summary = summarize_speedups(report.shapes, engine, [o for o in others if engine_product(o) == product])
        cells.append(MISSING if summary is None else f"{summary.geometric_mean:.2f}×")
    return [f"{report.title}, {precision.upper()}", mean_and_range(fastest), *cells, *_fidelity(report, engine, others)]


def _fidelity(report: Report, engine: str, others: Sequence[str]) -> tuple[str, str]:
    """Return label agreement and mean logit difference on labelled texts, of the bundle and of the others."""
    found = {item.name: item.fidelity.agreement for item in report.engines if item.fidelity is not None}
    rows = [found[name] for name in (engine, *others) if name in found]
    if report.labelled is None or len(rows) < 2 or not all({_LABELS, _DRIFT} <= row.keys() for row in rows):
        return MISSING, MISSING
    labels, drifts = ([row[key] for row in rows] for key in (_LABELS, _DRIFT))
    return (
        f"{labels[0]:.1%} ({min(labels[1:]):.1%}–{max(labels[1:]):.1%})",
        f"{drifts[0]:.3f} ({min(drifts[1:]):.3f}–{max(drifts[1:]):.3f})",
    )


def _conditions(catalog: Catalog, reports: Mapping[str, Report]) -> str:
    """Return what was measured, where and when, as a paragraph."""
    machines = dict.fromkeys(_machine(catalog, name) for name in reports)
    machine = f"{next(iter(machines))}; " if len(machines) == 1 else ""  # the table has a column for several
    conditions = [report.conditions for report in reports.values()]
    threads = _range(found.threads for found in conditions)
    dates = _range(found.started_at[:10] for found in conditions)
    counts = _range(len(report.shapes) for report in reports.values())
    commits = sorted({report.conditions.commit or catalog.results[name].commit for name, report in reports.items()})
    batches, tokens = zip(*map(_sizes, reports.values()), strict=True)
    longest = " or ".join(map(str, sorted({max(found) for found in tokens})))
    return (
        f"Speed-ups over each engine in the same precision are geometric means (least–greatest) over {counts} shapes: "
        f"{_range(chain(*batches))} sequences of {min(chain(*tokens))} to {longest} tokens, each with the median of "
        f"interleaved rounds. Labels and logits are compared with FP32's on {_labelled_texts(reports)} labelled texts; "
        f"the other engines' are in brackets. "
        f"{machine}{threads} threads, {dates}, commit {', '.join(map(str, commits))}."
    )


def _sizes(report: Report) -> tuple[list[int], list[int]]:
    """Return the numbers of sequences and of tokens of a report's shapes."""
    sizes = [case.name.split("x") for case in report.shapes]
    return [int(batch) for batch, _ in sizes], [int(tokens) for _, tokens in sizes]


def _range(values: Iterable[Any]) -> str:
    """Return the least and the greatest value, or the only one."""
    found = sorted({*values})
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _embedding_fidelity(results: Path, catalog: Catalog) -> str:
    """Return the cosine of INT8 embeddings with PyTorch's as a sentence; empty if the catalog has no such result."""
    found = next((name for name, result in catalog.results.items() if result.table == "minilm-fidelity"), None)
    if found is None:
        return ""
    values = json.loads((results / found).read_text(encoding="utf-8"))
    name, texts = next(iter(values["cosine_with_pytorch"].items()))
    cosine = {precision: texts[precision] for precision in ("int8", "fp32")}
    return (
        f"Embeddings of all-MiniLM-L6-v2 have a cosine with PyTorch's of {cosine['int8']['mean']:.4f} on average in "
        f"INT8 (1st percentile {cosine['int8']['p1']:.4f}) and of at least {cosine['fp32']['min']:.7f} in FP32, on "
        f"{texts['texts']:,} texts of {name}; {machine_title(values['conditions']['machine'])}, "
        f"{values['conditions']['started_at'][:10]}."
    )


def _labelled_texts(reports: Mapping[str, Report]) -> int:
    engines = [engine for report in reports.values() if report.labelled is not None for engine in report.engines]
    return max((engine.fidelity.texts for engine in engines if engine.fidelity is not None), default=0)
