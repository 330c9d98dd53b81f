"""CSV and TSV: rows with named or numbered columns."""

import csv
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from bert_runtime.errors import DataError
from bert_runtime.records.record import Record

__all__ = ["read_table"]


def read_table(path: Path, stream: TextIOWrapper, columns: Mapping[str, str], *, delimiter: str) -> Iterator[Record]:
    """Read a CSV or TSV file, which has a header unless all of `columns` are numbers."""
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is too low for long texts
    reader = csv.reader(stream, delimiter=delimiter, strict=True, **quoting)
    has_header = not columns or not all(column.isdecimal() for column in columns.values())
    names: tuple[str, ...] = ()
    start = 1
    try:
        for row in reader:
            number, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not names:
                names = _header(path, number, row, columns) if has_header else tuple(map(str, range(len(row))))
                if has_header:
                    continue
            if len(row) != len(names):
                raise DataError(f"{path}:{number}: expected {len(names)} columns as in the first row, found {len(row)}")
            yield Record(dict(zip(names, row, strict=True)), path, number).rename_columns(columns)
    except csv.Error as error:
        raise DataError(f"{path}:{start}: malformed row: {error}") from None


def _header(path: Path, number: int, row: list[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Read the column names of a header, which must include a text, or a question and its context."""
    names = tuple(cell.strip() for cell in row)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path}:{number}: column {', '.join(map(repr, repeated))} appears more than once")
    known = {*names, *columns}
    if "text" not in known and not {"question", "context"} <= known:
        raise DataError(
            f"{path}:{number}: expected a header with a column 'text' (and 'label', 'text_pair' or 'score' as the task "
            f"needs) or columns 'question' and 'context', found {', '.join(map(repr, names))}; name them with "
            "--columns text=NAME,label=NAME, or by number if the file has no header: --columns text=0,label=1"
        )
    return names
