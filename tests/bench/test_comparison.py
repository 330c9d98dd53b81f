"""One real comparison over a toy checkpoint: its report, files, chart, Markdown, and the difference of two runs."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_bench import BenchError, Report, Settings
from bert_bench.checkpoints import EncoderSize
from bert_bench.cli import main
from bert_bench.comparison import compare_engines
from bert_bench.comparison_request import BUNDLE_ENGINES, ComparisonRequest
from bert_bench.engines.engine import SPLIT_BATCH_TOKENS
from bert_bench.engines.engine_spec import BATCH_TOKEN_CHOICES
from bert_bench.reports.markdown import report_markdown
from bert_bench.reports.read_report import read_report
from bert_bench.reports.report_diff import compare_reports
from bert_bench.reports.write_report import check_output, write_outputs
from bert_bench.timing_statistics import Timing
from bert_bench.workers.environments import Environment
from bert_runtime import InputError

SETTINGS = Settings(
    shapes=((1, 8), (20, 16)), text_tokens=(14,), num_texts=12, rounds=2, burst_ms=2.0, starts=1, threads=1,
    clients=(2,), clients_s=0.05, clients_rounds=2, gemm_peak_s=0.01, max_examples=20,
)  # fmt: skip
MEASURED = BUNDLE_ENGINES[:2]
"""Engines of the toy bundle, which has no bf16."""

ENGINES = ("pytorch", "pytorch-bf16", "onnxruntime-plain", "optimum-o1", "fastembed")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "dev.jsonl"
    rows = [{"text": f"hello there {i}", "label": ("greeting", "farewell")[i % 2]} for i in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def offline_only() -> Iterator[None]:
    """No environment can be installed, and the processor has no bf16 instructions."""

    def ensure(self: Environment, progress: object) -> None:
        raise BenchError(f"cannot install requirements-{self.name}.txt: no index")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "ensure", ensure)
        patch.setattr("bert_bench.engine_selection.has_instruction_set", lambda name: False)
        patch.setattr("bert_bench.workers.engine_pool._REST_S", 0.0)
        yield


@pytest.fixture(scope="module")
def report(
    classifier_checkpoint: Path, classifier_bundle: Path, labelled: Path, cache: Path, offline_only: None
) -> Report:
    request = ComparisonRequest(
        checkpoint=classifier_checkpoint, bundle=classifier_bundle,
        engines=(*BUNDLE_ENGINES, *ENGINES), labelled=labelled,
        settings=SETTINGS, cache=cache, offline={"messages": [f"hello there {i}" for i in range(40)]},
    )  # fmt: skip
    return compare_engines(request)


@pytest.fixture
def result(report: Report, tmp_path: Path) -> Path:
    """The report's JSON file."""
    write_outputs(report, tmp_path / "run")
    return tmp_path / "run" / "result.json"


def with_slower_int8(report: Report, factor: float) -> Report:
    """Return the report with INT8 slower by a factor."""

    def slow(timing: Timing) -> Timing:
        medians = tuple(factor * median for median in timing.round_medians_ms)
        return replace(timing, p50_ms=factor * timing.p50_ms, round_medians_ms=medians)

    shapes = tuple(
        replace(case, timings={**case.timings, MEASURED[1]: slow(case.timings[MEASURED[1]])}) for case in report.shapes
    )
    return replace(report, shapes=shapes)


def with_rounds(report: Report, rounds: int) -> Report:
    """Return the report with so many equal rounds of each shape."""

    def repeated(timing: Timing) -> Timing:
        return replace(timing, round_medians_ms=(timing.p50_ms,) * rounds)

    shapes = tuple(
        replace(case, timings={name: repeated(timing) for name, timing in case.timings.items()})
        for case in report.shapes
    )
    return replace(report, shapes=shapes)


