"""Kernels for arm64, cross-compiled: compared with plain C++ on emulated processors, one for each instruction set."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from .aarch64 import COMPILERS, PROCESSORS, cross_compiler, emulator, sysroot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HARNESS = Path(__file__).with_name("harness.cc")
CASES = 450


@pytest.mark.parametrize("library_name", PROCESSORS)
def test_random_calls_match_plain_cpp(library_name: str, hook: ModuleType, tmp_path: Path) -> None:
    command = emulator(PROCESSORS[library_name], sysroot())
    compiler = cross_compiler("zig c++").split()
    sources = [source for source in hook.SOURCE_DIR.glob("*.cc") if source.name != "operators.cc"]
    objects = [str(tmp_path / f"{source.stem}.o") for source in (*sources, HARNESS)]

    def compile_one(source: Path, target: str) -> str:
        flags = hook.spell_flags(compiler, hook.compile_flags(library_name, source))
        release = [flag for flag in flags if flag != "-O3"]
        arguments = [*compiler, *release, "-O1", f"-I{hook.SOURCE_DIR}", "-c", str(source), "-o", target]
        return subprocess.run(arguments, capture_output=True, text=True, check=False).stderr

    with ThreadPoolExecutor(2) as pool:
        assert not any(errors := [*pool.map(compile_one, (*sources, HARNESS), objects)]), errors
    harness = tmp_path / "harness"
    subprocess.run([*compiler, *objects, "-o", str(harness)], check=True)
    # Two callers share their packed weights; a third case starts threads within the kernels.
    for callers in (1, 2):
        result = subprocess.run([*command, str(harness), str(CASES), "1", str(callers)], capture_output=True, text=True,
                                check=False)  # fmt: skip
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        assert result.stdout == f"{callers} callers, {CASES} cases each, seed 1: 0 failures\n"


@pytest.mark.parametrize("library_name", PROCESSORS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_library_compiles_without_warnings(
    compiler: str, library_name: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", cross_compiler(compiler))
    monkeypatch.setenv(hook.MACHINE_VARIABLE, "aarch64")
    library = tmp_path / library_name
    assert hook.compile_kernels(library, strict=True) is None
    assert library.read_bytes()[18:20] == b"\xb7\x00"  # the machine of an ELF file: EM_AARCH64
