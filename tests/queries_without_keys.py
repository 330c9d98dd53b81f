"""Releases of ONNX Runtime that attend otherwise where a query has no key, as in a local layer's padding."""

import onnxruntime
import pytest

__all__ = ["skip_where_queries_without_keys_differ"]


def skip_where_queries_without_keys_differ() -> None:
    """Skip a test of local attention without native kernels: 1.24 to 1.27 were found to differ, 1.31 not."""
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) <= (1, 27):
        pytest.skip("ONNX Runtime up to 1.27 gives queries without keys other outputs")
