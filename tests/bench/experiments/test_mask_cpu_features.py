"""Running as on a lesser processor: what programs see, and what they do not."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_bench.experiments.mask_cpu_features import lesser_cpuinfo

CPUINFO = """processor\t: 0
model name\t: A Processor
flags\t\t: fpu avx2 avx512f avx_vnni avx512_vnni amx_int8 fma

processor\t: 1
model name\t: A Processor
flags\t\t: fpu avx2 avx512f avx_vnni avx512_vnni amx_int8 fma
"""

SCRIPT = """
import sys
from numpy._core._multiarray_umath import __cpu_features__ as numpy_s
from bert_runtime.machine import cpu_flags, describe
print(numpy_s["AVX2"], numpy_s["AVX512F"], "avx2" in cpu_flags(), "avx512f" in cpu_flags(), describe()["cpu"])
sys.exit(7)
"""


def test_flags_are_taken_out_of_every_processor_and_its_name_says_so() -> None:
    text = lesser_cpuinfo(CPUINFO, "avx512|amx", "avx-vnni")
    assert text.count("flags\t\t: fpu avx2 avx_vnni fma\n") == 2
    assert text.count("model name\t: A Processor as avx-vnni\n") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
def test_programs_find_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "bert_bench.experiments.mask_cpu_features", "--as", "avx2", "--", sys.executable]
    done = subprocess.run(
        [*command, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 1 and ("cannot be started" in done.stderr or "CPUID" in done.stderr):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 7, done.stderr
    numpy_avx2, numpy_avx512, flag_avx2, flag_avx512, *name = done.stdout.split()
    assert (numpy_avx512, flag_avx512) == ("False", "False")
    assert numpy_avx2 == flag_avx2
    assert name[-2:] == ["as", "avx2"]


@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
@pytest.mark.parametrize(
    ("script", "code"),
    [("import faulthandler; faulthandler.enable(); import numpy", 0), ("import os; os.kill(os.getpid(), 9)", 137),
     ("import ctypes; ctypes.string_at(0)", 139)],
)  # fmt: skip
def test_other_signals_and_handlers_are_the_program_s(script: str, code: int) -> None:
    command = [
        sys.executable,
        "-m",
        "bert_bench.experiments.mask_cpu_features",
        "--as",
        "avx-vnni",
        "--",
        sys.executable,
    ]
    done = subprocess.run([*command, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 1 and ("cannot be started" in done.stderr or "CPUID" in done.stderr):
        pytest.skip(done.stderr.strip())
    assert done.returncode == code, done.stderr


def test_a_command_that_does_not_exist_is_an_error() -> None:
    command = [
        sys.executable,
        "-m",
        "bert_bench.experiments.mask_cpu_features",
        "--as",
        "avx2",
        "--",
        "no-such-command",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")


def test_an_unknown_processor_is_refused() -> None:
    command = [sys.executable, "-m", "bert_bench.experiments.mask_cpu_features", "--as", "z80", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "'avx-vnni', 'avx2'" in done.stderr
