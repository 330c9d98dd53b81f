"""Hatchling build hook: compile the native kernels into the wheel if the platform and a C++ compiler allow it.

The environment variable `BERT_EXPORT_KERNELS` says what happens otherwise, see `MODES`.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE_DIR = Path(__file__).parent
LIBRARY_DIR = "runtime/bert_runtime/lib"
"""Relative to the repository's root."""

STANDARD_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-rtti")
# The headers of GCC 12's intrinsics read variables that are uninitialized on purpose; clang does not know that option.
STRICT_FLAGS = ("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-unknown-warning-option",
                "-Wno-maybe-uninitialized")  # fmt: skip
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mprfchw")
_AMX = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
_AVX2 = ("-mavx2", "-mfma")
ARMV8_2 = "-march=armv8.2-a"
LIBRARIES_OF = {
    "x86_64": {
        "kernels-amx.so": (("-DBERT_BF16", "-DBERT_AMX"), (*_AVX512, "-mavx512bf16", *_AMX)),
        "kernels-avx512bf16.so": (("-DBERT_BF16",), (*_AVX512, "-mavx512bf16")),
        "kernels-avx512.so": ((), _AVX512),
        "kernels-avxvnni.so": (("-DBERT_AVX2", "-DBERT_AVXVNNI"), (*_AVX2, "-mavxvnni")),
        "kernels-avx2.so": (("-DBERT_AVX2",), _AVX2),
    },
    "aarch64": {
        "kernels-i8mmbf16.so": (("-DBERT_BF16",), (f"{ARMV8_2}+dotprod+i8mm+bf16",)),
        "kernels-i8mm.so": (("-DBERT_I8MM",), (f"{ARMV8_2}+dotprod+i8mm",)),
        "kernels-dotprod.so": (("-DBERT_DOTPROD",), (f"{ARMV8_2}+dotprod",)),
        "kernels-neon.so": ((), ()),
    },
}
LIBRARIES = {name: flags for libraries in LIBRARIES_OF.values() for name, flags in libraries.items()}
"""The libraries that `bert_runtime.cpu.native_kernels` looks for: preprocessor definitions and instruction sets."""
_BASELINE_SOURCES = ("operators.cc",)
"""Compiled without the instruction set, since they check whether the processor has it."""

MODE_VARIABLE = "BERT_EXPORT_KERNELS"
MACHINE_VARIABLE = "BERT_EXPORT_KERNELS_MACHINE"
"""Names the processor family to compile for, if `CXX` is a cross compiler; otherwise it is this machine's."""
MODES = {
    "auto": "compile the kernels; a library that cannot be compiled is a warning (the default)",
    "require": "compile the kernels; a library that cannot be compiled ends the build, as a release wants it",
    "none": "leave the kernels out, for the wheel that every platform can install",
}
"""Values of `MODE_VARIABLE`, and what they do."""


class KernelsBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Compile the kernel libraries and add them to the wheel, whose tag then names the platform.

    Without them the runtime works, only slower: a missing compiler is a warning, unless `MODE_VARIABLE` says otherwise.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare the libraries before hatchling collects the wheel's files."""
        mode = os.environ.get(MODE_VARIABLE) or "auto"
        if mode not in MODES:
            self.app.abort(f"expected {MODE_VARIABLE} to be one of {', '.join(MODES)}, found {mode!r}")
        if mode == "none":
            return
        library_dir = Path(self.root) / LIBRARY_DIR
        names = [*LIBRARIES_OF.get(target_machine(), LIBRARIES)]
        errors = {name: _update_library(library_dir / name) for name in names}
        built = [name for name, error in errors.items() if error is None]
        if len(built) < len(errors):
            reasons = sorted({error for error in errors.values() if error})
            missing = "some native kernels" if built else "native kernels"
            problem = f"bert-export is built without {missing}: {'; '.join(reasons)}"
            if mode == "require":
                self.app.abort(f"{problem}\n{MODE_VARIABLE}=require asks for all of {', '.join(names)}")
            self.app.display_warning(problem)
        if not built:
            return
        build_data["artifacts"] += [f"/{LIBRARY_DIR}/{name}" for name in built]
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_wheel_platform()}"