def test_running_engines_are_measured_and_others_are_listed(report: Report) -> None:
    assert [engine.name for engine in report.engines] == [*MEASURED, "pytorch", "onnxruntime-plain"]
    assert report.not_run.keys() == {"bert-export-bf16", "pytorch-bf16", "optimum-o1", "fastembed"}
    assert report.not_run["bert-export-bf16"] == "the bundle has no such variant"
    assert "no bf16 instructions" in report.not_run["pytorch-bf16"]
    assert "no index" in report.not_run["optimum-o1"]
    assert "does not support text-classification" in report.not_run["fastembed"]
    assert [case.name for case in report.offline] == ["messages"]
    assert report.offline[0].texts == 12
    for case in (*report.shapes, *report.singles, *report.offline):
        assert set(case.timings) == {engine.name for engine in report.engines}


def test_compared_engines_choose_their_batch_size(report: Report) -> None:
    chosen = {engine.name: engine.batch_tokens for engine in report.engines}
    for name in MEASURED:
        assert chosen[name] == {}
    for name in ("pytorch", "onnxruntime-plain"):
        assert chosen[name].keys() == {"20x16", "messages"}
        assert chosen[name]["20x16"] in (320, SPLIT_BATCH_TOKENS)
        assert chosen[name]["messages"] in BATCH_TOKEN_CHOICES
    assert report_markdown(report).count("Padded tokens per batch, chosen by trial.") == 2


def test_fidelity_and_metric_are_measured_on_the_labelled_file(report: Report) -> None:
    found = {engine.name: engine.fidelity for engine in report.engines}
    for fidelity in found.values():
        assert fidelity is not None
        assert (fidelity.reference, fidelity.texts) == ("pytorch", 20)
        assert 0 <= fidelity.metrics["accuracy"] <= 1
    int8 = found[MEASURED[1]]
    assert int8 is not None
    assert int8.max_abs_error > 0


def test_speedups_are_reported_pair_by_pair(report: Report) -> None:
    for case in report.shapes:
        assert set(case.pairs) == set(MEASURED)
        assert set(case.pairs[MEASURED[1]]) == {"pytorch", "onnxruntime-plain"}
        over_plain = case.pairs[MEASURED[1]]["onnxruntime-plain"]
        assert over_plain == case.speedups[MEASURED[1]]


def test_peak_share_is_flops_over_time_and_peak(report: Report) -> None:
    assert {"fp32", "int8"} <= report.peaks_gflops.keys()
    fp32, shape = report.engines[0], report.shapes[0]
    expected = shape.flops / (shape.timings[fp32.name].p50_ms / 1e3) / (report.peaks_gflops["fp32"] * 1e9)
    assert report.peak_share(fp32, shape) == pytest.approx(expected)
    assert 0 < expected < 1
    assert report.peak_share(replace(fp32, precision="fp16"), shape) is None


def test_flops_of_bert_base_match_the_literature() -> None:
    base = EncoderSize(layers=12, hidden_size=768, intermediate_size=3072)
    assert base.flops(1, 128) == pytest.approx(22.35e9, rel=0.001)
    assert base.flops(8, 128) == 8 * base.flops(1, 128)


def test_concurrent_clients_are_measured(report: Report) -> None:
    (concurrency,) = report.concurrency
    assert concurrency.clients == 2
    assert set(concurrency.timings) == {engine.name for engine in report.engines}
    assert not concurrency.failed
    for timing in concurrency.timings.values():
        assert len(timing.texts_per_s_rounds) == 2
        assert 0 < timing.p50_ms <= timing.p99_ms


def test_memory_and_background_load_are_reported(report: Report) -> None:
    for engine in report.engines:
        assert engine.peak_resident_bytes is None or engine.peak_resident_bytes >= engine.resident_bytes
    assert report.background_load is not None
    assert 0 <= report.background_load <= 1


