"""Which kernel library a CPU gets, and which operators it registers."""

import ctypes
from pathlib import Path

import pytest

from bert_export.kernel_functions import FUNCTIONS
from bert_export.outline_embeddings import EMBEDDING_FUNCTIONS
from bert_export.vocabulary_pooling import POOLING_FUNCTIONS
from bert_runtime.cpu import native_kernels
from bert_runtime.cpu.native_kernels import has_bf16_kernels, kernel_names
from bert_runtime.machine import cpu_flags

POOLED = {name for name in POOLING_FUNCTIONS if name.endswith("Max")}
"""Functions of sparse embeddings that have native kernels."""

LIBRARIES = [*native_kernels._LIBRARIES]
AMX, AVX512BF16, AVX512, AVXVNNI, AVX2, I8MMBF16, I8MM, DOTPROD, NEON = LIBRARIES
AVX512_FLAGS = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}


def first_operator(library: Path) -> str | None:
    """Return the first operator that a library registers on this CPU, or None if the CPU is not supported."""
    loaded = ctypes.CDLL(str(library))
    loaded.KernelName.restype = ctypes.c_char_p
    assert loaded.KernelName(99) is None
    name = loaded.KernelName(0)
    return name.decode() if name else None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (AVX512_FLAGS | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}, AMX),
        (AVX512_FLAGS | {"avx512_bf16", "amx_tile", "amx_int8"}, AVX512BF16),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"}, AVX512BF16),
        (AVX512_FLAGS - {"fma"}, None),
        ({"avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}, AVX512),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, None),  # Skylake: AVX-512 without VNNI
        ({"avx2", "fma", "avx_vnni"}, AVXVNNI),
        ({"avx2", "fma"}, AVX2),
        ({"avx2"}, None),
        ({"sse4_2"}, None),
        ({"asimd", "asimddp", "i8mm", "bf16"}, I8MMBF16),
        ({"asimd", "asimddp", "i8mm"}, I8MM),
        ({"asimd", "asimddp", "bf16"}, DOTPROD),
        ({"asimd", "asimddp"}, DOTPROD),
        ({"asimd"}, NEON),
    ],
)
def test_library_follows_cpu_flags(
    flags: set[str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    for name in LIBRARIES:
        (tmp_path / "lib" / name).write_bytes(b"")
    monkeypatch.setattr(native_kernels, "__file__", str(tmp_path / "cpu" / "native_kernels.py"))
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: frozenset(flags))
    library = native_kernels.kernel_library()
    assert (library.name if library else None) == expected
    while library:  # the next best is taken where a library is not installed
        library.unlink()
        assert native_kernels.kernel_library() != library
        library = native_kernels.kernel_library()


def test_the_next_library_runs_where_the_system_refuses_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives a process the registers of AMX when it asks; a library that cannot have them registers nothing."""
    (tmp_path / "lib").mkdir()
    for name in (AMX, AVX512BF16):
        (tmp_path / "lib" / name).write_bytes(b"")
    monkeypatch.setattr(native_kernels, "__file__", str(tmp_path / "cpu" / "native_kernels.py"))
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: frozenset(native_kernels._LIBRARIES[AMX]))
    monkeypatch.setattr(native_kernels, "_operators", lambda path: () if path.name == AMX else ("Linear",))
    library = native_kernels.kernel_library()
    assert library is not None
    assert library.name == AVX512BF16


@pytest.mark.parametrize("name", LIBRARIES)
def test_bf16_kernels_are_those_of_one_library_of_each_processor_family(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_kernels, "kernel_library", lambda: Path(name))
    monkeypatch.setattr(native_kernels, "kernel_names", lambda: ("Bf16Linear",))
    assert has_bf16_kernels() == (name in (AMX, AVX512BF16, I8MMBF16))
    monkeypatch.setattr(native_kernels, "kernel_names", lambda: ())  # it cannot be loaded
    assert not has_bf16_kernels()


@pytest.mark.parametrize("name", LIBRARIES)
def test_library_registers_operators_only_on_supported_cpus(name: str) -> None:
    library = Path(native_kernels.__file__).parents[1].joinpath("lib") / name
    if not library.is_file():
        pytest.skip(f"{name} is not part of this installation")
    assert bool(first_operator(library)) == (native_kernels._LIBRARIES[name] <= cpu_flags())


@pytest.mark.usefixtures("native_library")
def test_library_registers_all_operators() -> None:
    assert set(kernel_names()) == {*FUNCTIONS, *POOLED, *EMBEDDING_FUNCTIONS}


@pytest.mark.usefixtures("native_library")
def test_every_native_operator_has_an_onnx_function() -> None:
    assert set(kernel_names()) <= {*FUNCTIONS, *POOLING_FUNCTIONS, *EMBEDDING_FUNCTIONS}
