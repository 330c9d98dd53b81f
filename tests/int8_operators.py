"""Whether ONNX Runtime's int8 matmuls are right here."""

from functools import cache

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["int8_operators_are_right"]


@cache
def int8_operators_are_right() -> bool:
    """Return whether `MatMulIntegerToFloat` multiplies rows that are no multiple of 64 bytes.

    With AMX, ONNX Runtime 1.24.1 pads such rows with what a matmul before left there; 1.31.1 does not.
    """
    return all(_is_right(95, inner, columns) for inner, columns in ((96, 1551), (300, 600)))


def _is_right(rows: int, inner: int, columns: int) -> bool:
    """Return whether the product of a random uint8 [rows, inner] and int8 [inner, columns] is exact."""
    rng = np.random.default_rng(0)
    x, weight = rng.integers(0, 256, (rows, inner), np.uint8), rng.integers(-127, 128, (inner, columns), np.int8)
    constants = {
        "weight": weight,
        "x_scale": np.float32(1),
        "scales": np.ones(columns, np.float32),
        "zero_point": np.uint8(117),
    }
    node = helper.make_node("MatMulIntegerToFloat", ["x", *constants], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node], "matmul",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [None, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return bool((y == (x.astype(np.int64) - 117) @ weight.astype(np.int64)).all())
