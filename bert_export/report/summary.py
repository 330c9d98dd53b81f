"""The figures at the top of a report."""

from dataclasses import dataclass

from bert_export.background_load import MAX_BACKGROUND_LOAD
from bert_export.report.data import Latency, Report, VariantRecord
from bert_export.report.evaluation import Comparison
from bert_export.report.glossary import heading, readable

__all__ = ["Tile", "is_noisy", "shown_variant", "summary_tiles"]

_PARAGRAPH_TOKENS = 128
"""Length whose latency stands for the variant: a paragraph."""


@dataclass(frozen=True)
class Tile:
    """A figure with its name and what it is compared with."""

    name: str
    figure: str
    detail: str


def shown_variant(report: Report) -> VariantRecord:
    """Return the variant that runs on this machine's CPU."""
    return next(variant for variant in report.variants if variant.title == report.runs_here)


def is_noisy(latency: Latency) -> bool:
    """Return whether other processes took so much CPU time that the latencies may be theirs."""
    return latency.background_load is not None and latency.background_load > MAX_BACKGROUND_LOAD


def summary_tiles(report: Report) -> list[Tile]:
    """Return the figures of the variant that runs here: speed, size and quality, compared with FP32's."""
    variant = shown_variant(report)
    fp32 = next((item for item in report.variants if item.title == "fp32"), variant)
    detail = "" if variant is fp32 else _ratio(fp32.size_bytes / variant.size_bytes, "smaller")
    size = Tile("Size on disk", f"{variant.size_bytes / 1e6:.1f} MB", detail)
    return [_latency(report, variant.title, fp32.title), size, *_quality(report, variant)]


def _latency(report: Report, title: str, reference: str) -> Tile:
    """Return the latency of a paragraph, or the longest input that is not longer."""
    tokens = [length for length in report.latency.tokens if length <= _PARAGRAPH_TOKENS] or report.latency.tokens[:1]
    index = report.latency.tokens.index(tokens[-1])
    medians = report.latency.medians_ms
    ratio = medians[reference][index] / medians[title][index] if reference in medians else 1.0
    detail = f"{tokens[-1]} tokens, {_threads(report.latency.threads)}"
    if is_noisy(report.latency):
        detail += "; busy machine"
    if title != reference:
        detail += f"; {_ratio(ratio, 'faster')}"
    return Tile("One text, here", f"{medians[title][index]:.3g} ms", detail)


def _quality(report: Report, variant: VariantRecord) -> list[Tile]:
    """Return the metric and the changed decisions on the labelled file, or the fidelity recorded at export."""
    if report.evaluation is None:
        return _recorded_fidelity(variant)
    evaluation = report.evaluation
    by_title = {item.variant: item for item in evaluation.variants}
    found, reference = by_title[variant.title], by_title[evaluation.reference]
    detail = f"{evaluation.examples:,} examples"
    if found is not reference:
        detail += f"; {readable(reference.variant)}: {reference.metrics[evaluation.metric]:.4f}"
    metric = Tile(heading(evaluation.metric), f"{found.metrics[evaluation.metric]:.4f}", detail)
    return [metric, *([] if found.compared is None else [_changed(found.compared, evaluation.unit)])]


def _changed(compared: Comparison, unit: str) -> Tile:
    """Return how many decisions, or by how much numbers, differ from FP32's."""
    if compared.differences:
        largest = compared.differences[0]
        change = abs(largest.variant - largest.reference)
        return Tile("Largest change from FP32", f"{change:.2g}", f"of {compared.units:,} {unit}")
    share = f" ({compared.changed / compared.units:.2%})" if compared.changed else ""
    return Tile("Changed from FP32", f"{compared.changed:,}", f"of {compared.units:,} {unit}{share}")


def _recorded_fidelity(variant: VariantRecord) -> list[Tile]:
    """Return the first measure of drift, or else of parity with PyTorch."""
    if variant.drift:
        key, value = next(iter(variant.drift.items()))
        return [
            Tile(f"{heading(key)} with FP32", f"{value:.4f}", f"{variant.drift.get('texts', 'some')} inputs, at export")
        ]
    if variant.parity:
        error = variant.parity["max_abs_error"]
        return [Tile("Largest difference from PyTorch", f"{error:.1e}", "any output, at export")]
    return []


def _ratio(value: float, adjective: str) -> str:
    """Return a ratio in words."""
    if value < 1:
        return f"{1 / value:.1f}× {'slower' if adjective == 'faster' else 'larger'} than FP32"
    return f"{value:.1f}× {adjective} than FP32" if value > 1.005 else "as FP32"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
