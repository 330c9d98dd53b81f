"""Tensors of KServe's Open Inference Protocol, as JSON and as binary data.

    ┌─────────────────────┬───────────────┬───────────────┐
    │ JSON                │ tensor 0      │ tensor 1      │   Inference-Header-Content-Length: bytes of the JSON
    └─────────────────────┴───────────────┴───────────────┘
    BYTES: for each element its length as uint32 (little-endian), and its bytes. FP32: little-endian, row-major.

A tensor whose parameters have `binary_data_size` has its values after the JSON, the others in `data`.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray

__all__ = ["InferRequest", "OutputTensor", "RequestedOutput", "read_request", "write_response"]

_LENGTH = struct.Struct("<I")


class InputTensor(BaseModel):
    """An input, with its values in `data` or behind the JSON."""

    name: str
    shape: Annotated[list[int], Field(fail_fast=True)]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class RequestedOutput(BaseModel):
    """An output that the answer shall have."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """The JSON of a request."""

    id: str | None = None
    parameters: dict[str, Any] = {}
    inputs: Annotated[list[InputTensor], Field(fail_fast=True)] = Field(min_length=1)
    outputs: Annotated[list[RequestedOutput], Field(fail_fast=True)] | None = None


class OutputTensor(NamedTuple):
    """An output: texts (BYTES) or numbers (FP32)."""

    name: str
    values: list[bytes] | FloatArray

    @property
    def datatype(self) -> str:
        """The protocol's name of the type."""
        return "BYTES" if isinstance(self.values, list) else "FP32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return (len(self.values),) if isinstance(self.values, list) else self.values.shape

    def to_binary(self) -> bytes:
        """Return the values as binary data."""
        if isinstance(self.values, list):
            return b"".join(_LENGTH.pack(len(value)) + value for value in self.values)
        return self.values.astype("<f4").tobytes()

    def to_json(self) -> Any:
        """Return the values for `data`."""
        return [value.decode() for value in self.values] if isinstance(self.values, list) else self.values.ravel()


def read_request(body: bytes, json_length: str | None) -> tuple[InferRequest, dict[str, list[str]]]:
    """Read a request whose inputs are texts.

    Args:
        body: the body.
        json_length: value of the header `Inference-Header-Content-Length`; `None` where all of the body is JSON.

    Returns:
        The JSON, and the N texts of each input by its name.

    Raises:
        InputError: an input is not a tensor of texts, or the body is cut off.
        RequestValidationError: the JSON has another shape.
    """
    if json_length is not None and not (json_length.isdecimal() and int(json_length) <= len(body)):
        raise InputError(
            f"expected Inference-Header-Content-Length to be at most the body's {len(body)} bytes, "
            f"found {json_length:.20}"
        )
    end = len(body) if json_length is None else int(json_length)
    try:
        request = InferRequest.model_validate_json(body[:end])
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None
    texts: dict[str, list[str]] = {}
    for tensor in request.inputs:
        size = tensor.parameters.get("binary_data_size")
        if size is not None and not (isinstance(size, int) and 0 <= size <= len(body) - end):
            raise _error(tensor, f"binary_data_size of at most the {len(body) - end} bytes left", size)
        if tensor.name in texts:
            raise _error(tensor, "each input once", "it twice")
        texts[tensor.name] = _read_texts(tensor, None if size is None else body[end : end + size])
        end += size or 0
    if end != len(body) and json_length is not None:
        raise InputError(f"expected inputs of all binary data, found {len(body) - end} more bytes")
    return request, texts


def _error(tensor: InputTensor, expected: str, found: object) -> InputError:
    return InputError(f"input tensor {tensor.name!r:.50}: expected {expected}, found {found!s:.50}")


def _read_texts(tensor: InputTensor, binary: bytes | None) -> list[str]:
    if tensor.datatype != "BYTES":
        raise _error(tensor, "datatype BYTES", tensor.datatype)
    if "shared_memory_region" in tensor.parameters:
        raise _error(tensor, "data in the request", "shared memory, which this server does not read")
    shape = tensor.shape
    if len(shape) not in (1, 2) or shape[1:] not in ([], [1]) or shape[0] < 0:
        raise _error(tensor, "shape [N] or [N, 1]", shape)
    if binary is None and tensor.data is None:
        raise _error(tensor, "data, or binary_data_size in its parameters", "neither")
    texts = list(_binary_texts(tensor, binary) if binary is not None else _json_texts(tensor, tensor.data))
    if len(texts) != shape[0]:
        raise _error(tensor, f"{shape[0]} texts as its shape says", len(texts))
    return texts


def _json_texts(tensor: InputTensor, values: Any) -> Iterator[str]:
    """Yield the texts of a list, which may be nested as the shape is."""
    for value in values:
        if isinstance(value, list) and len(value) == 1 and len(tensor.shape) == 2:
            (value,) = value
        if not isinstance(value, str):
            raise _error(tensor, "texts in data", type(value).__name__)
        yield value


def _binary_texts(tensor: InputTensor, binary: bytes) -> Iterator[str]:
    start = 0
    while start < len(binary):
        end = start + _LENGTH.size
        length = _LENGTH.unpack(binary[start:end])[0] if end <= len(binary) else 0
        if end + length > len(binary):
            raise _error(tensor, f"an element's length and its bytes at byte {start}", f"{len(binary) - start} bytes")
        try:
            yield binary[end : end + length].decode()
        except UnicodeDecodeError:
            raise _error(tensor, "texts in UTF-8", f"other bytes in the element at byte {start}") from None
        start = end + length


def write_response(answer: dict[str, Any], outputs: Sequence[tuple[OutputTensor, bool]]) -> tuple[bytes, int | None]:
    """Return a body, and the length of its JSON where binary data follows that.

    Args:
        answer: the answer's JSON without `outputs`.
        outputs: the tensors, each with whether it is sent as binary data.
    """
    described, chunks = [], []
    for tensor, binary in outputs:
        values: dict[str, Any]
        if binary:
            chunks.append(tensor.to_binary())
            values = {"parameters": {"binary_data_size": len(chunks[-1])}}
        else:
            values = {"data": tensor.to_json()}
        described.append({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, **values})
    json = orjson.dumps({**answer, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([json, *chunks]), len(json) if chunks else None
