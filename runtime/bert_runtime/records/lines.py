"""JSONL and plain text: one row per line."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.open_text import Utf8Text
from bert_runtime.records.record import Record

__all__ = ["numbered_lines", "read_jsonl", "read_lines"]


def read_lines(path: Path, stream: Utf8Text, _columns: Mapping[str, str]) -> Iterator[Record | DataError]:
    """Read a text file: one record with a `text` per line, or the error of a line that cannot be read."""
    for number, line in numbered_lines(stream):
        if isinstance(line, DataError):
            yield line
        else:
            text = line.rstrip("\r\n")
            yield Record({"text": text}, path, number, is_blank=not text.strip())


def read_jsonl(path: Path, stream: Utf8Text, columns: Mapping[str, str]) -> Iterator[Record | DataError]:
    """Read a JSONL file: one JSON object per line, or the error of a line that is something else.

    A blank line is no row.
    """
    for number, line in numbered_lines(stream):
        if isinstance(line, DataError):
            yield line
        elif line.strip():
            try:
                yield Record(_json_object(line, f"{path}:{number}"), path, number).rename_columns(columns)
            except DataError as error:
                yield error


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        fields = json.loads(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(fields).__name__}")
    return fields


def numbered_lines(stream: Utf8Text) -> Iterator[tuple[int, str | DataError]]:
    """Iterate over the lines with their numbers from 1, and over the errors of lines that cannot be read."""
    while True:
        try:
            line: str | DataError | None = next(stream, None)
        except DataError as error:
            if stream.line_number == 0:  # not of a line, but of all of the file
                raise
            line = error
        if line is None:
            return
        yield stream.line_number, line
