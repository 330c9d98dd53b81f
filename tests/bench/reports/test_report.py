"""A report's JSON, text table and chart."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bert_bench import Report, plot_report, report_table
from bert_runtime.errors import MissingExtraError
from bert_runtime.timing import format_ms


def test_to_dict_is_json_with_every_number(toy_report: Report) -> None:
    values = json.loads(json.dumps(toy_report.to_dict(), allow_nan=False))
    assert values["shapes"][0]["name"] == "1x8"
    assert values["shapes"][0]["timings"]["int8"]["p50_ms"] == toy_report.shapes[0].timings["int8"].p50_ms
    assert len(values["offline"][0]["timings"]["fp32"]["round_medians_ms"]) == 3
    assert values["offline"][0]["speedups"]["fp32"]["median"] > 0
    assert values["engines"][1]["fidelity"]["agreement"]["label_agreement"] <= 1
    assert values["throughput_texts_per_s"]["mixed"]["int8"] == toy_report.texts_per_s("int8")
    assert values["conditions"]["versions"]["onnxruntime"]
    assert values["settings"]["rounds"] == 3
    assert set(values["shapes"][0]["noisy"]) <= {"fp32", "int8", "pytorch"}


def test_non_finite_numbers_become_null(toy_report: Report) -> None:
    assert replace(toy_report, duration_s=float("nan")).to_dict()["duration_s"] is None


def test_throughput_is_texts_over_the_median_time(toy_report: Report) -> None:
    assert toy_report.texts_per_s("fp32") == pytest.approx(12e3 / toy_report.offline[0].timings["fp32"].p50_ms)


def test_table_has_a_column_per_engine_and_a_row_per_case(toy_report: Report) -> None:
    blocks = report_table(toy_report).split("\n\n")
    model, single = (block.splitlines() for block in blocks[1:3])
    for lines, rows in ((model, ["1x8", "2x16"]), (single, [str(case.tokens["total"]) for case in toy_report.singles])):
        assert lines[1].split()[-4:] == ["fp32", "int8", "pytorch", "onnxruntime-plain"]
        assert [line.split()[0] for line in lines[2:]] == rows
        assert all(line.count("x") >= 3 for line in lines[2:])
    assert format_ms(toy_report.shapes[0].timings["pytorch"].p50_ms) in model[2]


def test_table_states_fidelity_throughput_and_method(toy_report: Report) -> None:
    text = report_table(toy_report)
    for part in ("compared with pytorch", "label agreement", "texts/s", "memory MiB", "Skipped 1x128", "3 rounds"):
        assert part in text


def test_noisy_speedups_are_marked_and_explained(toy_report: Report) -> None:
    case = toy_report.shapes[0]
    loud = replace(case, speedups={name: replace(speedup, noisy=True) for name, speedup in case.speedups.items()})
    quiet = replace(case, speedups={name: replace(speedup, noisy=False) for name, speedup in case.speedups.items()})
    others = {
        "singles": (), "stages": (), "latency_breakdowns": {},
        "offline": (replace(toy_report.offline[0], speedups=quiet.speedups),),
    }  # fmt: skip
    assert "x~" in report_table(replace(toy_report, shapes=(loud,), **others))
    assert "Noisy (~)" in report_table(replace(toy_report, shapes=(loud,), **others))
    assert "~" not in report_table(replace(toy_report, shapes=(quiet,), **others))


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.012"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234")]
)
def test_milliseconds_have_three_significant_digits(value: float, text: str) -> None:
    assert format_ms(value) == text


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_chart_format_follows_the_suffix(toy_report: Report, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"chart{suffix}"
    plot_report(toy_report, path)
    start = path.read_bytes()[:4]
    assert start == (b"\x89PNG" if suffix == ".png" else b"<?xm")


def test_chart_without_compared_engines(toy_report: Report, tmp_path: Path) -> None:
    alone = replace(toy_report, engines=toy_report.engines[:2])
    plot_report(alone, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000


def test_missing_matplotlib_names_the_extra(
    toy_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[bench\]"):
        plot_report(toy_report, tmp_path / "chart.png")
