"""Kernels built with AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: random and hostile calls."""

import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

from .child_processes import outcomes_of_hostile_graphs, run_child, unexpected_outcomes
from .test_library_selection import LIBRARIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ADDRESS, THREAD = "address,undefined", "thread"
_RUNTIMES = {ADDRESS: "libasan.so", THREAD: "libtsan.so"}
_FAULTS = {
    ADDRESS: "int main(int argc, char**) { int* p = new int[4](); delete[] p; return p[argc]; }",
    THREAD: "#include <thread>\nint x; int main() { std::thread t([] { ++x; }); ++x; t.join(); return 0; }",
}
"""Programs that a sanitizer ends with a report."""
_ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
HARNESS = Path(__file__).with_name("harness.cc")


class Compiler:
    """A C++ compiler with a sanitizer; skips the test where one of them is missing."""

    def __init__(self, sanitizer: str, folder: Path) -> None:
        self.command = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or "c++"]
        self.flags = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
        self.sanitizer = sanitizer
        probe = folder / "fault.cc"
        for source, is_faulty in (("int main() { return 0; }", False), (_FAULTS[sanitizer], True)):
            probe.write_text(source, encoding="ascii")
            if error := self._error(str(probe), "-pthread", "-o", str(probe.with_suffix(""))):
                pytest.skip(f"no {sanitizer} sanitizer: {error}")
            result = run_child([str(probe.with_suffix(""))], _ENVIRONMENT)
            if result.returncode and not is_faulty:
                pytest.skip(f"the {sanitizer} sanitizer does not run here: {result.stderr}")
        assert "Sanitizer" in result.stderr

    def compile(self, sources: list[tuple[Path, tuple[str, ...]]], target: Path, *link_flags: str) -> Path:
        """Compile sources, each with its own flags, and link them."""
        objects = [str(target.with_name(f"{target.name}.{source.stem}.o")) for source, _ in sources]

        def compile_one(index: int) -> str:
            source, flags = sources[index]
            return self._error(*flags, "-c", str(source), "-o", objects[index])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = [*pool.map(compile_one, range(len(sources)))]
        assert not any(errors), errors
        assert not (error := self._error(*objects, "-pthread", "-o", str(target), *link_flags)), error
        return target

    def preloaded_libraries(self) -> str:
        """Return what a process that was built without the sanitizer loads first: its library and C++'s.

        The sanitizer looks for C++'s exceptions when it starts.
        """
        paths = [self._find(_RUNTIMES[self.sanitizer]), self._find("libstdc++.so")]
        if None in paths:
            pytest.skip(f"{shlex.join(self.command)} has no shared {_RUNTIMES[self.sanitizer]}")
        return " ".join(map(str, paths))

    def _find(self, library: str) -> Path | None:
        """Return the path of one of the compiler's libraries."""
        command = [*self.command, f"-print-file-name={library}"]
        path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        return path.resolve() if path.is_absolute() else None  # the name alone where there is none

    def _error(self, *arguments: str) -> str:
        """Run the compiler; return what it says where it fails."""
        try:
            result = subprocess.run(
                [*self.command, *self.flags, *arguments], capture_output=True, text=True, check=False
            )
        except OSError as error:
            return str(error)
        return result.stderr if result.returncode else ""


@pytest.fixture(params=LIBRARIES)
def library_name(request: pytest.FixtureRequest) -> str:
    """The name of a kernel library whose instruction set this CPU has."""
    name: str = request.param
    if missing := native_kernels._LIBRARIES[name] - cpu_flags():
        pytest.skip(f"{name} needs {', '.join(sorted(missing))}")
    return name


@pytest.mark.parametrize(("sanitizer", "cases", "callers"), [(ADDRESS, 3000, 1), (THREAD, 150, 4)])
def test_random_calls_match_plain_cpp(
    sanitizer: str, cases: int, callers: int, library_name: str, hook: ModuleType, tmp_path: Path
) -> None:
    compiler = Compiler(sanitizer, tmp_path)
    sources = [source for source in hook.SOURCE_DIR.glob("*.cc") if source.name != "operators.cc"]
    compiled = [(source, _flags(hook, library_name, source)) for source in (*sources, HARNESS)]
    harness = compiler.compile(compiled, tmp_path / "harness")
    result = run_child([str(harness), str(cases), "1", str(callers)], _ENVIRONMENT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    assert result.stdout == f"{callers} callers, {cases} cases each, seed 1: 0 failures\n"


def test_hostile_graphs_have_no_undefined_behaviour(library_name: str, hook: ModuleType, tmp_path: Path) -> None:
    compiler = Compiler(ADDRESS, tmp_path)
    sources = [(source, _flags(hook, library_name, source)) for source in hook.SOURCE_DIR.glob("*.cc")]
    library = compiler.compile(sources, tmp_path / library_name, "-shared")
    environment = {**_ENVIRONMENT, "LD_PRELOAD": compiler.preloaded_libraries()}
    assert unexpected_outcomes(outcomes_of_hostile_graphs(library, environment)) == {}


def _flags(hook: ModuleType, library_name: str, source: Path) -> tuple[str, ...]:
    """Return the flags that compile a source as a release does, but for its optimization."""
    release = hook.compile_flags(library_name, source)
    return (*(flag for flag in release if flag != "-O3"), f"-I{hook.SOURCE_DIR}")
