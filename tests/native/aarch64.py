"""Cross compilers for arm64, and processors of it that QEMU's user mode runs programs of."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = "aarch64-linux-gnu"
COMPILERS = {
    "zig c++": f"{sys.executable} -m ziglang c++ -target {TARGET}.2.28",
    "g++": f"{TARGET}-g++",
    "clang++": f"clang++ --target={TARGET}",
}
PROCESSORS = {
    "kernels-neon.so": "cortex-a53",  # a program with newer instructions ends here with an illegal one
    "kernels-dotprod.so": "neoverse-n1",  # has dot products, but no int8 matrix products
    "kernels-i8mm.so": "max",
    "kernels-i8mmbf16.so": "max",
}
"""A processor for each library that has no more of its instructions than the library needs, where QEMU knows one."""
BETTER_PROCESSORS = {"kernels-i8mm.so"}
"""Libraries whose processor has a better one: QEMU 7.2 has no processor with int8 matrix products but no bfloat16."""


def cross_compiler(name: str) -> str:
    """Return the command of a compiler for arm64; skip the test where it compiles no program."""
    command = COMPILERS[name]
    probe = [*shlex.split(command), "-E", "-x", "c++", "-"]
    try:
        result = subprocess.run(probe, input="#include <vector>\n", capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"{name} for arm64 is not installed: {error}")
    if result.returncode:
        pytest.skip(f"{name} does not compile for arm64: {result.stderr[-200:]}")
    return command


def emulator(processor: str, sysroot: Path) -> list[str]:
    """Return the command that runs a program on a processor; skip the test without QEMU's user mode.

    Args:
        processor: the name that QEMU has for it.
        sysroot: the folder with `lib/ld-linux-aarch64.so.1`.
    """
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        if (qemu := shutil.which(name)) is not None:
            return [qemu, "-cpu", processor, "-L", str(sysroot)]
    pytest.skip("qemu-aarch64 is not installed (Debian's package qemu-user-static)")


def sysroot() -> Path:
    """Return the folder with arm64's C library; skip the test where there is none."""
    made = os.environ.get("BERT_EXPORT_AARCH64")
    for folder in (Path(made, "root") if made else None, Path("/usr", TARGET)):
        if folder is not None and (folder / "lib" / "ld-linux-aarch64.so.1").exists():
            return folder
    pytest.skip("no C library of arm64 (Debian's package libc6-arm64-cross, or `make test-arm`)")
