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

from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

from .aarch64 import PROCESSORS, emulator

ENVIRONMENT = Path(os.environ.get("BERT_EXPORT_AARCH64", "unset"))
DIST = Path(os.environ.get("BERT_EXPORT_DIST", "unset"))
PROGRAM = Path(__file__).with_name("bundle_outputs.py")
AVX2 = "kernels-avx2.so"
TOLERANCES = {"fp32 with kernels": 1e-4, "int8 with kernels": 0.01, "fp32 without kernels": 1e-4,
              "int8 without kernels": 0.01}  # fmt: skip
"""Maximum differences between two processors' outputs."""

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
def outputs_here(classifier_bundle: Path) -> dict[str, Any]:
    """What this machine's AVX2 kernels compute: like those of arm64, they have tables of 8 entries for GELU."""
    if missing := native_kernels._LIBRARIES[AVX2] - cpu_flags():
        pytest.skip(f"there is nothing to compare with: {AVX2} needs {', '.join(sorted(missing))}")
    flags = sorted(native_kernels._LIBRARIES[AVX2])
    return _run(
        [sys.executable, str(PROGRAM), str(classifier_bundle), *flags], {"PYTHONPATH": os.pathsep.join(sys.path)}
    )


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    finished = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


@pytest.mark.parametrize("library", PROCESSORS)
def test_bundle_computes_the_same_on_arm64(
    library: str, installed_wheel: Path, outputs_here: dict[str, Any], classifier_bundle: Path
) -> None:
    root = ENVIRONMENT / "root"
    (python,) = root.glob("usr/bin/python3.[0-9]*")
    libraries = os.pathsep.join(str(root / folder / "aarch64-linux-gnu") for folder in ("lib", "usr/lib"))
    variables = {"PYTHONHOME": str(root / "usr"), "LD_LIBRARY_PATH": libraries,
                 "PYTHONPATH": os.pathsep.join(map(str, (installed_wheel, ENVIRONMENT / "site")))}  # fmt: skip
    options = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    command = [*emulator(PROCESSORS[library], root), *options, str(python), str(PROGRAM), str(classifier_bundle)]
    found = _run(command, {})
    assert found["library"] == library
    assert set(found["functions"]) == set(outputs_here["functions"])
    for setting, expected in outputs_here["outputs"].items():
        for values, expected_values in zip(found["outputs"][setting], expected, strict=True):
            difference = np.abs(np.array(values) - np.array(expected_values)).max()
            assert difference <= TOLERANCES[setting], (setting, difference)
