"""Compiles the kernels into the wheel, where there is a compiler and the machine is of the kind they are for."""

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

FOLDER = "runtime/bert_runtime/lib"

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra",
          "-Wno-uninitialized", "-Wno-maybe-uninitialized")  # fmt: skip # GCC 12's own headers
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mprfchw")
_AVX2 = ("-mavx2", "-mfma")
_LIBRARIES = {
    "kernels-avx512.so": ((), _AVX512),
    "kernels-avxvnni.so": (("-DBERT_AVX2", "-DBERT_AVXVNNI"), (*_AVX2, "-mavxvnni")),
    "kernels-avx2.so": (("-DBERT_AVX2",), _AVX2),
}
"""What `bert_runtime.cpu.native_kernels` looks for: definitions, and the instructions that each may use."""
_KERNELS = ("attention.cc", "float_attention.cc", "gelu.cc", "linear.cc", "norm.cc", "packing.cc")
_EVERYWHERE = ("operators.cc",)
"""Compiled for any processor, since it asks first which one it is."""


class KernelsBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the libraries to a wheel, whose tag then names the platform. Without them the runtime works, only slower."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files of a wheel."""
        folder = Path(self.root) / FOLDER
        problems = {name: _made(folder / name) for name in _LIBRARIES}
        made = [name for name, problem in problems.items() if problem is None]
        if len(made) < len(problems):
            said = sorted({problem for problem in problems.values() if problem})
            kind = "some of its own kernels" if made else "its own kernels"
            self.app.display_warning(f"bert-export is built without {kind}: {'; '.join(said)}")
        if not made:
            return
        build_data["artifacts"] += [f"/{FOLDER}/{each}" for each in made]
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _made(library: Path) -> str | None:
    """Compiles a library where it is not there already; why it cannot be made, if so."""
    problem = _unsuitable() or (None if _is_current(library) else compile_kernels(library))
    if problem:
        with suppress(OSError):
            library.unlink()
    return problem


def _is_current(library: Path) -> bool:
    """Whether the library is younger than what it is made of."""
    sources = [each for each in Path(__file__).parent.iterdir() if each.suffix in (".cc", ".h", ".py")]
    return library.is_file() and library.stat().st_mtime > max(each.stat().st_mtime for each in sources)


def _unsuitable() -> str | None:
    """Why there are no kernels for this kind of machine, where there are none."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    return None


def compile_kernels(library: Path) -> str | None:
    """Writes the library of that name, and returns nothing, or why it could not be made."""
    if problem := _unsuitable():
        return problem
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "c++"]
    definitions, instructions = _LIBRARIES[library.name]
    sources = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: f"{Path(folder) / name}.o" for name in (*_KERNELS, *_EVERYWHERE)}
        built = Path(folder) / library.name
        commands = [
            [*compiler, *_FLAGS, *definitions, *(instructions if name in _KERNELS else ()), "-c", str(sources / name),
             "-o", part]
            for name, part in parts.items()
        ]  # fmt: skip
        linking = [*compiler, "-shared", "-Wl,-z,defs", "-Wl,-s", "-o", str(built), *parts.values()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = [*filter(None, pool.map(_run, commands))]
        if problem := problems[0] if problems else _run(linking):
            return problem
        try:
            library.parent.mkdir(exist_ok=True)
            # Beside it and renamed: a process that runs the old one keeps it.
            shutil.copyfile(built, partial := library.with_suffix(f".{os.getpid()}.so"))
            partial.replace(library)
        except OSError as error:
            return f"{library} cannot be written: {error}"
    return None


def _run(command: list[str]) -> str | None:
    """What went wrong, if anything did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no C++ compiler ({error}); install g++, or name one in CXX"
    return f"{shlex.join(command)} failed: {done.stderr.strip()}" if done.returncode else None
