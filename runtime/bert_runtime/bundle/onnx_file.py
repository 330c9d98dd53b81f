"""Weights and attributes of an ONNX file, read without the `onnx` package.

An ONNX file is a protobuf message (https://protobuf.dev/programming-guides/encoding; the fields are those of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the messages that lead to tensors and attributes are
read, and weights inside the file are skipped.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bert_runtime.errors import BundleError

__all__ = ["OnnxFile", "Parameter", "read_onnx_file"]

_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse_tensor", 23: "sparse_tensor"},
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
"""Per message, the fields that are messages of interest, by number."""

_SCALARS: dict[str, dict[int, str]] = {
    "function": {1: "name"},
    "node": {4: "name"},  # op_type
    "attribute": {1: "name", 3: "int", 21: "reference"},
    "entry": {1: "key", 2: "value"},
}
"""Per message, the numbers and strings of interest, by number."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
"""Wire types that ONNX uses."""

_MAX_FIELDS = 5_000_000
"""Fields that are read of one file: 2,000 times those of MiniLM in INT8. A judgement."""

Parameter = tuple[str, str]
"""An operator or function, and the name of one of its attributes."""


@dataclass(frozen=True, kw_only=True)
class OnnxFile:
    """The parts of an ONNX file that loading checks."""

    external_files: set[str] = field(default_factory=set)
    """Locations that tensors name for their values."""
    not_positive: dict[Parameter, int] = field(default_factory=dict)
    """Attributes that are an integer below 1 or above 2³¹ - 1, or none at all, with one such value; none is 0."""
    references: dict[Parameter, set[Parameter]] = field(default_factory=dict)
    """Attributes of operators in a function's body that take the value of an attribute of the function."""


@dataclass
class _Message:
    """A message in the file: where its bytes are, the message around it, and its `_SCALARS`."""

    kind: str
    start: int
    end: int
    parent: "_Message | None" = None
    numbers: dict[str, int] = field(default_factory=dict)
    strings: dict[str, bytes] = field(default_factory=dict)

    def string(self, name: str) -> str:
        return self.strings.get(name, b"").decode("utf-8")


def read_onnx_file(path: str | Path) -> OnnxFile:
    """Read an ONNX file.

    Raises:
        BundleError: the file is not an ONNX graph, or cannot be read.
    """
    found = OnnxFile()
    try:
        with Path(path).open("rb") as stream:
            if stream.seek(0, 2):
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    for message in _messages(content):
                        _note(message, found)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: not an ONNX graph: {error}") from None
    return found


def _note(message: _Message, found: OnnxFile) -> None:
    """Add what a message says to `found`."""
    if message.kind == "entry" and message.string("key") == "location":
        found.external_files.add(message.string("value"))
    if message.kind != "attribute" or message.parent is None:
        return
    parameter = (message.parent.string("name"), message.string("name"))
    if reference := message.string("reference"):
        found.references.setdefault(parameter, set()).add((_function_around(message), reference))
    elif not 0 < (value := message.numbers.get("int", 0)) < 1 << 31:
        found.not_positive[parameter] = value if value < 1 << 63 else value - (1 << 64)


def _function_around(message: _Message) -> str:
    """Return the name of the function whose body a message is in, or an empty name."""
    inner: _Message | None = message
    while inner is not None and inner.kind != "function":
        inner = inner.parent
    return "" if inner is None else inner.string("name")


def _messages(content: mmap.mmap) -> Iterator[_Message]:
    """Yield a model's messages, each with its own scalars and those of the messages around it."""
    num_fields = 0
    pending = [_Message("model", 0, len(content))]
    while pending:
        message = pending.pop()
        inner_messages, scalars = _MESSAGES[message.kind], _SCALARS.get(message.kind, {})
        for number, value in _fields(content, message.start, message.end):
            num_fields += 1
            if num_fields > _MAX_FIELDS:
                raise ValueError(f"more than {_MAX_FIELDS:,} fields")
            if isinstance(value, int):
                if number in scalars:
                    message.numbers[scalars[number]] = value
            elif number in inner_messages:
                pending.append(_Message(inner_messages[number], *value, message))
            elif number in scalars:
                message.strings[scalars[number]] = content[slice(*value)]
        yield message


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Yield the number of each field of a message, with its integer, or where its bytes start and end.

    Fixed-size fields are skipped.

    Raises:
        ValueError: the bytes are not a protobuf message.
    """
    position = start
    while position < end:
        tag, position = _varint(content, position, end)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position, end)
            yield tag >> 3, value
        elif wire_type == _BYTES:
            size, position = _varint(content, position, end)
            if size > end - position:
                raise ValueError(f"a field at byte {position} is longer than the message around it")
            yield tag >> 3, (position, position + size)
            position += size
        elif wire_type in (_FIXED_32, _FIXED_64):
            position += 4 if wire_type == _FIXED_32 else 8
        else:
            raise ValueError(f"unknown wire type {wire_type} at byte {position}")
        if not 0 < tag < 1 << 32 or position > end:
            raise ValueError(f"malformed field at byte {position}")


def _varint(content: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """Return the number of 7 bits per byte at `position`, low bits first, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"malformed number at byte {position}")
