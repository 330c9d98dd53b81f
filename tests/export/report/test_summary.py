"""The figures at the top of the page."""

from dataclasses import replace

import pytest

from bert_export.report import Report
from bert_export.report.page import render_page
from bert_export.report.summary import shown_variant, summary_tiles


@pytest.fixture
def int8_report(classifier_report: Report) -> Report:
    """A report of a machine where INT8 runs."""
    latency = replace(
        classifier_report.latency, medians_ms={"fp32": (1.0, 2.0, 3.0, 5.0), "int8": (1.0, 1.0, 1.0, 2.0)}
    )
    return replace(classifier_report, runs_here="int8", latency=replace(latency, background_load=0.01))


def test_figures_of_the_variant_that_runs_here(int8_report: Report) -> None:
    evaluation = int8_report.evaluation
    assert evaluation is not None
    assert shown_variant(int8_report).title == "int8"
    latency, size, metric, changed = summary_tiles(int8_report)
    assert (latency.figure, latency.detail) == ("2 ms", "64 tokens, 1 thread; 2.5× faster than FP32")
    fp32, int8 = int8_report.variants
    assert size.detail == f"{fp32.size_bytes / int8.size_bytes:.1f}× smaller than FP32"
    before, after = (item.metrics["accuracy"] for item in evaluation.variants)
    assert (metric.name, metric.figure) == ("Accuracy", f"{after:.4f}")
    assert metric.detail == f"33 examples; FP32: {before:.4f}"
    assert evaluation.variants[1].compared is not None
    assert changed.figure == str(evaluation.variants[1].compared.changed)


def test_fp32_is_not_compared_with_itself(int8_report: Report) -> None:
    tiles = summary_tiles(replace(int8_report, runs_here="fp32"))
    assert [tile.name for tile in tiles] == ["One text, here", "Size on disk", "Accuracy"]
    assert not any("FP32" in tile.detail for tile in tiles)


def test_a_slower_variant_is_called_slower(int8_report: Report) -> None:
    latency = replace(int8_report.latency, medians_ms={"fp32": (1.0,) * 4, "int8": (2.0,) * 4})
    assert summary_tiles(replace(int8_report, latency=latency))[0].detail.endswith("2.0× slower than FP32")


def test_without_a_labelled_file_fidelity_is_that_of_the_export(int8_report: Report) -> None:
    tiles = summary_tiles(replace(int8_report, evaluation=None))
    drift = int8_report.variants[1].drift
    assert tiles[2].name == "Label agreement with FP32"
    assert (tiles[2].figure, tiles[2].detail) == (f"{drift['label_agreement']:.4f}", "80 inputs, at export")
    fp32 = summary_tiles(replace(int8_report, evaluation=None, runs_here="fp32"))
    assert fp32[2].name == "Largest difference from PyTorch"


def test_embeddings_show_the_largest_change(embedding_report: Report) -> None:
    report = replace(embedding_report, runs_here="int8")
    assert report.evaluation is not None
    compared = report.evaluation.variants[1].compared
    assert compared is not None
    largest = max(abs(item.variant - item.reference) for item in compared.differences)
    assert summary_tiles(report)[-1].figure == f"{largest:.2g}"


def test_latencies_of_a_busy_machine_say_so(int8_report: Report) -> None:
    for load, shown in ((0.3, True), (0.05, False), (None, False)):
        report = replace(int8_report, latency=replace(int8_report.latency, background_load=load))
        assert ("busy machine" in summary_tiles(report)[0].detail) == shown
        assert ("Other processes kept 30.0 % of the machine's processors busy" in render_page(report)) == shown
