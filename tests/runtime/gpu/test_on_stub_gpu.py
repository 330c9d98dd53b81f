"""The real onnxruntime-gpu on stub CUDA libraries: which kernels run where, and what is copied, captured and allocated.

Nothing is computed, so outputs mean nothing. `make test-gpu-stub` installs the wheel and runs these tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_export import export

from .stub_libraries import build_stubs

pytestmark = [pytest.mark.gpu_stub, pytest.mark.timeout(600)]

SCENARIO = Path(__file__).with_name("stub_scenario.py")
PADDINGS = ("masked", "unmasked", "packed")

Sections = dict[str, list[str]]
RunScenario = Callable[..., tuple[Sections, dict[str, dict[str, int]], str]]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The folder that onnxruntime-gpu is installed in, which `BERT_EXPORT_ONNXRUNTIME_GPU` names."""
    folder = os.environ.get("BERT_EXPORT_ONNXRUNTIME_GPU")
    if folder is None or not Path(folder, "onnxruntime").is_dir():
        pytest.skip("needs onnxruntime-gpu in the folder that BERT_EXPORT_ONNXRUNTIME_GPU names: make test-gpu-stub")
    if not (shutil.which("gcc") and shutil.which("nm")):
        pytest.skip("needs gcc and nm to compile the stubs of the CUDA libraries")
    return Path(folder)


@pytest.fixture(scope="module")
def run_scenario(wheel: Path, classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> RunScenario:
    """Return a function that runs `stub_scenario.py` with environment variables; see `sections`."""
    folder = tmp_path_factory.mktemp("stub-gpu")
    build_stubs(wheel / "onnxruntime/capi/libonnxruntime_providers_cuda.so", folder)
    export(classifier_checkpoint, folder / "bundle", targets=("cuda",), precisions=("fp16",))

    def run(**variables: str) -> tuple[Sections, dict[str, dict[str, int]], str]:
        log = folder / "calls.log"
        log.unlink(missing_ok=True)
        path = os.pathsep.join([str(wheel), *sys.path])
        environment = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path, "STUB_CUDA_LOG": str(log), **variables}
        done = subprocess.run(
            [sys.executable, SCENARIO, folder / "bundle"], env={**os.environ, **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        parts = re.split(r"^### (.*)\n", log.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        return (
            {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)},
            json.loads(done.stdout.splitlines()[-1]),
            done.stderr,
        )

    return run


@pytest.fixture(scope="module")
def scenario(run_scenario: RunScenario) -> tuple[Sections, dict[str, dict[str, int]], str]:
    return run_scenario()


@pytest.fixture(scope="module")
def sections(scenario: tuple[Sections, dict[str, dict[str, int]], str]) -> Sections:
    """The calls of CUDA by section of the scenario."""
    return scenario[0]


def count(lines: list[str], start: str) -> int:
    return sum(line.startswith(start) for line in lines)


def test_every_operator_runs_on_cuda_without_copies(scenario: tuple[Sections, dict[str, dict[str, int]], str]) -> None:
    assert scenario[1] == {padding: {} for padding in PADDINGS}


@pytest.mark.parametrize(
    ("padding", "kernel"), [("masked", "attention_kernel_batched"), ("unmasked", "flash_fwd"), ("packed", "flash_fwd")]
)
def test_attention_runs_in_the_fused_kernel(sections: Sections, padding: str, kernel: str) -> None:
    """The memory-efficient kernel where there is a mask, else FlashAttention; never cuDNN's, which needs a plan."""
    names = [line for line in sections[f"{padding} large"] if "attention" in line.lower() or "flash_fwd" in line]
    assert names
    assert [name for name in names if kernel not in name] == []


def test_one_copy_in_and_one_out_per_replay(sections: Sections) -> None:
    replay = sections["masked third"]
    assert [re.sub(r" \d+$", "", line) for line in replay] == [
        "copy host-device", "graph launched", "copy device-host",
    ]  # fmt: skip


def test_nothing_forbidden_is_called_in_a_capture(sections: Sections) -> None:
    assert not [line for lines in sections.values() for line in lines if line.startswith("forbidden")]
    assert count(sections["masked second"], "capture begins") == 1


def test_threads_share_one_set_of_handles_and_graphs(sections: Sections) -> None:
    for padding in PADDINGS:
        lines = sections[f"{padding} threads"]
        assert count(lines, "handle created") == 0
        assert count(lines, "capture begins") == 0
    assert count(sections["masked threads"], "graph launched") == 24


def test_bucketed_shapes_allocate_nothing_after_warm_up(sections: Sections) -> None:
    for name in ("masked third", "masked threads"):
        assert count(sections[name], "allocate") == 0


@pytest.mark.parametrize("padding", PADDINGS)
def test_shapes_below_the_largest_allocate_nothing(sections: Sections, padding: str) -> None:
    assert count(sections[f"{padding} shapes"], "allocate cudaMalloc") == 0


def test_a_failed_capture_is_never_replayed(run_scenario: RunScenario) -> None:
    sections, _, errors = run_scenario(STUB_CUDA_FAIL_CAPTURE="1")
    assert "run without a CUDA graph, since one failed" in errors
    for name in ("masked third", "masked threads"):
        assert count(sections[name], "graph launched") == 0
    assert count(sections["masked third"], "matmul") > 0
