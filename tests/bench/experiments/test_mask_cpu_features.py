"""Masked CPU features: programs see the remaining instruction sets only, and keep their own signal handling."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_bench.experiments.mask_cpu_features import masked_cpuinfo
from bert_runtime.machine import describe

CPUINFO = """processor\t: 0
model name\t: A Processor
flags\t\t: fpu avx2 avx512f avx_vnni avx512_vnni amx_int8 fma

processor\t: 1
model name\t: A Processor
flags\t\t: fpu avx2 avx512f avx_vnni avx512_vnni amx_int8 fma
"""

PRINT_FEATURES = """
import sys
from numpy._core._multiarray_umath import __cpu_features__ as numpy_features
from bert_runtime.machine import cpu_flags, describe
flags = cpu_flags()
print(numpy_features["AVX2"], numpy_features["AVX512F"], "avx2" in flags, "avx512f" in flags, describe()["cpu"])
sys.exit(7)
"""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")


def run_masked(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    masking = [sys.executable, "-m", "bert_bench.experiments.mask_cpu_features", "--isa", isa, "--"]
    return subprocess.run([*masking, *command], capture_output=True, text=True, timeout=120, check=False)


def skip_if_unsupported(done: subprocess.CompletedProcess[str]) -> None:
    """Skip on a machine without a C compiler or without CPUID faulting."""
    if done.returncode == 1 and ("cannot be started" in done.stderr or "CPUID" in done.stderr):
        pytest.skip(done.stderr.strip())


def test_cpuinfo_loses_flags_of_every_processor_and_names_the_isa() -> None:
    text = masked_cpuinfo(CPUINFO, "amx", "avx512")
    assert text.count("flags\t\t: fpu avx2 avx512f avx_vnni avx512_vnni fma\n") == 2
    text = masked_cpuinfo(CPUINFO, "avx512|amx", "avx-vnni")
    assert text.count("flags\t\t: fpu avx2 avx_vnni fma\n") == 2
    assert text.count("model name\t: A Processor as avx-vnni\n") == 2


@linux_only
def test_programs_see_masked_features_and_the_exit_code_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PRINT_FEATURES)
    done = run_masked("avx2", sys.executable, str(tmp_path / "script.py"))
    skip_if_unsupported(done)
    assert done.returncode == 7, done.stderr
    numpy_avx2, numpy_avx512, flag_avx2, flag_avx512, *name = done.stdout.split()
    assert (numpy_avx512, flag_avx512) == ("False", "False")
    assert numpy_avx2 == flag_avx2
    assert name[-2:] == ["as", "avx2"]


@linux_only
def test_amx_alone_can_be_masked() -> None:
    script = "from bert_runtime.machine import describe; print(describe()['cpu'], *describe()['instruction_sets'])"
    done = run_masked("avx512", sys.executable, "-c", script)
    skip_if_unsupported(done)
    assert done.returncode == 0, done.stderr
    here = [name for name in describe()["instruction_sets"] if name != "amx"]
    assert done.stdout.split("as avx512")[1].split() == here


@linux_only
@pytest.mark.parametrize(
    ("script", "code"),
    [("import faulthandler; faulthandler.enable(); import numpy", 0), ("import os; os.kill(os.getpid(), 9)", 137),
     ("import ctypes; ctypes.string_at(0)", 139)],
)  # fmt: skip
def test_other_signals_and_handlers_still_reach_the_program(script: str, code: int) -> None:
    done = run_masked("avx-vnni", sys.executable, "-c", script)
    skip_if_unsupported(done)
    assert done.returncode == code, done.stderr


def test_missing_command_is_an_error() -> None:
    done = run_masked("avx2", "no-such-command")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")


def test_unknown_isa_is_refused() -> None:
    done = run_masked("z80", "true")
    assert done.returncode == 2
    assert "'avx-vnni', 'avx2'" in done.stderr
