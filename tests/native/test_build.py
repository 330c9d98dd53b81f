"""The build hook: compiling the kernel libraries, and building without them."""

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

from .test_library_selection import LIBRARIES, first_operator

NATIVE = Path(__file__).parents[2] / "runtime" / "native"
IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"
ZIG = f"{sys.executable} -m ziglang c++ -target x86_64-linux-gnu.2.28"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", NATIVE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not IS_SUPPORTED, reason="the native kernels are for Linux on x86-64")
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("compiler", ["g++", "clang++", pytest.param("zig c++", marks=pytest.mark.slow)])
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


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_unsupported_platforms_have_no_kernels(
    system: str, machine: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook.sys, "platform", system)
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    assert hook.compile_kernels(tmp_path / "kernels-avx2.so") == (
        f"they are for Linux on x86-64, and this is {system} on {machine}"
    )


def test_wheel_for_an_unsupported_platform_excludes_stale_libraries(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries of an earlier build may lie in a folder that machines share."""
    warnings: list[str] = []
    library_dir = tmp_path / hook.LIBRARY_DIR
    library_dir.mkdir(parents=True)
    for name in LIBRARIES:
        (library_dir / name).write_bytes(b"for x86-64")
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    app = SimpleNamespace(display_warning=warnings.append)
    build_data: dict[str, object] = {"artifacts": []}
    hook.KernelsBuildHook(str(tmp_path), {}, None, None, "", "wheel", app).initialize("standard", build_data)
    assert build_data == {"artifacts": []}
    assert len(warnings) == 1
    assert re.search(r"without native kernels: they are for Linux on x86-64, .* aarch64", warnings[0])
