"""Stand-ins for the CUDA libraries, compiled for the symbols that a wheel of onnxruntime-gpu needs."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

__all__ = ["build_stubs"]

_SOURCE = Path(__file__).parent / "stub_gpu" / "stub_cuda.c"

_LIBRARIES = {
    "cublasLt": "libcublasLt.so.13",
    "cublas": "libcublas.so.13",
    "cudnn": "libcudnn.so.9",
    "curand": "libcurand.so.10",
    "cuda": "libcudart.so.13",
    "__cuda": "libcudart.so.13",
    "cu": "libcuda.so.1",
}
"""The library of a symbol by the symbol's prefix; the first that matches."""

_VERSIONED = ("libcublasLt.so.13", "libcublas.so.13", "libcudart.so.13")
"""Libraries whose symbols carry the library's name as their version."""


def build_stubs(provider: Path, folder: Path) -> None:
    """Compile the stubs.

    Args:
        provider: `libonnxruntime_providers_cuda.so` of the wheel.
        folder: the folder for the libraries, to be put first on `LD_LIBRARY_PATH`.

    Raises:
        subprocess.CalledProcessError: `nm` or `gcc` failed.
    """
    defined = set(re.findall(r"^(?:[\w*]+ )+\**(\w+)\(", _SOURCE.read_text(encoding="utf-8"), re.MULTILINE))
    by_library: dict[str, set[str]] = defaultdict(set, {"libcudart.so.13": {"StubIsCapturing"}})
    for name in _needed_symbols(provider):
        by_library[next(library for prefix, library in _LIBRARIES.items() if name.startswith(prefix))].add(name)
    missing = sorted(set().union(*by_library.values()) - defined)
    generated = folder / "stub_missing.c"
    generated.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in missing), encoding="utf-8")
    for library in set(_LIBRARIES.values()):
        _link(folder, library, by_library[library], [_SOURCE, generated])


def _needed_symbols(provider: Path) -> set[str]:
    """Return the CUDA functions that the provider is linked to, and those of cuDNN, which it looks up by name."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", provider], check=True, capture_output=True, text=True
    ).stdout
    linked = set(re.findall(r"\bU ((?:__cuda|cu)\w+)", listed))
    return linked | {name.decode() for name in re.findall(rb"\0(cudnn[A-Z]\w+)(?=\0)", provider.read_bytes())}


def _link(folder: Path, library: str, symbols: set[str], sources: list[Path]) -> None:
    """Link a library that exports some symbols of the sources, with the version that the provider asks for."""
    exported = "".join(f"{name}; " for name in sorted(symbols))
    version = f"{library} " if library in _VERSIONED else ""
    script = folder / f"{library}.map"
    script.write_text(f"{version}{{ {'global: ' + exported if symbols else ''}local: *; }};\n", encoding="utf-8")
    options = ["-w", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
    subprocess.run(["gcc", *options, *sources, "-o", folder / library, "-lpthread", "-ldl"], check=True)
