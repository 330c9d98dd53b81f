"""A call of one of our kernels beside the operators that its function consists of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from bert_export.kernel_functions import FUNCTIONS
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN, kernel_names
from bert_runtime.cpu.session import open_onnxruntime_session

Array = NDArray[Any]


class Both:
    """One call of a function, with kernels and without; skips the test where it has no kernel."""

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array],
        folder: Path,
        **attributes: Any,
    ) -> None:
        if name not in kernel_names():
            pytest.skip(f"{name} has no kernel here, only {', '.join(kernel_names()) or 'none has'}")
        function = FUNCTIONS[name]
        values = {
            key: ir.Value(
                name=key,
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape([f"{key}_{axis}" for axis in range(array.ndim)]),
            )
            for key, array in inputs.items()
        }
        weights = {
            key: ir.Value(name=key, const_value=ir.tensor(array, name=key), type=ir.TensorType(ir.tensor(array).dtype))
            for key, array in constants.items()
        }
        arguments = [{**values, **weights}[each.name or ""] for each in function.inputs]
        outputs = [ir.Value(name=each.name) for each in function.outputs]
        node = ir.node(name, arguments, attributes, domain=KERNEL_DOMAIN, outputs=outputs)
        for each in outputs:
            is_bytes = each.name == "bytes" or name in ("QuantizedLinearGelu", "QuantizedAttention")
            each.type = ir.TensorType(ir.DataType.UINT8 if is_bytes else ir.DataType.FLOAT)
        opsets = {"": 23, "com.microsoft": 1, KERNEL_DOMAIN: 1}
        graph = ir.Graph([*values.values()], outputs, nodes=[node], initializers=[*weights.values()], name="call",
                         opset_imports=opsets)  # fmt: skip
        model = ir.Model(graph, ir_version=10, functions=[function])
        self.inputs = inputs
        path = folder / "call.onnx"
        ir.save(model, path, external_data="call.onnx.data")
        self._sessions = [open_onnxruntime_session(path, 2, int8=True, kernels=kernels) for kernels in (True, False)]

    def outputs(self, **inputs: Array) -> tuple[list[Array], list[Array]]:
        """What the kernel and what the operators answer."""
        ours, theirs = (session.run(None, {**self.inputs, **inputs}) for session in self._sessions)
        return ours, theirs


def steps_apart(ours: Array, theirs: Array) -> tuple[int, float]:
    """The largest difference of bytes, and the share of those that differ."""
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    return int(apart.max(initial=0)), float((apart > 0).mean())
