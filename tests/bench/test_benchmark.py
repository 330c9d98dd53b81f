"""A whole run over a toy bundle. Speeds are not judged: only that all of it is there and belongs together."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bert_bench import BenchError, Report, Settings, bench_bundle, report_table
from bert_bench.conditions import arguments
from bert_bench.fidelity import FP32_TOLERANCE
from bert_runtime import BundleError
from bert_runtime.errors import MissingExtraError

ENGINES = ["fp32", "int8", "pytorch", "onnxruntime-plain"]


@pytest.fixture
def lonely_bundle(classifier_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose checkpoint is gone."""
    copy = tmp_path / "bundle"
    shutil.copytree(classifier_bundle, copy)
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest["source"]["path"] = str(tmp_path / "gone")
    (copy / "bundle.json").write_text(json.dumps(manifest))
    return copy


@pytest.fixture
def one_round(toy_settings: Settings) -> Settings:
    return replace(toy_settings, shapes=((1, 8),), text_tokens=(14,), rounds=1, num_texts=4)


def test_every_engine_runs_in_a_process_of_its_own(toy_report: Report) -> None:
    assert [each.name for each in toy_report.engines] == ENGINES
    assert not toy_report.not_run
    pids = {each.pid for each in toy_report.engines}
    assert len(pids) == len(ENGINES)
    assert os.getpid() not in pids
    assert not any(map(psutil.pid_exists, pids))


def test_every_case_was_measured_on_every_engine_in_every_round(toy_report: Report) -> None:
    assert [case.name for case in toy_report.shapes] == ["1x8", "2x16"]
    assert [case.name for case in toy_report.singles] == ["text14", "text40"]
    for case in (*toy_report.shapes, *toy_report.singles, toy_report.offline[0]):
        assert list(case.timings) == ENGINES
        assert list(case.speedups) == ENGINES
        for timing in case.timings.values():
            assert len(timing.round_medians_ms) == 3
            assert timing.samples >= 3
            assert 0 < timing.p50_ms <= timing.p90_ms <= timing.p99_ms


def test_speedups_are_over_the_plain_export(toy_report: Report) -> None:
    assert toy_report.baseline == "onnxruntime-plain"
    for case in (*toy_report.shapes, *toy_report.singles, toy_report.offline[0]):
        assert case.speedups["onnxruntime-plain"].median == 1.0
        assert all(0 < each.p10 <= each.median <= each.p90 for each in case.speedups.values())


def test_outputs_were_compared_in_the_same_run(toy_report: Report) -> None:
    fidelity = {each.name: each.fidelity for each in toy_report.engines}
    assert all(each is not None and each.reference == "pytorch" for each in fidelity.values())
    errors = {name: each.max_abs_error for name, each in fidelity.items() if each is not None}
    assert errors["pytorch"] == 0
    assert max(errors["fp32"], errors["onnxruntime-plain"]) <= FP32_TOLERANCE
    assert errors["int8"] > 0
    assert fidelity["fp32"] is not None
    assert fidelity["fp32"].agreement["label_agreement"] == 1.0


def test_the_bundles_engines_say_where_the_time_of_a_call_goes(toy_report: Report) -> None:
    assert list(toy_report.splits) == ["fp32", "int8"]
    for name, split in toy_report.splits.items():
        assert split.end_to_end_ms == toy_report.singles[0].timings[name].p50_ms
        assert split.tokenization_ms + split.model_ms + split.wrapper_ms == pytest.approx(split.end_to_end_ms)
        assert split.tokens == toy_report.singles[0].tokens["total"] <= 14


def test_loading_memory_and_size_are_reported(toy_report: Report, classifier_bundle: Path) -> None:
    for engine in toy_report.engines:
        assert 0 < engine.ready_s < engine.first_answer_s
        assert engine.resident_bytes > 2**20
        assert engine.size_bytes > 0
    fp32 = toy_report.engines[0]
    files = [classifier_bundle / f"model.fp32.onnx{kind}" for kind in ("", ".data")]
    assert fp32.size_bytes == sum(each.stat().st_size for each in files)


def test_the_conditions_are_stated(toy_report: Report) -> None:
    conditions = toy_report.conditions
    assert conditions.threads == 1
    assert {"onnxruntime", "torch", "numpy", "tokenizers"} <= set(conditions.versions)
    assert conditions.machine["cores"] >= 1
    assert conditions.argv
    assert "interleaved" in toy_report.method or "in turn" in toy_report.method


def test_the_command_holds_no_places_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bert-bench", "run", str(tmp_path / "a" / "bundle"), "../data", "--threads", "2"])
    assert arguments() == ("run", "a/bundle", "../data", "--threads", "2")


def test_what_was_skipped_is_noted(toy_report: Report) -> None:
    assert any("1x128" in note for note in toy_report.notes)
    assert any("texts of 200 tokens" in note for note in toy_report.notes)


@pytest.mark.usefixtures("toy_report")
def test_progress_tells_the_stages(toy_stages: list[str]) -> None:
    assert [f"loading {name}" for name in ENGINES] == [each for each in toy_stages if each.startswith("loading")]
    assert toy_stages[-1] == "round 3 of 3"


def test_an_engine_that_cannot_run_is_listed_with_its_reason(lonely_bundle: Path, one_round: Settings) -> None:
    path = lonely_bundle / "model.int8.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    report = bench_bundle(lonely_bundle, settings=one_round)
    assert [each.name for each in report.engines] == ["fp32"]
    assert report.baseline == "fp32"
    assert "expected sha256" in report.not_run["int8"]
    for peer in ("pytorch", "onnxruntime-plain"):
        assert "--checkpoint" in report.not_run[peer]
    assert "Not run: int8: " in " ".join(report_table(report).split())
    json.dumps(report.to_dict(), allow_nan=False)


def test_given_texts_are_the_workload(lonely_bundle: Path, one_round: Settings) -> None:
    report = bench_bundle(lonely_bundle, texts=["hello", "lost my card"], settings=one_round)
    assert report.offline[0].texts == 2
    assert report.offline[0].tokens["max"] == 5


def test_no_engine_at_all_is_an_error(lonely_bundle: Path, one_round: Settings) -> None:
    for path in lonely_bundle.glob("*.onnx"):
        path.unlink()
    with pytest.raises(BenchError, match=r"no engine could be measured: .*fp32: .*int8: "):
        bench_bundle(lonely_bundle, settings=one_round)


def test_a_checkpoint_that_is_named_must_be_one(lonely_bundle: Path, one_round: Settings, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="expected a checkpoint"):
        bench_bundle(lonely_bundle, checkpoint=tmp_path / "nothing", settings=one_round)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected a bundle"):
        bench_bundle(tmp_path)


def test_without_psutil_the_extra_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingExtraError, match=r"bert-export\[bench\]"):
        bench_bundle(tmp_path)
