"""Building the kernels: what is made where there is a compiler, and what is said where there is none."""

import ctypes
import importlib.util
import platform
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

NATIVE = Path(__file__).parents[2] / "runtime" / "native"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", NATIVE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIBRARIES = ("kernels-avx512.so", "kernels-avxvnni.so", "kernels-avx2.so")


def first_kernel(library: Path) -> str | None:
    loaded = ctypes.CDLL(str(library))
    loaded.KernelName.restype = ctypes.c_char_p
    assert loaded.KernelName(99) is None
    first = loaded.KernelName(0)
    return first.decode() if first else None


def test_a_library_is_compiled(hook: ModuleType, tmp_path: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64" or not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("the kernels are for Linux on x86-64, and want a C++ compiler")
    library = tmp_path / "kernels-avx2.so"
    assert hook.compile_kernels(library) is None
    assert [each.name for each in tmp_path.iterdir()] == [library.name]
    assert bool(first_kernel(library)) == (native_kernels._LIBRARIES[library.name] <= cpu_flags())


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_asks_the_processor(name: str) -> None:
    library = Path(native_kernels.__file__).parents[1].joinpath("lib") / name
    if not library.is_file():
        pytest.skip(f"{name} is not part of this installation")
    assert bool(first_kernel(library)) == (native_kernels._LIBRARIES[name] <= cpu_flags())


def test_the_build_makes_what_the_runtime_looks_for(hook: ModuleType) -> None:
    assert set(hook._LIBRARIES) == set(native_kernels._LIBRARIES) == set(LIBRARIES)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}, LIBRARIES[0]),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, None),  # Skylake has no VNNI
        ({"avx2", "fma", "avx_vnni"}, LIBRARIES[1]),
        ({"avx2", "fma"}, LIBRARIES[2]),
        ({"avx2"}, None),
        ({"sse4_2"}, None),
    ],
)
def test_each_processor_has_its_library(
    flags: set[str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    for name in LIBRARIES:
        (tmp_path / "lib" / name).write_bytes(b"")
    monkeypatch.setattr(native_kernels, "__file__", str(tmp_path / "cpu" / "native_kernels.py"))
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: frozenset(flags))
    found = native_kernels.kernel_library()
    assert (found.name if found else None) == expected
    if found:
        found.unlink()
        assert native_kernels.kernel_library() is None


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="says something else elsewhere")
@pytest.mark.parametrize(
    ("compiler", "problem"), [("no-such-compiler", "no C[+][+] compiler .* install g[+][+], or name one in CXX"),
                              ("false -x", "false -x .*failed")],
)  # fmt: skip
def test_without_a_compiler_there_is_no_library_and_a_reason(
    compiler: str, problem: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    said = hook.compile_kernels(tmp_path / "kernels-avx2.so")
    assert said is not None
    assert re.search(problem, said)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_other_machines_have_no_kernels(
    system: str, machine: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.sys, "platform", system)
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    assert hook.compile_kernels(tmp_path / "kernels-avx2.so") == (
        f"they are for Linux on x86-64, and this is {system} on {machine}"
    )


def test_a_wheel_for_another_machine_takes_no_library_along(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as lie there from before, in a folder that machines share."""
    warnings: list[str] = []
    folder = tmp_path / hook.FOLDER
    folder.mkdir(parents=True)
    for name in LIBRARIES:
        (folder / name).write_bytes(b"for x86-64")
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    app = SimpleNamespace(display_warning=warnings.append)
    data: dict[str, object] = {"artifacts": []}
    hook.KernelsBuildHook(str(tmp_path), {}, None, None, "", "wheel", app).initialize("standard", data)
    assert data == {"artifacts": []}
    assert len(warnings) == 1
    assert re.search(r"without its own kernels: they are for Linux on x86-64, .* aarch64", warnings[0])
