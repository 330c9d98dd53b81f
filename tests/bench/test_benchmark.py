"""A whole run over a toy bundle: its parts and their consistency, not its speeds."""

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
def bundle_without_source(classifier_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose source checkpoint is gone."""
    copy = tmp_path / "bundle"
    shutil.copytree(classifier_bundle, copy)
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest["source"]["path"] = str(tmp_path / "gone")
    del manifest["manifest_sha256"]
    (copy / "bundle.json").write_text(json.dumps(manifest))
    return copy


@pytest.fixture
def one_round(toy_settings: Settings) -> Settings:
    return replace(toy_settings, shapes=((1, 8),), text_tokens=(14,), rounds=1, num_texts=4)


def test_every_engine_runs_in_its_own_process(toy_report: Report) -> None:
    assert [engine.name for engine in toy_report.engines] == ENGINES
    assert not toy_report.not_run
    pids = {engine.pid for engine in toy_report.engines}
    assert len(pids) == len(ENGINES)
    assert os.getpid() not in pids
    assert not any(map(psutil.pid_exists, pids))


def test_every_case_is_measured_on_every_engine_in_every_round(toy_report: Report) -> None:
    assert [case.name for case in toy_report.shapes] == ["1x8", "2x16"]
    assert [case.name for case in toy_report.singles] == ["text14", "text40"]
    for case in (*toy_report.shapes, *toy_report.singles, toy_report.offline[0]):
        assert list(case.timings) == ENGINES
        assert list(case.speedups) == ENGINES
        for timing in case.timings.values():
            assert len(timing.round_medians_ms) == 3
            assert timing.samples >= 3
            assert 0 < timing.p50_ms <= timing.p90_ms <= timing.p99_ms


def test_speedups_are_relative_to_the_plain_export(toy_report: Report) -> None:
    assert toy_report.baseline == "onnxruntime-plain"
    for case in (*toy_report.shapes, *toy_report.singles, toy_report.offline[0]):
        assert case.speedups["onnxruntime-plain"].median == 1.0
        assert all(0 < speedup.p10 <= speedup.median <= speedup.p90 for speedup in case.speedups.values())


def test_outputs_are_compared_in_the_same_run(toy_report: Report) -> None:
    fidelity = {engine.name: engine.fidelity for engine in toy_report.engines}
    assert all(found is not None and found.reference == "pytorch" for found in fidelity.values())
    errors = {name: found.max_abs_error for name, found in fidelity.items() if found is not None}
    assert errors["pytorch"] == 0
    assert max(errors["fp32"], errors["onnxruntime-plain"]) <= FP32_TOLERANCE
    assert errors["int8"] > 0
    assert fidelity["fp32"] is not None
    assert fidelity["fp32"].agreement["label_agreement"] == 1.0


def test_latency_breakdown_of_the_bundles_engines_adds_up(toy_report: Report) -> None:
    assert list(toy_report.latency_breakdowns) == ["fp32", "int8"]
    for name, breakdown in toy_report.latency_breakdowns.items():
        assert breakdown.end_to_end_ms == toy_report.singles[0].timings[name].p50_ms
        assert breakdown.tokenization_ms + breakdown.model_ms + breakdown.wrapper_ms == pytest.approx(
            breakdown.end_to_end_ms
        )
        assert breakdown.tokens == toy_report.singles[0].tokens["total"] <= 14


def test_start_times_memory_and_size_are_reported(toy_report: Report, classifier_bundle: Path) -> None:
    for engine in toy_report.engines:
        assert 0 < engine.ready_s < engine.first_prediction_s
        assert engine.resident_bytes > 2**20
        assert engine.size_bytes > 0
    fp32 = toy_report.engines[0]
    files = [classifier_bundle / f"model.fp32.onnx{suffix}" for suffix in ("", ".data")]
    assert fp32.size_bytes == sum(path.stat().st_size for path in files)


def test_report_states_conditions_and_method(toy_report: Report) -> None:
    conditions = toy_report.conditions
    assert conditions.threads == 1
    assert {"onnxruntime", "torch", "numpy", "tokenizers"} <= set(conditions.versions)
    assert conditions.machine["cores"] >= 1
    assert conditions.argv
    assert "interleaved" in toy_report.method


def test_absolute_paths_in_the_command_become_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bert-bench", "run", str(tmp_path / "a" / "bundle"), "../data", "--threads", "2"])
    assert arguments() == ("run", "a/bundle", "../data", "--threads", "2")


def test_skipped_shapes_and_texts_are_noted(toy_report: Report) -> None:
    assert any("1x128" in note for note in toy_report.notes)
    assert any("texts of 200 tokens" in note for note in toy_report.notes)


@pytest.mark.usefixtures("toy_report")
def test_progress_reports_loading_and_rounds(toy_stages: list[str]) -> None:
    assert [f"loading {name}" for name in ENGINES] == [stage for stage in toy_stages if stage.startswith("loading")]
    assert toy_stages[-1] == "round 3 of 3"


def test_engines_that_cannot_run_are_listed_with_the_reason(bundle_without_source: Path, one_round: Settings) -> None:
    path = bundle_without_source / "model.int8.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    report = bench_bundle(bundle_without_source, settings=one_round)
    assert [engine.name for engine in report.engines] == ["fp32"]
    assert report.baseline == "fp32"
    assert "expected sha256" in report.not_run["int8"]
    for name in ("pytorch", "onnxruntime-plain"):
        assert "--checkpoint" in report.not_run[name]
    assert "Not run: int8: " in " ".join(report_table(report).split())
    json.dumps(report.to_dict(), allow_nan=False)


def test_given_texts_replace_the_synthetic_workload(bundle_without_source: Path, one_round: Settings) -> None:
    report = bench_bundle(bundle_without_source, texts=["hello", "lost my card"], settings=one_round)
    assert report.offline[0].texts == 2
    assert report.offline[0].tokens["max"] == 5


def test_no_running_engine_is_an_error(bundle_without_source: Path, one_round: Settings) -> None:
    for path in bundle_without_source.glob("*.onnx"):
        path.unlink()
    with pytest.raises(BenchError, match=r"no engine could be measured: .*fp32: .*int8: "):
        bench_bundle(bundle_without_source, settings=one_round)


def test_given_checkpoint_that_is_none_is_an_error(
    bundle_without_source: Path, one_round: Settings, tmp_path: Path
) -> None:
    with pytest.raises(BenchError, match="expected a checkpoint"):
        bench_bundle(bundle_without_source, checkpoint=tmp_path / "nothing", settings=one_round)


def test_folder_that_is_no_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected a bundle"):
        bench_bundle(tmp_path)


def test_missing_psutil_names_the_extra_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[bench\]"):
        bench_bundle(tmp_path)
