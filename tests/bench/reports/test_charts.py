"""Charts: no text covers another or leaves the picture, every bar can be seen, titles name model and machine."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from bert_bench import Report
from bert_bench.checkpoints import EncoderSize
from bert_bench.documentation.catalog import read_catalog
from bert_bench.documentation.pictures import speed_chart
from bert_bench.errors import DocumentationError
from bert_bench.reports.bar_chart import BarChart, draw_chart, save_chart
from bert_bench.reports.chart_theme import DARK
from bert_bench.reports.plot import comparison_chart, plot_comparison
from bert_bench.reports.read_report import read_report
from bert_bench.reports.report_chart import report_chart
from bert_bench.reports.titles import engine_title, machine_title, model_title

RESULTS = Path(__file__).parents[3] / "bench" / "results"
COMPARISONS = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))


def assert_readable(chart: BarChart) -> None:
    """Draw the chart, and check the boxes of its texts and bars in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw_chart(chart)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = [*figure.texts]
    for axes in figure.axes:
        texts += [*axes.texts, *axes.get_yticklabels(), axes.title, axes._left_title]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text().strip()]
    for (first, box), (second, other) in combinations(boxes, 2):
        assert not box.overlaps(other), f"{first!r} and {second!r} overlap"
    for text, box in boxes:
        assert box.x0 >= 0, f"{text!r} begins left of the picture"
        assert box.x1 <= figure.bbox.width, f"{text!r} ends right of the picture"
    bars = [bar.get_window_extent(renderer) for axes in figure.axes for bar in axes.patches]
    assert bars
    assert min(bar.width for bar in bars) >= 4
    labels = [
        (text, box)
        for text, box in boxes
        if text in {label for s in chart.sections for p in s.panels for label in p.labels.values()}
    ]
    for text, box in labels:
        assert not any(box.overlaps(bar) for bar in bars), f"{text!r} lies on a bar"


@pytest.mark.parametrize("name", COMPARISONS)
def test_charts_of_the_results_are_readable(name: str) -> None:
    chart = comparison_chart(read_report(RESULTS / name / "result.json"))
    if chart.sections:
        assert_readable(chart)


def test_readmes_picture_is_readable_and_has_three_panels_at_most() -> None:
    catalog = read_catalog(RESULTS)
    reports = {panel.result: read_report(RESULTS / panel.result / "result.json") for panel in catalog.picture.panels}
    chart = speed_chart(catalog.picture, reports)
    assert_readable(chart)
    assert len(chart.sections[0].panels) <= 3
    with pytest.raises(DocumentationError, match="expected at most 3 panels, found 6"):
        speed_chart(replace(catalog.picture, panels=catalog.picture.panels * 2), reports)


def test_small_bars_beside_large_ones_can_be_seen(toy_report: Report) -> None:
    """Engines that differ by a factor of a thousand, with numbers of many digits and long names."""
    case = toy_report.shapes[0]
    timings = {
        name: replace(timing, p50_ms=0.0123456 * 1000**place)
        for place, (name, timing) in enumerate(zip(case.timings, case.timings.values(), strict=True))
        if place < 3
    }
    report = replace(toy_report, shapes=(replace(case, timings=timings),) * 5)
    chart = report_chart(report, report.shapes, report.singles)
    assert_readable(chart)
    assert any("(log scale)" in axes.get_title(loc="left") for axes in draw_chart(chart).axes)


def test_a_row_without_a_value_is_marked(toy_report: Report) -> None:
    case = toy_report.shapes[0]
    timings = {name: timing for name, timing in case.timings.items() if name != "pytorch"}
    report = replace(toy_report, shapes=(replace(case, timings=timings),))
    axes = draw_chart(report_chart(report, report.shapes, ())).axes[0]
    assert [text.get_text() for text in axes.texts].count(" –") == 1


def test_the_bundles_engines_stand_first_and_stand_out(toy_report: Report) -> None:
    rows = comparison_chart(toy_report).rows
    assert {row.title for row in rows[:2]} == {"bert-export FP32", "bert-export INT8"}
    assert [row.emphasized for row in rows] == [True, True, False, False]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_one_chart_gives_the_same_bytes_twice(toy_report: Report, tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in files:
        save_chart(draw_chart(comparison_chart(toy_report), theme=DARK), path, description="made from x")
    first, second = (path.read_bytes() for path in files)
    assert first == second
    assert b"made from x" in first


def test_a_report_without_timings_has_a_chart(toy_report: Report, tmp_path: Path) -> None:
    empty = replace(toy_report, shapes=(), singles=(), stages=(), offline=(), latency_breakdowns={})
    plot_comparison(empty, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_titles_name_the_model_and_the_machine(toy_report: Report) -> None:
    size = EncoderSize(layers=6, hidden_size=384, intermediate_size=1536)
    chart = comparison_chart(replace(toy_report, encoder=size))
    assert chart.title == "MiniLM-L6 size (6 layers × 384): text-classification"
    assert comparison_chart(replace(toy_report, given_title="Intents")).title == "Intents: text-classification"
    assert chart.subtitle.startswith(machine_title(toy_report.conditions.machine))


def test_unknown_sizes_and_machines_are_stated_in_numbers() -> None:
    assert model_title(EncoderSize(layers=5, hidden_size=320, intermediate_size=9)) == "5 layers × 320"
    assert model_title(None) is None
    assert machine_title({"cpu": "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.00GHz"}) == "Intel Xeon Platinum 8488C"
    assert machine_title({"cpu": "AMD EPYC 9J14", "cpu_model": "25/17/1"}) == "AMD EPYC 9J14 (Zen 4)"


@pytest.mark.parametrize(
    ("name", "precision", "title"),
    [
        ("int8", "int8", "bert-export INT8"),
        ("optimum-o3", "fp32", "optimum O3 FP32"),
        ("openvino-int8-throughput", "int8", "OpenVINO throughput INT8"),
        ("onnxruntime-transformers", "fp32", "onnxruntime.transformers FP32"),
        ("something-new", "bf16", "something new BF16"),
    ],
)
def test_engine_titles(name: str, precision: str, title: str) -> None:
    assert engine_title(name, precision) == title


@pytest.mark.parametrize("name", COMPARISONS)
def test_sizes_of_the_results_agree_with_their_flops(name: str) -> None:
    report = read_report(RESULTS / name / "result.json")
    assert report.encoder is not None
    for case in report.shapes:
        batch, tokens = map(int, case.name.split("x"))
        assert case.flops == report.encoder.flops(batch, tokens)
