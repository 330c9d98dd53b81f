"""Execution plans: the defaults, the measured plan of a machine, and arguments that override it."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import BundleError, InputError, Manifest, load, machine
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.plan import (
    TUNING_NAME,
    Plan,
    check_writable,
    default_plan,
    read_tuning,
    tuned_plan,
    whole_batch_tokens,
    write_tuning,
)
from bert_runtime.variant_choice import cpu_plan

MEASURED = Plan(precision="fp32", threads=2, inter_threads=2, max_batch_tokens=128)


@pytest.fixture
def bundle(classifier_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier_bundle, tmp_path / "bundle"))


@pytest.fixture
def tuned(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("bert_runtime.plan.available_cores", lambda: 2)
    write_tuning(bundle, MEASURED, {"one_input_ms": {"fp32, 2 threads": {"1x16": 0.5}}})
    return bundle


def plan_for(bundle: Path, **arguments: Any) -> Plan:
    return cpu_plan(Manifest.read(bundle), tuned_plan(bundle), **arguments)


@pytest.mark.parametrize(
    ("threads", "inter_threads", "expected"),
    [
        (4, None, (4, 4, 256)),
        (1, None, (1, 1, 256)),
        (4, 1, (4, 1, 1024)),
        (4, 2, (4, 2, 256)),
    ],
)
def test_default_plan_runs_one_batch_per_thread(
    threads: int, inter_threads: int | None, expected: tuple[int, ...]
) -> None:
    plan = default_plan("int8", threads, inter_threads)
    assert (plan.threads, plan.inter_threads, plan.max_batch_tokens) == expected


@pytest.mark.parametrize(("threads", "expected"), [(1, 0), (2, 1024), (3, 0)])
def test_few_tokens_are_one_batch_on_two_threads(
    threads: int, expected: int, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = Manifest.read(bundle).variant("int8")
    plan = default_plan("int8", threads)
    monkeypatch.setattr("bert_runtime.plan.kernel_names", lambda: ("EmbedNorm",))
    assert whole_batch_tokens(variant, plan) == expected
    assert whole_batch_tokens(replace(variant, fusions={}), plan) == 0
    assert whole_batch_tokens(variant, replace(plan, kernels=False)) == 0
    assert whole_batch_tokens(variant, replace(plan, max_batch_tokens=512)) == 0
    assert load(bundle, precision="int8", threads=threads).whole_batch_tokens == expected
    assert load(bundle, precision="int8", threads=threads, max_batch_tokens=256).whole_batch_tokens == 0
    monkeypatch.setattr("bert_runtime.plan.kernel_names", lambda: ())
    assert whole_batch_tokens(variant, plan) == 0


def test_bundles_without_a_measurement_get_the_default_plan(bundle: Path) -> None:
    assert tuned_plan(bundle) is None
    assert plan_for(bundle) == default_plan(Manifest.read(bundle).default_precision)
    assert plan_for(bundle, threads=3).inter_threads == 3
    assert plan_for(bundle, threads=3, inter_threads=2).inter_threads == 2


def test_load_follows_the_measured_plan(tuned: Path) -> None:
    assert plan_for(tuned) == MEASURED == tuned_plan(tuned)
    model = load(tuned)
    assert (model.session.threads, model.max_batch_tokens) == (2, 128)
    assert model.parallel_sessions is not None
    assert model.parallel_sessions.inter_threads == 2
    assert model.variant is not None
    assert model.variant.precision == "fp32"


def test_threads_that_are_named_bound_the_measured_parallel_batches(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread is one core, also where two batches of one thread each measured fastest."""
    monkeypatch.setattr("bert_runtime.variant_choice.available_cores", lambda: 2)
    measured = Plan(precision="fp32", threads=1, inter_threads=2, max_batch_tokens=128)
    manifest = Manifest.read(bundle)
    assert cpu_plan(manifest, measured) == measured
    assert cpu_plan(manifest, measured, threads=1) == default_plan("fp32", 1)
    assert cpu_plan(manifest, measured, threads=1).inter_threads == 1


def test_arguments_override_the_measured_plan(tuned: Path) -> None:
    assert plan_for(tuned, precision="int8") == default_plan("int8")
    assert plan_for(tuned, threads=1) == default_plan("fp32", 1)
    assert plan_for(tuned, inter_threads=1) == default_plan("fp32", None, 1)
    assert plan_for(tuned, threads=2) == MEASURED
    assert plan_for(tuned, precision="fp32", max_batch_tokens=64).max_batch_tokens == 64
    assert plan_for(tuned, max_batch_tokens=64).inter_threads == MEASURED.inter_threads


