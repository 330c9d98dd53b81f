"""Compiles the kernels into the wheel, where there is a compiler and the machine is of the kind they are for."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "runtime/bert_runtime/lib/kernels.so"

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra",
          "-Wno-uninitialized", "-Wno-maybe-uninitialized")  # fmt: skip # GCC 12's own headers
_VNNI = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mprfchw")
_KERNELS = ("attention.cc", "float_attention.cc", "linear.cc", "norm.cc")
_SOURCES = {**dict.fromkeys(_KERNELS, _VNNI), "operators.cc": ()}
"""Each with the instructions it may use: `operators.cc` runs everywhere, and asks the processor first."""


class KernelsBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the library to a wheel, whose tag then names the platform. Without it the runtime works, only slower."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files of a wheel."""
        library = Path(self.root) / LIBRARY
        problem = _unsuitable() or (None if _is_current(library) else compile_kernels(library))
        if problem:
            with suppress(OSError):
                library.unlink()
            self.app.display_warning(f"bert-export is built without its own kernels: {problem}")
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


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
    """Writes the library, and returns nothing, or why it could not be made."""
    if problem := _unsuitable():
        return problem
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or "c++"]
    sources = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        objects = [str(Path(folder) / f"{name}.o") for name in _SOURCES]
        commands = [
            [*compiler, *_FLAGS, *flags, "-c", str(sources / name), "-o", compiled]
            for (name, flags), compiled in zip(_SOURCES.items(), objects, strict=True)
        ]
        built = Path(folder) / library.name
        commands.append([*compiler, "-shared", "-Wl,-z,defs", "-Wl,-s", "-o", str(built), *objects])
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                return f"no C++ compiler ({error}); install g++, or name one in CXX"
            if done.returncode:
                return f"{shlex.join(command)} failed: {done.stderr.strip()}"
        try:
            library.parent.mkdir(exist_ok=True)
            # Beside it and renamed: a process that runs the old one keeps it.
            shutil.copyfile(built, partial := library.with_suffix(f".{os.getpid()}.so"))
            partial.replace(library)
        except OSError as error:
            return f"{library} cannot be written: {error}"
    return None
