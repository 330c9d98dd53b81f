"""The build hook: compiling the kernel libraries, and building without them."""

import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

from .test_library_selection import LIBRARIES, first_operator

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"
HOST_LIBRARIES = [name for name, flags in native_kernels._LIBRARIES.items() if "asimd" not in flags]
"""Those that the compilers of x86-64 make; test_aarch64.py has the others."""
_QUICK = {("g++", "kernels-avx2.so"), ("clang++", "kernels-avxvnni.so")}
"""Compilations that are not `slow`, one by g++ and one by clang++: all of them take two minutes."""
COMPILATIONS = [
    pytest.param(compiler, name, marks=() if (compiler, name) in _QUICK else pytest.mark.slow)
    for compiler in ("g++", "clang++", "zig c++")
    for name in HOST_LIBRARIES
]
ZIG = f"{sys.executable} -m ziglang c++ -target x86_64-linux-gnu.2.28"


@pytest.mark.skipif(not IS_SUPPORTED, reason="the native kernels are for Linux on x86-64")
@pytest.mark.parametrize(("compiler", "name"), COMPILATIONS)
def test_library_compiles_without_warnings(
    compiler: str, name: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler == "zig c++":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("the package ziglang is not installed")
        compiler = ZIG
    elif shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    library = tmp_path / name
    assert hook.compile_kernels(library, strict=True) is None
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert bool(first_operator(library)) == (native_kernels._LIBRARIES[name] <= cpu_flags())


def test_hook_builds_the_libraries_that_the_runtime_loads(hook: ModuleType) -> None:
    assert set(hook.LIBRARIES) == set(native_kernels._LIBRARIES)


def test_cross_compiled_wheel_has_the_libraries_and_the_tag_of_its_processor(
    hook: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hook.MACHINE_VARIABLE, "aarch64")
    monkeypatch.setattr(hook, "compile_kernels", lambda library: None)
    build_data, warnings = initialize_hook(hook, project)
    assert warnings == []
    arm64 = [name for name in LIBRARIES if name not in HOST_LIBRARIES]
    assert build_data["artifacts"] == [f"/{hook.LIBRARY_DIR}/{name}" for name in arm64]
    assert build_data["tag"] == "py3-none-linux_aarch64"


def test_library_of_another_processor_is_not_compiled(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.sys, "platform", "linux")
    monkeypatch.setenv(hook.MACHINE_VARIABLE, "aarch64")
    assert hook.compile_kernels(tmp_path / "kernels-avx2.so") == "kernels-avx2.so is not for aarch64"


def test_zig_gets_features_of_a_processor_instead_of_an_architecture(hook: ModuleType) -> None:
    flags = hook.compile_flags("kernels-i8mmbf16.so", Path("gemm.cc"))
    assert hook.spell_flags(["g++"], flags) == [*flags]
    assert "-mcpu=generic+v8_2a+dotprod+i8mm+bf16" in hook.spell_flags(["python", "-m", "ziglang", "c++"], flags)


@pytest.mark.skipif(not IS_SUPPORTED, reason="other platforms fail with another message")
@pytest.mark.parametrize(
    ("compiler", "message"), [("no-such-compiler", "no C[+][+] compiler .* install g[+][+], or name one in CXX"),
                              ("false -x", "false -x .*failed")],
)  # fmt: skip
def test_compiler_failure_is_reported_and_leaves_no_library(
    compiler: str, message: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    error = hook.compile_kernels(tmp_path / "kernels-avx2.so")
    assert error is not None
    assert re.search(message, error)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_unsupported_platforms_have_no_kernels(
    system: str, machine: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.sys, "platform", system)
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    assert hook.compile_kernels(tmp_path / "kernels-avx2.so") == (
        f"they are for Linux on x86-64 and arm64, and this is {system} on {machine}"
    )


def initialize_hook(hook: ModuleType, root: Path) -> tuple[dict[str, object], list[str]]:
    """Run the build hook for a wheel of a project in `root`; return the build data and the warnings."""

    def abort(message: str) -> None:
        raise SystemExit(message)

    warnings: list[str] = []
    app = SimpleNamespace(display_warning=warnings.append, abort=abort)
    build_data: dict[str, object] = {"artifacts": []}
    hook.KernelsBuildHook(str(root), {}, None, None, "", "wheel", app).initialize("standard", build_data)
    return build_data, warnings


@pytest.fixture
def project(hook: ModuleType, tmp_path: Path) -> Path:
    """A project's folder, with the libraries of an earlier build on another machine."""
    library_dir = tmp_path / hook.LIBRARY_DIR
    library_dir.mkdir(parents=True)
    for name in LIBRARIES:
        (library_dir / name).write_bytes(b"for x86-64")
        os.utime(library_dir / name, (0, 0))
    return tmp_path


def test_wheel_for_an_unsupported_platform_excludes_stale_libraries(
    hook: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.platform, "machine", lambda: "riscv64")
    build_data, warnings = initialize_hook(hook, project)
    assert build_data == {"artifacts": []}
    assert len(warnings) == 1
    assert re.search(r"without native kernels: they are for Linux on x86-64 and arm64, .* riscv64", warnings[0])


def test_failing_compiler_is_a_warning_unless_kernels_are_required(
    hook: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    build_data, warnings = initialize_hook(hook, project)
    assert build_data == {"artifacts": []}
    assert len(warnings) == 1
    monkeypatch.setenv(hook.MODE_VARIABLE, "require")
    with pytest.raises(
        SystemExit, match=r"^bert-export is built without native kernels: (.|\n)*require asks for all of"
    ):
        initialize_hook(hook, project)


def test_kernels_are_left_out_on_request(hook: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of the source tree stay: an editable installation may use them."""
    monkeypatch.setenv(hook.MODE_VARIABLE, "none")
    assert initialize_hook(hook, project) == ({"artifacts": []}, [])
    assert {path.name for path in (project / hook.LIBRARY_DIR).iterdir()} == set(LIBRARIES)


def test_unknown_mode_is_refused(hook: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hook.MODE_VARIABLE, "yes")
    with pytest.raises(SystemExit, match="expected BERT_EXPORT_KERNELS to be one of auto, require, none, found 'yes'"):
        initialize_hook(hook, project)