@pytest.mark.parametrize("key", ["cpu", "cpu_model", "cores", "instruction_sets"])
def test_a_measurement_of_another_machine_is_ignored(tuned: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    other = machine.describe() | {key: ["other"]}
    with monkeypatch.context() as patch:
        patch.setattr("bert_runtime.plan.describe", lambda: other)
        assert tuned_plan(tuned) is None
        here = Plan(precision="int8", threads=1, max_batch_tokens=64)
        write_tuning(tuned, here, {})
        assert tuned_plan(tuned) == here
    assert tuned_plan(tuned) == MEASURED
    assert len(read_tuning(tuned)) == 2


def test_a_measurement_with_another_onnxruntime_is_ignored(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_runtime.plan.installed_versions", lambda names: {"onnxruntime": "99"})
    assert tuned_plan(tuned) is None


def test_measuring_again_replaces_the_measurement(tuned: Path) -> None:
    again = Plan(precision="int8", threads=1, max_batch_tokens=64)
    write_tuning(tuned, again, {})
    assert [tuning.plan for tuning in read_tuning(tuned)] == [again]


def test_a_measurement_of_another_bundle_is_ignored(tuned: Path) -> None:
    manifest = tuned / "bundle.json"
    manifest.write_text(manifest.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert tuned_plan(tuned) is None


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tuning: tuning["plan"].update({key: value})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("threads", "two"), "tunings[0].plan.threads: expected a whole number, found 'two'"),
        (_set("threads", 0), "threads must be a whole number in 1 to 1024, found 0"),
        (_set("max_batch_tokens", 0), "max_batch_tokens must be a whole number in 1 to 1,048,576, found 0"),
        (
            _set("max_batch_tokens", 10**9),
            "max_batch_tokens must be a whole number in 1 to 1,048,576, found 1000000000",
        ),
        (lambda tuning: tuning.pop("plan"), "tunings[0]: missing 'plan'"),
    ],
)
def test_a_damaged_tuning_file_is_logged_and_ignored(
    tuned: Path, caplog: pytest.LogCaptureFixture, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tuned / TUNING_NAME
    values = json.loads(path.read_text(encoding="utf-8"))
    edit(values["tunings"][0])
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(BundleError, match=re.escape(message)):
        read_tuning(tuned)
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        assert load(tuned)("hello").label
    assert message in caplog.text
    assert "tune the bundle again" in caplog.text
    write_tuning(tuned, MEASURED, {})
    assert tuned_plan(tuned) == MEASURED


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("threads", 900, "expected threads of at most 2, the cores, found 900"),
        ("inter_threads", 3, "expected inter_threads of at most 2, the cores, found 3"),
        ("precision", "int3", "the bundle has no variant 'int3'; it has fp32, int8"),
    ],
)
def test_a_plan_that_no_measurement_gave_is_logged_and_ignored(
    tuned: Path, caplog: pytest.LogCaptureFixture, key: str, value: Any, message: str
) -> None:
    path = tuned / TUNING_NAME
    values = json.loads(path.read_text(encoding="utf-8"))
    _set(key, value)(values["tunings"][0])
    changed = json.dumps(values)
    path.write_text(changed, encoding="utf-8")
    with caplog.at_level(logging.WARNING, "bert_runtime"):
        assert load(tuned)("hello").label
    assert message in caplog.text
    assert path.read_text(encoding="utf-8") == changed


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format_version": 2}', "\udcff", '{"format_version": 1, "tunings": null}']
)
def test_files_that_are_not_tunings(bundle: Path, text: str) -> None:
    (bundle / TUNING_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BundleError, match=TUNING_NAME):
        read_tuning(bundle)
    assert tuned_plan(bundle) is None


def test_checking_leaves_what_another_process_writes_alone(bundle: Path) -> None:
    with atomic_write(bundle / TUNING_NAME) as stream:
        check_writable(bundle)
        stream.write("whole")
    assert (bundle / TUNING_NAME).read_text() == "whole"
    assert not list(bundle.glob(".*"))


def test_writing_to_a_read_only_bundle_is_an_error(bundle: Path) -> None:
    (bundle / TUNING_NAME).mkdir()
    with pytest.raises(BundleError, match=r"cannot be written: .*; tune a copy of the bundle"):
        write_tuning(bundle, MEASURED, {})


@pytest.mark.parametrize("name", ["threads", "inter_threads"])
@pytest.mark.parametrize("value", [0, -1, 1025])
def test_thread_counts_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be a whole number in 1 to 1024, found {value}"):
        Plan(**{"precision": "fp32", "threads": 2, "max_batch_tokens": 1, name: value})


def test_inter_threads_lies_in_one_to_threads(classifier_bundle: Path) -> None:
    for inter_threads in (0, 3):
        with pytest.raises(
            InputError, match=f"inter_threads must lie in 1 to 2, the number of threads, found {inter_threads}"
        ):
            load(classifier_bundle, threads=2, inter_threads=inter_threads)


def test_str_of_a_plan() -> None:
    assert str(MEASURED) == ("fp32, one input on 2 threads, many inputs as 2 batches in parallel of 128 tokens")
    assert "many inputs as one batch at a time of 64 tokens" in str(
        Plan(precision="fp32", threads=1, max_batch_tokens=64)
    )


_WITH_AFFINITY_MASK = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from bert_runtime import load
model = load(sys.argv[1])
print(model.session.threads, model.parallel_sessions, len(model(["hello"] * 100)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_the_affinity_mask_limits_threads(classifier_bundle: Path) -> None:
    command = [sys.executable, "-c", _WITH_AFFINITY_MASK, str(classifier_bundle)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["1", "None", "100"]