@pytest.mark.slow
def test_checkpoint_is_exported_once_for_two_runs(
    classifier_checkpoint: Path, tmp_path: Path, offline_only: None
) -> None:
    request = ComparisonRequest(
        checkpoint=classifier_checkpoint,
        engines=(MEASURED[0], "onnxruntime-plain"),
        workloads=("single",),
        settings=replace(SETTINGS, rounds=1),
        cache=tmp_path,
    )
    first, second = list[str](), list[str]()
    report = compare_engines(request, first.append)
    assert [stage for stage in first if stage.startswith("making")] == [
        "making bundle",
        "making onnxruntime-plain.onnx",
    ]
    assert compare_engines(request, second.append).bundle == report.bundle
    assert not [stage for stage in second if stage.startswith("making")]
    assert not report.shapes
    assert not report.offline
    assert "End to end" in report_markdown(report)


def test_report_is_read_back_unchanged(report: Report, result: Path) -> None:
    assert read_report(result).to_dict() == report.to_dict()
    assert {path.name for path in result.parent.iterdir()} == {"result.json", "result.md", "result.png"}
    assert (result.parent / "result.png").stat().st_size > 10_000


def test_output_folder_is_new_or_with_force_one_that_holds_a_report_alone(report: Report, result: Path) -> None:
    folder = result.parent
    check_output(folder.with_name("new") / "folder", force=False)
    with pytest.raises(BenchError, match="exists already"):
        check_output(folder, force=False)
    check_output(folder, force=True)
    write_outputs(report, folder)
    (folder / "thesis.tex").touch()
    with pytest.raises(BenchError, match="holds more than a report"):
        check_output(folder, force=True)


