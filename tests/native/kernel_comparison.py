"""Compare a native kernel with its reference: the standard operators of the ONNX function that it implements."""

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

_OUTPUT_TYPES = {
    "QuantizedLinearGelu": [ir.DataType.UINT8],
    "QuantizedAttention": [ir.DataType.UINT8],
    "QuantizedRelativeAttention": [ir.DataType.UINT8],
    "QuantizedDisentangledAttention": [ir.DataType.UINT8],
    "QuantizedRotaryAttention": [ir.DataType.UINT8],
    "QuantizedLocalAttention": [ir.DataType.UINT8],
    "QuantizedLinearGatedGelu": [ir.DataType.UINT8],
    "QuantizedLinearGatedSilu": [ir.DataType.UINT8],
    "AddPreNormQuantize": [ir.DataType.FLOAT, ir.DataType.UINT8],
    "AddNormQuantize": [ir.DataType.FLOAT, ir.DataType.UINT8],
    "AddPreNorm": [ir.DataType.FLOAT, ir.DataType.FLOAT],
    "EmbedNormQuantize": [ir.DataType.FLOAT, ir.DataType.UINT8],
    "KeepTokens": [ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.BOOL, ir.DataType.BOOL],
    "FirstRows": [ir.DataType.INT64],
}


class KernelComparison:
    """One function call in two sessions: with the native kernel, and with ONNX Runtime's operators only.

    `function` is that of the graph, where it is none of `FUNCTIONS`. Skips the test if this CPU has no such kernel.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array],
        folder: Path,
        function: ir.Function | None = None,
        **attributes: Any,
    ) -> None:
        if name not in kernel_names():
            pytest.skip(f"{name} has no native kernel on this CPU; {', '.join(kernel_names()) or 'nothing'} has")
        function = function or FUNCTIONS[name]
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
        arguments = [{**values, **weights}.get(parameter.name or "") for parameter in function.inputs]
        output_types = _OUTPUT_TYPES.get(name, [ir.DataType.FLOAT])
        outputs = [
            ir.Value(name=output.name, type=ir.TensorType(output_type))
            for output, output_type in zip(function.outputs, output_types, strict=True)
        ]
        node = ir.node(name, arguments, attributes, domain=KERNEL_DOMAIN, outputs=outputs)
        opsets = {"": 23, "com.microsoft": 1, KERNEL_DOMAIN: 1}
        graph = ir.Graph([*values.values()], outputs, nodes=[node], initializers=[*weights.values()], name="call",
                         opset_imports=opsets)  # fmt: skip
        model = ir.Model(graph, ir_version=10, functions=[function])
        self.inputs = inputs
        path = folder / "call.onnx"
        ir.save(model, path, external_data="call.onnx.data")
        self._sessions = [open_onnxruntime_session(path, 2, int8=True, kernels=kernels) for kernels in (True, False)]

    def outputs(self, **inputs: Array) -> tuple[list[Array], list[Array]]:
        """Return the outputs of the native kernel and of the reference. `inputs` replace those of the constructor."""
        actual, expected = (session.run(None, {**self.inputs, **inputs}) for session in self._sessions)
        return actual, expected

    def native_outputs(self) -> list[Array]:
        """Return the outputs of the native kernel alone, where the reference would need gigabytes."""
        return self._sessions[0].run(None, self.inputs)


def uint8_difference(actual: Array, expected: Array) -> tuple[int, float]:
    """Return the maximum difference in quantization steps, and the fraction of elements that differ."""
    difference = np.abs(actual.astype(int) - expected.astype(int))
    return int(difference.max(initial=0)), float((difference > 0).mean())


def resident_weights_kb() -> list[int]:
    """Return how much of each mapped weight file of a comparison is in memory, in KiB."""
    found, is_weight_file = [], False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split()[0]:
            is_weight_file = line.endswith("call.onnx.data")
        elif is_weight_file and line.startswith("Rss:"):
            found.append(int(line.split()[1]))
    return found
