"""Native kernels for the operators where graphs spend their time.

The exporter groups operators into ONNX functions of the domain `KERNEL_DOMAIN`. A session that has registered the
kernel library runs a native kernel for each function that the library has. For all others, ONNX Runtime inlines the
function and runs the operators in its body. The sources are in `runtime/native`.

Kernels sum in another order than ONNX Runtime's operators, and quantize some values between two operators that those
keep in float32. Logits of INT8 graphs differ by 0.012 on average and by 0.12 at most with and without them (MiniLM on
SST-2, 6 of 1,819 labels; BANKING77 at most 0.20), so that manifests record which there were (`native_kernels_record`).
"""

import logging
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_runtime.machine import cpu_flags

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

__all__ = [
    "HOW_TO_GET_KERNELS",
    "KERNEL_DOMAIN",
    "has_bf16_kernels",
    "kernel_library",
    "kernel_names",
    "kernels_missing",
    "native_kernels_record",
    "register_kernels",
    "warn_of_missing_kernels",
]

_log = logging.getLogger("bert_runtime")

KERNEL_DOMAIN = "bert_export"
"""ONNX operator domain of the functions that have native kernels."""

HOW_TO_GET_KERNELS = "reinstall bert-export from its wheel for Linux on x86-64 or arm64, or where g++ is installed"

_LIBRARIES = {
    "kernels-amx.so": {
        *("fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
        *("amx_tile", "amx_int8", "amx_bf16"),
    },
    "kernels-avx512bf16.so": {"fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"},
    "kernels-avx512.so": {"fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "kernels-avxvnni.so": {"avx2", "fma", "avx_vnni"},
    "kernels-avx2.so": {"avx2", "fma"},
    "kernels-i8mmbf16.so": {"asimd", "asimddp", "i8mm", "bf16"},
    "kernels-i8mm.so": {"asimd", "asimddp", "i8mm"},
    "kernels-dotprod.so": {"asimd", "asimddp"},
    "kernels-neon.so": {"asimd"},
}
"""File name of each library, best first of its processor family, and the CPU flags that it needs.

They are compiled when the package is built on Linux for x86-64 or arm64, see `runtime/native/hatch_build.py`.
"""

_BF16_LIBRARIES = ("kernels-amx.so", "kernels-avx512bf16.so", "kernels-i8mmbf16.so")
"""The libraries whose functions for bf16 multiply in bfloat16."""


def kernel_library() -> Path | None:
    """Return the path of the best kernel library that is installed for this processor, or `None` where none is.

    Compilers that do not know the newest instruction sets leave the libraries for these out, and the system may not let
    this process use AMX's registers.
    """
    folder = Path(__file__).parents[1] / "lib"
    installed = [folder / name for name in _libraries() if (folder / name).is_file()]
    return next((path for path in installed if _operators(path) != ()), None)


def _libraries() -> list[str]:
    """Return the libraries for this processor, best first; none outside Linux and where ONNX Runtime's are faster."""
    if sys.platform != "linux":
        return []
    flags = cpu_flags()
    # With AVX-512 but no VNNI, ONNX Runtime's matmuls use vectors twice as wide as the AVX2 library's.
    widest = {"avx512f"} & flags
    return [name for name, needed in _LIBRARIES.items() if widest <= needed <= flags]


def register_kernels(options: "SessionOptions") -> None:
    """Register the native kernels with sessions that are opened with `options`; log a warning where that fails."""
    if (library := kernel_library()) is None:
        return
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        _log.warning("running without native kernels: %s; %s", error, HOW_TO_GET_KERNELS)


@lru_cache(maxsize=1)
def warn_of_missing_kernels() -> None:
    """Log a warning, once per process, if this processor has native kernels and this installation lacks them.

    A library that is installed but cannot be loaded is the warning of `register_kernels`.
    """
    if _libraries() and kernel_library() is None:
        _log.warning(
            "running without native kernels, which are faster on this processor but not part of this installation; %s",
            HOW_TO_GET_KERNELS,
        )


def has_bf16_kernels() -> bool:
    """Return whether bf16 graphs multiply in bfloat16 here; elsewhere they multiply in FP32 by rounded weights."""
    library = kernel_library()
    return library is not None and library.name in _BF16_LIBRARIES and bool(kernel_names())


def kernels_missing() -> bool:
    """Return whether native kernels exist for this processor, but are not installed or cannot be loaded."""
    return bool(_libraries()) and not kernel_names()


@lru_cache(maxsize=1)
def kernel_names() -> tuple[str, ...]:
    """Return the names of the functions that have a native kernel here; empty where no library can be loaded."""
    return (_operators(library) if (library := kernel_library()) else None) or ()


@lru_cache
def _operators(library: Path) -> tuple[str, ...] | None:
    """Return the names of a library's functions, none if this process cannot run them; `None` if it does not load."""
    import ctypes

    try:
        name = ctypes.CDLL(str(library)).KernelName
    except (OSError, AttributeError):
        return None
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_size_t]
    names: list[str] = []
    while found := name(len(names)):
        names.append(found.decode())
    return tuple(names)


def native_kernels_record() -> dict[str, Any]:
    """Return the kernel library that sessions of this process use and the functions it has, as manifests state them.

    Without kernels the library is `None`.
    """
    names, library = kernel_names(), kernel_library()
    return {"library": library.name if names and library is not None else None, "functions": list(names)}
