"""Tuning: the configurations that are tried, and that `load` follows the fastest. Times are faked or not asserted."""

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from bert_runtime import BundleError, InputError, Manifest, load, tune
from bert_runtime.cpu.session import Session
from bert_runtime.plan import TUNING_NAME, Plan, read_tuning, tuned_plan
from bert_runtime.tasks import task_from_dict
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch
from bert_runtime.tuner import _typical_lengths

CopyBundle = Any


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the configurations that are tried independent of the processor."""
    monkeypatch.setattr("bert_runtime.tuner.kernel_names", tuple)


@pytest.fixture
def bundle(classifier_bundle: Path, copy_bundle: CopyBundle) -> Path:
    copied = copy_bundle(classifier_bundle, lambda manifest: manifest.update(default_precision="int8"))
    return Path(copied)


class Clock:
    """Replaces `time.perf_counter`: each batch takes as long as `cost` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: Any) -> None:
        self.now = 0.0

        lock = Lock()  # parallel batches take as long as one after another

        def run(session: Session, batch: Batch) -> None:
            with lock:
                self.now += cost(session, batch)

        monkeypatch.setattr(Session, "run", run)
        monkeypatch.setattr("bert_runtime.tuner.time.perf_counter", lambda: self.now)


def test_the_fastest_configuration_is_chosen(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[Session, bool] = {}
    make = Session.__init__

    def record(self: Session, *arguments: Any, int8: bool = False, kernels: bool = True, mapped: bool = True) -> None:
        make(self, *arguments, int8=int8, kernels=kernels, mapped=mapped)
        opened[self] = int8

    monkeypatch.setattr(Session, "__init__", record)

    # FP32 is faster; one input is fastest on two threads, many as four parallel batches of 512 tokens.
    def cost(session: Session, batch: Batch) -> float:
        if batch.input_ids.shape in ((1, 16), (1, 64)):
            seconds = {1: 3.0, 2: 1.0, 4: 1.5}[session.threads]
        else:
            seconds = session.threads * (abs(batch.input_ids.size - 500) + 200)
        return seconds * (2e-5 if opened[session] else 1e-5)

    Clock(monkeypatch, cost)
    monkeypatch.setattr("bert_runtime.tuner.available_cores", lambda: 4)
    tuning = tune(bundle, rounds=2)
    assert tuning.plan == Plan(precision="fp32", threads=2, inter_threads=4, max_batch_tokens=512)
    assert set(tuning.measured["one_input_ms"]) == {
        "fp32, 4 threads", "int8, 4 threads", "fp32, 1 thread", "fp32, 2 threads",
    }  # fmt: skip
    throughputs = tuning.measured["sequences_per_second"]
    assert len(throughputs) == 10
    assert max(throughputs, key=lambda config: throughputs[config]) == "4 batches in parallel, 512 tokens"


@pytest.mark.parametrize("faster", [True, False], ids=["with", "without"])
def test_int8_runs_with_native_kernels_only_where_they_are_faster(
    faster: bool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[Session, tuple[bool, bool]] = {}
    make = Session.__init__

    def record(self: Session, *arguments: Any, int8: bool = False, kernels: bool = True, mapped: bool = True) -> None:
        make(self, *arguments, int8=int8, kernels=kernels, mapped=mapped)
        opened[self] = (int8, kernels)

    def cost(session: Session, batch: Batch) -> float:
        int8, kernels = opened[session]
        return batch.input_ids.size * ((1.0 if kernels == faster else 1.2) if int8 else 2.0)

    monkeypatch.setattr(Session, "__init__", record)
    monkeypatch.setattr("bert_runtime.tuner.kernel_names", lambda: ("QuantizedLinear",))
    monkeypatch.setattr("bert_runtime.tuner.available_cores", lambda: 1)
    Clock(monkeypatch, cost)
    tuning = tune(bundle, rounds=2)
    assert (tuning.plan.precision, tuning.plan.kernels) == ("int8", faster)
    assert set(tuning.measured["one_input_ms"]) == {
        "fp32, 1 thread", "int8, 1 thread", "int8, 1 thread, without native kernels",
    }  # fmt: skip
    opened.clear()
    load(bundle)
    assert [*opened.values()] == [(True, faster)]
    load(bundle, kernels=not faster)
    assert [*opened.values()][1:] == [(True, not faster)]


def test_tuning_with_real_times(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    monkeypatch.setattr("bert_runtime.tuner.available_cores", lambda: 2)
    tuning = tune(bundle, inputs=["hello there", "where is my card?"], rounds=1, progress=stages.append)
    assert read_tuning(bundle) == [tuning]
    assert tuned_plan(bundle) == tuning.plan
    assert stages == ["timing one input in fp32 and int8", "timing one input on 1, 2 threads", "timing many inputs"]
    for times in tuning.measured["one_input_ms"].values():
        assert list(times) == ["1x16", "1x64"]  # the bundle's max_tokens is 64
        assert all(value > 0 for value in times.values())
    assert all(value > 0 for value in tuning.measured["sequences_per_second"].values())
    assert tuning.measured["sequences"]["most"] <= 10
    assert tuning.measured["sequences"]["number"] == 2
    model = load(bundle)
    assert model.variant is not None
    assert (model.variant.precision, model.max_batch_tokens) == (tuning.plan.precision, tuning.plan.max_batch_tokens)


@pytest.mark.parametrize(("faithful", "tried"), [(True, {"fp32", "int8"}), (False, {"fp32"})])
def test_int8_takes_part_if_it_is_faithful_even_where_the_export_found_it_slower(
    faithful: bool,
    tried: set[str],
    classifier_bundle: Path,
    copy_bundle: CopyBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prefer_fp32(manifest: dict[str, Any]) -> None:
        manifest["default_precision"] = "fp32"
        for variant in manifest["variants"]:
            variant["faithful"] = faithful or variant["precision"] == "fp32"

    bundle = copy_bundle(classifier_bundle, prefer_fp32)
    monkeypatch.setattr("bert_runtime.tuner.available_cores", lambda: 1)
    tuning = tune(bundle, rounds=1)
    assert tuning.plan.precision in tried
    assert tuning.plan.inter_threads == 1
    assert set(tuning.measured["one_input_ms"]) == {f"{name}, 1 thread" for name in tried}


def test_errors_leave_no_tuning_file(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="input 1: the text holds a lone surrogate"):
        tune(bundle, inputs=["hello", "\udcff"])
    with pytest.raises(InputError, match="expected inputs to tune with, found none"):
        tune(bundle, inputs=[])
    with pytest.raises(BundleError, match="expected a bundle"):
        tune(tmp_path / "nothing")
    with monkeypatch.context() as patch, pytest.raises(BundleError, match="cannot be written"):
        patch.setattr("bert_runtime.plan.temp_path", lambda path: path / "no folder")
        tune(bundle, progress=lambda stage: pytest.fail(f"measured first: {stage}"))
    (bundle / "model.fp32.onnx").write_bytes(b"short")
    with pytest.raises(BundleError, match=r"expected .* bytes, found 5"):
        tune(bundle)
    assert not (bundle / TUNING_NAME).exists()


def test_tasks_with_windows_are_tuned_for_full_windows(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    task = task_from_dict({"name": "replaced-token-detection"})
    assert set(_typical_lengths(replace(manifest, task=task))) == {64}
    assert len(set(_typical_lengths(manifest))) > 10


def test_a_new_export_voids_the_measurement(bundle: Path, classifier_bundle: Path) -> None:
    tune(bundle, rounds=1)
    shutil.copyfile(classifier_bundle / "bundle.json", bundle / "bundle.json")
    assert tuned_plan(bundle) is None


def test_interleaved_calls_take_turns() -> None:
    order: list[str] = []
    found = interleaved_medians({name: lambda name=name: order.append(name) for name in "ab"}, 2, warm=False)
    assert order == ["a", "b", "a", "b"]
    assert set(found) == {"a", "b"}
    interleaved_medians({"c": lambda: order.append("c")}, 1)
    assert order[4:] == ["c", "c"]
