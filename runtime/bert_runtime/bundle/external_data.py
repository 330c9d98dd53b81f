"""The files that a graph reads its weights from, found in the ONNX file without the `onnx` package.

An ONNX file is a protobuf message (https://protobuf.dev/programming-guides/encoding; the fields are those of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the messages that lead to tensors are read, and weights
inside the file are skipped.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from bert_runtime.bundle.manifest import Variant
from bert_runtime.errors import BundleError

__all__ = ["check_external_data", "external_files"]

_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse_tensor", 23: "sparse_tensor"},
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {1: "key", 2: "value"},
}
"""Per message, the fields that lead to a tensor's `external_data` entries, by number."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
"""Wire types that ONNX uses."""

_MAX_FIELDS = 5_000_000
"""Fields that are read of one file: 2,000 times those of MiniLM in INT8, whose 2,627 take 2 ms. A judgement."""


def check_external_data(bundle: Path, variant: Variant) -> None:
    """Raise `BundleError` where a variant's graph is damaged, or reads a file that the manifest does not list."""
    path = bundle / variant.model.file
    listed = None if variant.external_data is None else variant.external_data.file
    if unlisted := sorted(external_files(path) - {listed}):
        expected = "no external data" if listed is None else repr(listed)
        raise BundleError(
            f"{path}: the graph reads weights from {', '.join(map(repr, unlisted))}, and the manifest lists {expected} "
            f"for {variant.title}; only files with a hash in the manifest are read: export the checkpoint again"
        )


def external_files(graph: str | Path) -> frozenset[str]:
    """Return the locations that a graph's tensors name for their values; empty if all values are in the graph's file.

    Raises:
        BundleError: the file is not an ONNX graph, or cannot be read.
    """
    try:
        with Path(graph).open("rb") as stream:
            if not stream.seek(0, 2):
                return frozenset()
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return frozenset(_locations(content))
    except (OSError, ValueError) as error:
        raise BundleError(f"{graph}: not an ONNX graph: {error}") from None


def _locations(content: mmap.mmap) -> Iterator[str]:
    """Yield the values of all `location` entries of a model."""
    num_fields = 0
    pending = [("model", 0, len(content))]
    while pending:
        message, start, end = pending.pop()
        entry: dict[str, bytes] = {}
        for number, first, last in _fields(content, start, end):
            num_fields += 1
            if num_fields > _MAX_FIELDS:
                raise ValueError(f"more than {_MAX_FIELDS:,} fields")
            inner = _MESSAGES[message].get(number)
            if inner is not None and message == "entry":
                entry[inner] = content[first:last]
            elif inner is not None:
                pending.append((inner, first, last))
        if entry.get("key") == b"location":
            yield entry.get("value", b"").decode("utf-8")


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each length-delimited field of a message: its number, and where its bytes start and end.

    Raises:
        ValueError: the bytes are not a protobuf message.
    """
    position = start
    while position < end:
        tag, position = _varint(content, position, end)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _varint(content, position, end)
        elif wire_type == _BYTES:
            size, position = _varint(content, position, end)
            if size > end - position:
                raise ValueError(f"a field at byte {position} is longer than the message around it")
            yield tag >> 3, position, position + size
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