def target_machine() -> str:
    """Return the processor family that kernels are compiled for, as `platform.machine` names it."""
    return os.environ.get(MACHINE_VARIABLE) or platform.machine()


def _wheel_platform() -> str:
    """Return the platform tag of a wheel with kernels, before auditwheel says which Linux it needs."""
    native = sysconfig.get_platform()
    cross = f"linux-{target_machine()}" if os.environ.get(MACHINE_VARIABLE) else native
    return cross.replace("-", "_").replace(".", "_")


def _update_library(library: Path) -> str | None:
    """Compile a library unless it is up to date; remove it and return the error if that fails."""
    error = _platform_error() or (None if _is_up_to_date(library) else compile_kernels(library))
    if error:
        with suppress(OSError):
            library.unlink()
    return error


def _is_up_to_date(library: Path) -> bool:
    """Return whether the library is newer than its sources."""
    sources = [path for path in SOURCE_DIR.iterdir() if path.suffix in (".cc", ".h") or path == Path(__file__)]
    return library.is_file() and library.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def _platform_error() -> str | None:
    """Return why this platform has no native kernels, or None if it has."""
    if sys.platform != "linux" or target_machine() not in LIBRARIES_OF:
        return f"they are for Linux on x86-64 and arm64, and this is {sys.platform} on {target_machine()}"
    return None


def compile_flags(library_name: str, source: Path) -> tuple[str, ...]:
    """Return the flags that compile a source file for a library, without warnings."""
    definitions, instruction_set = LIBRARIES[library_name]
    return (*STANDARD_FLAGS, *definitions, *(() if source.name in _BASELINE_SOURCES else instruction_set))


def spell_flags(compiler: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return flags as the compiler spells them: zig knows Arm's architectures as features of a CPU."""
    is_zig = any("zig" in word for word in compiler)
    return [flag.replace(ARMV8_2, "-mcpu=generic+v8_2a") if is_zig else flag for flag in flags]


def compile_kernels(library: Path, *, strict: bool = False) -> str | None:
    """Compile and link one kernel library with the compiler that `CXX` names, or `c++`, or `g++`.

    Args:
        library: the file to write; its name is a key of `LIBRARIES`. It is replaced atomically, so processes that have
            loaded an older one keep it.
        strict: whether to enable warnings and treat them as errors. Tests do; an installation must not fail for the
            warnings of a compiler that nobody here has seen.

    Returns:
        None, or the error message if the platform is not supported, or if compiling, linking or writing fails.
    """
    if error := _platform_error():
        return error
    if library.name not in LIBRARIES_OF[target_machine()]:
        return f"{library.name} is not for {target_machine()}"
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "c++"]
    warnings = STRICT_FLAGS if strict else ()
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(SOURCE_DIR.glob("*.cc"))
        objects = [f"{Path(folder) / source.stem}.o" for source in sources]
        commands = [
            [
                *compiler,
                *spell_flags(compiler, compile_flags(library.name, source)),
                *warnings,
                "-c",
                str(source),
                "-o",
                target,
            ]
            for source, target in zip(sources, objects, strict=True)
        ]
        linked = Path(folder) / library.name
        link = [*compiler, "-shared", "-Wl,-z,defs", "-Wl,-s", "-o", str(linked), *objects]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = [*filter(None, pool.map(_run, commands))]
        if error := errors[0] if errors else _run(link):
            return error
        try:
            library.parent.mkdir(exist_ok=True)
            shutil.copyfile(linked, temporary := library.with_suffix(f".{os.getpid()}.so"))
            temporary.replace(library)
        except OSError as write_error:
            return f"{library} cannot be written: {write_error}"
    return None


def _run(command: list[str]) -> str | None:
    """Run a compiler command; return its error message, or None if it succeeds."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no C++ compiler ({error}); install g++, or name one in CXX"
    return f"{shlex.join(command)} failed: {result.stderr.strip()}" if result.returncode else None
