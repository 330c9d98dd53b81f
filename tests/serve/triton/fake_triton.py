"""The parts of Triton's module `triton_python_backend_utils` that a Python backend calls."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOG: list[str] = []
"""Messages that were logged as errors."""


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.name = name
        self.array = array

    def as_numpy(self) -> NDArray[Any]:
        return self.array


class TritonError:
    """An error response's message and code."""

    INVALID_ARG = "INVALID_ARG"
    INTERNAL = "INTERNAL"

    def __init__(self, message: str, code: str) -> None:
        self.message = message
        self.code = code


class TritonModelException(Exception):  # noqa: N818 # Triton's name
    """What a backend raises where it cannot start."""


class InferenceResponse:
    """The response to one request."""

    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs = {tensor.name: tensor.array for tensor in output_tensors or []}
        self.error = error


class Request:
    """A request: columns of texts by input name, and the outputs that it asks for."""

    def __init__(self, outputs: tuple[str, ...] = ("RESULT",), **columns: list[str | bytes]) -> None:
        self.outputs = outputs
        self.columns = columns

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    if name not in request.columns:
        return None
    values = [value if isinstance(value, bytes) else value.encode() for value in request.columns[name]]
    array = np.empty((len(values), 1), dtype=np.object_)
    array[:, 0] = values
    return Tensor(name, array)


Logger = SimpleNamespace(log_error=LOG.append)
