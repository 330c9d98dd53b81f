"""JSONL and plain text: one row per line."""

import json
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.record import Record

__all__ = ["read_jsonl", "read_lines"]


def read_lines(path: Path, stream: TextIOWrapper, _columns: Mapping[str, str]) -> Iterator[Record]:
    """Read a text file: one record with a `text` per line."""
    return (Record({"text": text.rstrip("\r\n")}, path, number) for number, text in _numbered(stream))


def read_jsonl(path: Path, stream: TextIOWrapper, columns: Mapping[str, str]) -> Iterator[Record]:
    """Read a JSONL file: one JSON object per line."""
    for number, line in _numbered(stream):
        try:
            fields = json.loads(line.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(fields).__name__}")
        yield Record(fields, path, number).rename_columns(columns)


def _numbered(stream: TextIOWrapper) -> Iterator[tuple[int, str]]:
    """Iterate over the lines that are not blank, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
