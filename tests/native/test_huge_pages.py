"""Packed weights lie in memory that Linux may give huge pages."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest

from .conftest import SUPPORTED
from .kernel_comparison import KernelComparison
from .test_gemm_kernels import int8_linear

pytestmark = [
    pytest.mark.usefixtures("native_library"),
    pytest.mark.parametrize(  # all libraries have the same code for it
        "native_library",
        [pytest.param(name, marks=pytest.mark.slow if name in SUPPORTED[1:] else ()) for name in SUPPORTED or ["none"]],
        indirect=True,
    ),
    pytest.mark.skipif(
        not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this Linux has no transparent huge pages"
    ),
]

MEBIBYTE = 1 << 20


def huge_page_bytes() -> int:
    """Return the bytes of the process's mappings that asked for huge pages (flag `hg`, of `madvise`)."""
    gc.collect()
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text("utf-8"), flags=re.MULTILINE)
    asked = [mapping for mapping in mappings if re.search(r"^VmFlags:.*\bhg\b", mapping, re.MULTILINE)]
    bounds = [mapping.split(" ", 1)[0].split("-") for mapping in asked]
    return sum(int(end, 16) - int(start, 16) for start, end in bounds)


def test_weights_share_a_chunk_that_ends_with_the_last_of_them(tmp_path: Path) -> None:
    before = huge_page_bytes()
    comparisons = []
    for number in range(3):  # unequal weights, since equal ones are packed once
        x, constants = int8_linear((1, 3), 512, 1024)
        constants["weight"] = np.roll(constants["weight"], number)
        (folder := tmp_path / str(number)).mkdir()
        comparisons.append(KernelComparison("QuantizedLinear", x, constants, folder))
    assert huge_page_bytes() - before in (0, 32 * MEBIBYTE)  # 0: another test's weights left room in their chunk
    for comparison in comparisons:
        (actual,), (expected,) = comparison.outputs()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
    del comparison
    comparisons.clear()
    assert huge_page_bytes() <= before


def test_weight_larger_than_a_chunk_has_one_of_its_own(tmp_path: Path) -> None:
    x, constants = int8_linear((1, 2), 4096, 9024)
    before = huge_page_bytes()  # NumPy asks for huge pages, too
    comparison = KernelComparison("QuantizedLinear", x, constants, tmp_path)
    assert 4096 * 9024 <= huge_page_bytes() - before < 4096 * 9024 + 2 * MEBIBYTE
    (actual,), (expected,) = comparison.outputs()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