def test_markdown_has_every_engine_and_every_reason(report: Report) -> None:
    text = report_markdown(report)
    parts = ("pytorch", "no index", "## Fidelity", "pair by pair", "measured peak", "2 clients", "messages")
    for part in (*MEASURED, *parts):
        assert part in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) >= 8
    assert all(len({line.count(" | ") for line in table.splitlines()}) == 1 for table in tables)


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"format": 2, "bundle": "b"}'])
def test_files_that_are_no_report_are_refused_with_the_reason(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(BenchError, match=r"other\.json: "):
        read_report(path)


def test_report_diff_lists_slower_and_faster_cases(report: Report) -> None:
    report = with_rounds(report, 3)
    found = compare_reports(report, with_slower_int8(report, 3.0))
    assert {(change.engine, change.case) for change in found.slower(2.0)} == {
        (MEASURED[1], "1x8"),
        (MEASURED[1], "20x16"),
    }
    assert not found.faster(1.05)
    assert found.machine_speed == pytest.approx(1.0)
    back = compare_reports(with_slower_int8(report, 3.0), report)
    assert len(back.faster(2.0)) == 2


def test_changes_over_few_rounds_are_uncertain(report: Report) -> None:
    few = with_rounds(report, 2)
    found = compare_reports(few, with_slower_int8(few, 3.0))
    assert found.changes[0].ratio == pytest.approx(3.0)
    assert not found.slower(1.05)


def test_a_bundle_alone_is_compared_with_pytorch(
    classifier_checkpoint: Path, classifier_bundle: Path, cache: Path, offline_only: None
) -> None:
    """Whose outputs are asked for, and which is not timed."""
    request = ComparisonRequest(
        checkpoint=classifier_checkpoint, bundle=classifier_bundle, engines=(MEASURED[1],),
        settings=SETTINGS, cache=cache, workloads=("single",),
    )  # fmt: skip
    (engine,) = compare_engines(request).engines
    assert (engine.name, engine.fidelity is None or engine.fidelity.reference) == (MEASURED[1], "pytorch")


def test_results_of_two_rounds_are_read_as_noisy(report: Report, tmp_path: Path) -> None:
    """Earlier releases took one round alone for noisy."""
    write_outputs(report, tmp_path / "run")
    path = tmp_path / "run/result.json"
    path.write_text(path.read_text().replace('"noisy": true', '"noisy": false'))
    assert all(speedup.noisy for case in read_report(path).shapes for speedup in case.speedups.values())


def test_overlapping_rounds_are_no_certain_change(report: Report) -> None:
    assert not compare_reports(report, report).slower(1.0)


def test_command_line_reports_and_compares(report: Report, tmp_path: Path) -> None:
    report = with_rounds(report, 3)
    write_outputs(report, tmp_path / "run")
    write_outputs(with_slower_int8(report, 3.0), tmp_path / "later")
    result, later = (tmp_path / name / "result.json" for name in ("run", "later"))
    shown = CliRunner().invoke(main, ["report", str(result), "--plot", str(tmp_path / "chart.svg")])
    assert shown.exit_code == 0
    assert shown.output == report_markdown(report)
    assert (tmp_path / "chart.svg").stat().st_size > 10_000
    compared = CliRunner().invoke(main, ["compare", str(result), str(later), "--least", "50"])
    assert compared.exit_code == 0
    assert "Slower: 2" in compared.output
    assert "Faster: 0" in compared.output
    failed = CliRunner().invoke(main, ["compare", str(result), str(later), "--least", "50", "--fail"])
    assert failed.exit_code == 1
    without = replace(report, shapes=report.shapes[1:], engines=report.engines[:-1])
    write_outputs(without, tmp_path / "less")
    gone = CliRunner().invoke(main, ["compare", str(result), str(tmp_path / "less/result.json"), "--fail"])
    assert (gone.exit_code, "expected what was timed before, found no onnxruntime-plain" in gone.stderr) == (1, True)
    assert f"Not timed again: {MEASURED[0]}: {report.shapes[0].name}" in gone.output
    longer = replace(report.shapes[0], tokens={**report.shapes[0].tokens, "max": 99})
    write_outputs(replace(report, shapes=(longer, *report.shapes[1:])), tmp_path / "others")
    assert compare_reports(report, read_report(tmp_path / "others/result.json")).missing == tuple(
        f"{name}: {longer.name}" for name in longer.timings
    )
    as_json = CliRunner().invoke(main, ["compare", str(result), str(later), "--json"])
    assert json.loads(as_json.output)["changes"][0]["engine"] == MEASURED[1]


@pytest.mark.parametrize("shapes", ["8", "8x", "0x16", "1x16,eight"])
def test_malformed_shapes_are_usage_errors(shapes: str) -> None:
    failed = CliRunner().invoke(main, ["run", "anything", "--shapes", shapes])
    assert failed.exit_code == 2
    assert f"expected shapes such as 1x16,8x128, found {shapes.split(',')[-1]}" in failed.stderr


def test_shapes_and_rounds_are_passed_to_the_comparison(
    classifier_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    requests: list[ComparisonRequest] = []

    def compare(request: ComparisonRequest, progress: object) -> Report:
        requests.append(request)
        return report

    monkeypatch.setattr("bert_bench.comparison.compare_engines", compare)
    shown = CliRunner().invoke(main, ["run", str(classifier_checkpoint), "--shapes", "1x16, 8x128", "--rounds", "2"])
    assert shown.exit_code == 0
    assert (requests[0].settings.shapes, requests[0].settings.rounds) == (((1, 16), (8, 128)), 2)


def test_list_prints_the_engines() -> None:
    shown = CliRunner().invoke(main, ["run", "--list"])
    assert shown.exit_code == 0
    assert {"openvino-int8", "ctranslate2-int8", *BUNDLE_ENGINES} <= set(shown.output.split())


def test_unknown_engines_and_workloads_are_errors(classifier_checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"unknown engine tensorrt; .*unknown workload nothing; "):
        ComparisonRequest(checkpoint=classifier_checkpoint, engines=("tensorrt",), workloads=("nothing",))
    failed = CliRunner().invoke(main, ["run", str(classifier_checkpoint), "--engines", "tensorrt"])
    assert failed.exit_code == 1
    assert "unknown engine tensorrt" in failed.output
