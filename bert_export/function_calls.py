"""Insert calls of the functions of `bert_export.kernel_functions` into graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from bert_export.onnx_graph import insert_before, replace_value
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["call_function"]


def call_function(
    anchor: ir.Node,
    name: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Insert a call of a function that computes `outputs` from now on, and return the function's name."""
    called = insert_before(anchor, name, inputs, like=outputs, attributes=attributes, domain=KERNEL_DOMAIN)
    for old, new in zip(outputs, called, strict=True):
        replace_value(old, new)
    return name
