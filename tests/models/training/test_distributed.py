"""Train with two started processes on the CPU, and compare with one process with twice the batch size."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_models import TrainingError
from bert_models.training import Placement

from .distributed_checks import TIMEOUT_S, subprocess_env, weights_match
from .distributed_runs import RESUMED, RUNS, patch_families, tune

SLOW = ("tokens", "mlm+sop")
"""Runs that the short suite leaves out: others have both strategies, a token head and an objective of pre-training."""


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, data_folder: Path) -> list[dict[str, Any]]:
    """Results of both processes after the selected runs of distributed_runs.py, by rank."""
    selected = {item.callspec.params["name"] for item in request.session.items if is_comparison(item)}  # type: ignore[attr-defined]
    script = Path(__file__).with_name("distributed_runs.py")
    command = [sys.executable, str(script), str(data_folder), *(name for name in RUNS if name in selected)]
    done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((data_folder / f"process{rank}.json").read_text()) for rank in range(2)]


def is_comparison(item: pytest.Item) -> bool:
    """Whether an item is a run of `test_two_processes_match_one_with_twice_the_batch_size`."""
    return item.path == Path(__file__) and hasattr(item, "callspec")


def logged(checkpoint: Path) -> list[dict[str, float]]:
    with (checkpoint / "logs" / "metrics.csv").open() as stream:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(stream)]


def same_log(one: Path, two: Path, tolerance: float) -> bool:
    """Whether every step's loss and learning rate and every epoch's dev metrics are within the tolerance."""
    first, second = logged(one), logged(two)
    return len(first) == len(second) and all(
        row == pytest.approx(other, abs=tolerance) for row, other in zip(first, second, strict=True)
    )


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS])
def test_two_processes_match_one_with_twice_the_batch_size(
    name: str, data_folder: Path, found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patch_families(monkeypatch)
    one = RUNS[name](data_folder, tmp_path / "one", Placement())
    two = found[0]["reports"][name]
    assert one["placement"]["global_batch"] == two["placement"]["global_batch"]
    assert (two["placement"]["devices"], two["placement"]["nodes"]) == (2, 1)
    key = "epochs" if "epochs" in one else "measured"
    assert len(one[key]) == len(two[key])
    for first, second in zip(one[key], two[key], strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    if key == "epochs":
        assert same_log(tmp_path / "one", data_folder / "two" / name, 1e-5)
    # Adam normalizes gradients, so a step differs by their relative difference, not the absolute one.
    assert weights_match(tmp_path / "one", data_folder / "two" / name, 1e-4)


@pytest.mark.timeout(TIMEOUT_S + 20)
def test_both_processes_return_the_same_report(found: list[dict[str, Any]]) -> None:
    first, second = (process["reports"] for process in found)
    assert [process["rank"] for process in found] == [0, 1]
    for report in (*first.values(), *second.values()):
        report.pop("seconds")
    assert first == second


def test_fsdp_process_holds_half_of_the_parameters(found: list[dict[str, Any]]) -> None:
    for process in found:
        in_shard, in_model = process["sizes"]
        assert in_model > 10_000
        assert in_shard == in_model / 2


def test_two_processes_resume_a_run_of_two(data_folder: Path, found: list[dict[str, Any]]) -> None:
    for name in RESUMED:
        assert weights_match(data_folder / "whole", data_folder / name, 0.0 if name == "parts-ddp" else 1e-6)
        assert same_log(data_folder / "whole", data_folder / name, 1e-6)
        assert not (data_folder / name / "training").exists()


def test_one_process_with_twice_the_batch_size_resumes_a_run_of_two(
    data_folder: Path, found: list[dict[str, Any]]
) -> None:
    state = data_folder / "state"
    with pytest.raises(TrainingError, match="another one: batch_size of all processes was 8, is now 4; resume with"):
        tune(data_folder, state, Placement(), resume=True, settings={"batch_size": 4})
    tune(data_folder, state, Placement(), resume=True)
    assert weights_match(data_folder / "whole", state, 1e-4)


def test_error_in_one_process_is_raised_in_all(found: list[dict[str, Any]]) -> None:
    assert found[0]["data"] == "process 1 of 2: a file that only this machine has"
    assert found[1]["data"] == "a file that only this machine has"
    for process in found:
        assert process["output"].endswith("exists and was not written by a training run; choose another output folder")
        assert process["loss"].startswith("the loss became nan at step 0 ")
        assert process["turns"] == process["rank"]
        assert process["threads"] == 1
