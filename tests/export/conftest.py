"""What tests of the kernels share."""

from collections.abc import Iterator

import pytest

from bert_runtime import kernels
from bert_runtime.machine import cpu_flags


@pytest.fixture(params=kernels._LIBRARIES)
def each_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels for this processor, and for lesser ones, as which it works, too."""
    flags = frozenset(kernels._LIBRARIES[request.param])
    if missing := flags - cpu_flags():
        pytest.skip(f"{request.param} needs {', '.join(sorted(missing))}")
    monkeypatch.setattr(kernels, "cpu_flags", lambda: flags)
    kernels.kernel_names.cache_clear()
    if (library := kernels.kernel_library()) is None or library.name != request.param:
        pytest.skip(f"{request.param} is not part of this installation")
    yield
    kernels.kernel_names.cache_clear()
