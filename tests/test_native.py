"""Building the kernels: what is made where there is a compiler, and what is said where there is none."""

import ctypes
import importlib.util
import platform
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bert_runtime.kernels import kernel_names

NATIVE = Path(__file__).parents[1] / "runtime" / "native"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", NATIVE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_library_is_compiled_and_asks_the_processor(hook: ModuleType, tmp_path: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64" or not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("the kernels are for Linux on x86-64, and want a C++ compiler")
    library = tmp_path / "kernels.so"
    assert hook.compile_kernels(library) is None
    assert [each.name for each in tmp_path.iterdir()] == ["kernels.so"]
    loaded = ctypes.CDLL(str(library))
    loaded.KernelName.restype = ctypes.c_char_p
    assert loaded.KernelName(99) is None
    first = loaded.KernelName(0)
    assert (first.decode() if first else None) == next(iter(kernel_names()), None)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="says something else elsewhere")
@pytest.mark.parametrize(
    ("compiler", "problem"), [("no-such-compiler", "no C[+][+] compiler .* install g[+][+], or name one in CXX"),
                              ("false -x", "false -x .*failed")],
)  # fmt: skip
def test_without_a_compiler_there_is_no_library_and_a_reason(
    compiler: str, problem: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    said = hook.compile_kernels(tmp_path / "kernels.so")
    assert said is not None
    assert re.search(problem, said)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_other_machines_have_no_kernels(
    system: str, machine: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.sys, "platform", system)
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    assert hook.compile_kernels(tmp_path / "kernels.so") == (
        f"they are for Linux on x86-64, and this is {system} on {machine}"
    )
