"""Whole bundles on emulated arm64 processors, with the wheel of `make dist` and onnxruntime's wheel for arm64.

`make test-arm` runs this; it makes the environment that `BERT_EXPORT_AARCH64` names.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_export import export
from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

from .aarch64 import BETTER_PROCESSORS, PROCESSORS, emulator

ENVIRONMENT = Path(os.environ.get("BERT_EXPORT_AARCH64", "unset"))
DIST = Path(os.environ.get("BERT_EXPORT_DIST", "unset"))
PROGRAM = Path(__file__).with_name("bundle_outputs.py")
AVX2 = "kernels-avx2.so"
TOLERANCES = {"fp32": 1e-4, "int8": 0.01, "bf16": 1e-4}
"""Maximum differences between two processors' outputs; bf16 is FP32 here, by rounded weights."""
ROUNDING = (1e-4, 0.05)
"""Minimum and maximum difference that kernels make which round activations to bfloat16."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("BERT_EXPORT_AARCH64" not in os.environ, reason="`make test-arm` sets BERT_EXPORT_AARCH64"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the unpacked wheel for arm64."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = DIST.glob("bert_export-*manylinux_2_28_aarch64.whl")
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


@pytest.fixture(scope="module")
def bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with every precision for the CPU."""
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    export(classifier_checkpoint, folder, precisions=["int8", "bf16"])
    return folder


@pytest.fixture(scope="module")
def outputs_here(bundle: Path) -> dict[str, Any]:
    """What this machine's AVX2 kernels compute: like those of arm64, they have tables of 8 entries for GELU."""
    if missing := native_kernels._LIBRARIES[AVX2] - cpu_flags():
        pytest.skip(f"there is nothing to compare with: {AVX2} needs {', '.join(sorted(missing))}")
    flags = sorted(native_kernels._LIBRARIES[AVX2])
    return _run([sys.executable, str(PROGRAM), str(bundle), *flags], {"PYTHONPATH": os.pathsep.join(sys.path)})


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    finished = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


@pytest.mark.parametrize("library", PROCESSORS)
def test_bundle_computes_the_same_on_arm64(
    library: str, installed_wheel: Path, outputs_here: dict[str, Any], bundle: Path
) -> None:
    root = ENVIRONMENT / "root"
    (python,) = root.glob("usr/bin/python3.[0-9]*")
    libraries = os.pathsep.join(str(root / folder / "aarch64-linux-gnu") for folder in ("lib", "usr/lib"))
    variables = {"PYTHONHOME": str(root / "usr"), "LD_LIBRARY_PATH": libraries,
                 "PYTHONPATH": os.pathsep.join(map(str, (installed_wheel, ENVIRONMENT / "site")))}  # fmt: skip
    options = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    flags = sorted(native_kernels._LIBRARIES[library]) if library in BETTER_PROCESSORS else []
    command = [*emulator(PROCESSORS[library], root), *options, str(python), str(PROGRAM), str(bundle), *flags]
    found = _run(command, {})
    has_bf16 = "bf16" in native_kernels._LIBRARIES[library]
    assert found["library"] == library
    assert set(found["functions"]) == set(outputs_here["functions"])
    assert found["default"] == ("bf16" if has_bf16 else "fp32")
    for setting, expected in outputs_here["outputs"].items():
        pairs = zip(found["outputs"][setting], expected, strict=True)
        difference = max(np.abs(np.array(values) - np.array(others)).max() for values, others in pairs)
        if has_bf16 and setting == "bf16 with kernels":
            assert ROUNDING[0] < difference < ROUNDING[1]
        else:
            assert difference <= TOLERANCES[setting.split()[0]], setting
