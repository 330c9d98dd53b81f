"""CSV and TSV: rows with named or numbered columns."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_runtime.errors import DataError
from bert_runtime.records.column_hints import suggest_columns
from bert_runtime.records.open_text import MAX_LINE_CHARACTERS, Utf8Text
from bert_runtime.records.record import Record

__all__ = ["read_table"]


def read_table(
    path: Path, stream: Utf8Text, columns: Mapping[str, str], *, delimiter: str
) -> Iterator[Record | DataError]:
    """Read a CSV or TSV file, which has a header unless all of `columns` are numbers.

    Yields:
        The rows, or the errors of rows that cannot be read.
    """
    has_header = not columns or not all(column.isdecimal() for column in columns.values())
    names: tuple[str, ...] = ()
    for number, row in _numbered_rows(path, stream, delimiter):
        if isinstance(row, DataError):
            if has_header and not names:
                raise row
            yield row
        elif not any(cell.strip() for cell in row):
            if names or not has_header:
                fields = dict.fromkeys(names or columns.values(), "")
                yield Record(fields, path, number, is_blank=True).rename_columns(columns)
        elif has_header and not names:
            names = _header(path, number, row, columns)
        else:
            names = names or tuple(map(str, range(len(row))))
            yield _record(path, number, names, row, columns)


def _numbered_rows(path: Path, stream: Utf8Text, delimiter: str) -> Iterator[tuple[int, list[str] | DataError]]:
    """Iterate over the rows with the numbers of their first lines, and over the errors of malformed ones."""
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    csv.field_size_limit(MAX_LINE_CHARACTERS)  # the default of 128 KiB is too low for long texts
    reader = csv.reader(stream, delimiter=delimiter, strict=True, **quoting)
    while True:
        number = stream.line_number + 1
        try:
            row: list[str] | DataError | None = next(reader, None)
        except csv.Error as error:
            row = DataError(f"{path}:{number}: malformed row: {error}")
        except DataError as error:
            if stream.line_number == 0:  # not of a line, but of all of the file
                raise
            row = error
        if row is None:
            return
        yield number, row


def _record(
    path: Path, number: int, names: tuple[str, ...], row: list[str], columns: Mapping[str, str]
) -> Record | DataError:
    if len(row) != len(names):
        return DataError(f"{path}:{number}: expected {len(names)} columns as in the first row, found {len(row)}")
    return Record(dict(zip(names, row, strict=True)), path, number).rename_columns(columns)


_NEEDED = ({"text"}, {"question", "context"}, {"query", "document"}, {"query", "positive", "negative"})
"""Columns of which a table must have one set at least."""


def _header(path: Path, number: int, row: list[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Read the column names of a header, which must include a text, or a question and its context."""
    names = tuple(cell.strip() for cell in row)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path}:{number}: column {', '.join(map(repr, repeated))} appears more than once")
    known = {*names, *columns}
    if not any(needed <= known for needed in _NEEDED):
        raise DataError(
            f"{path}:{number}: expected a header with a column 'text' (and 'label', 'text_pair' or 'score' as the task "
            f"needs) or columns 'question' and 'context', found {', '.join(map(repr, names))}; name them with "
            f"{_suggest(names, known)}, or by number if the file has no header: --columns text=0,label=1"
        )
    return names


def _suggest(names: tuple[str, ...], known: set[str]) -> str:
    """Return `--columns` with the header's names that are most like `text` and `label`, or a question and context."""
    for fields in (("question", "context"), ("text",)):
        missing = [field for field in fields if field not in known]
        hint = suggest_columns(missing, names)
        if hint.count("=") == len(missing):
            optional = [field for field in ("text_pair", "label", "score") if field not in known]
            return suggest_columns([*missing, *optional], names) if fields == ("text",) else hint
    return "--columns text=NAME,label=NAME"
