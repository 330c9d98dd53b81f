"""Fixtures of the native kernels' tests."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bert_runtime.cpu import native_kernels
from bert_runtime.machine import cpu_flags

NATIVE = Path(__file__).parents[2] / "runtime" / "native"


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    """The build hook's module."""
    spec = importlib.util.spec_from_file_location("hatch_build", NATIVE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FOLDER = Path(native_kernels.__file__).parents[1] / "lib"

SUPPORTED = [
    name
    for name, needed in native_kernels._LIBRARIES.items()
    if needed <= cpu_flags() and native_kernels._operators(_FOLDER / name) != ()
]
"""The kernel libraries for this processor, the best first; without AMX's where the system refuses its registers."""


@pytest.fixture(params=SUPPORTED or ["none"])
def native_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test with every kernel library that this CPU supports, by masking CPU features."""
    if not SUPPORTED:
        pytest.skip("no kernel library supports this processor")
    flags = frozenset(native_kernels._LIBRARIES[request.param])
    monkeypatch.setattr(native_kernels, "cpu_flags", lambda: flags)
    native_kernels.kernel_names.cache_clear()
    if (library := native_kernels.kernel_library()) is None or library.name != request.param:
        pytest.skip(f"{request.param} is not part of this installation")
    yield
    native_kernels.kernel_names.cache_clear()
