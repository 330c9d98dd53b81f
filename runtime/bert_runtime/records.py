"""Reading labelled and unlabelled text files: JSONL, CSV, TSV and plain text, each also as `.gz`.

One reader serves training, evaluation, calibration and prediction, so a file means the same everywhere, and
every complaint names the file and the line.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_runtime.errors import DataError

__all__ = ["FORMATS", "Record", "read_records"]

FORMATS = (".jsonl", ".csv", ".tsv", ".txt")
"""File name extensions that `read_records` understands, before an optional `.gz`."""


@dataclass(frozen=True)
class Record:
    """One row of a data file: its fields and where it came from."""

    fields: Mapping[str, Any]
    path: Path
    line: int

    @property
    def where(self) -> str:
        """`file:line`, as error messages begin."""
        return f"{self.path}:{self.line}"

    def text(self, name: str = "text") -> str:
        """The field `name` as a non-empty string; raises `DataError` otherwise."""
        value = self.fields.get(name)
        if value is None:
            raise DataError(
                f"{self.where}: expected a field {name!r}, found only {', '.join(map(repr, self.fields)) or 'nothing'}"
            )
        if not isinstance(value, str):
            raise DataError(f"{self.where}: expected {name!r} to be a string, found {type(value).__name__}")
        if not value.strip():
            raise DataError(f"{self.where}: {name!r} is empty")
        return value

    def optional_text(self, name: str) -> str | None:
        """The field `name` as a non-empty string, or `None` where the row does not have it."""
        return None if self.fields.get(name) in (None, "") else self.text(name)

    def label(self) -> str:
        """The field `label` as a class name; whole numbers count as names."""
        value = self.fields.get("label")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text("label").strip()

    def number(self, name: str) -> float:
        """The field `name` as a finite number; raises `DataError` otherwise."""
        value = self.fields.get(name)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise DataError(f"{self.where}: expected a number in {name!r}, found {value!r}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise DataError(f"{self.where}: expected a finite number in {name!r}, found {value!r}")
        return number


def read_records(path: str | Path, columns: tuple[str, ...] | None = None) -> list[Record]:
    """Reads every row of `path`.

    The extension decides the format. `.jsonl` holds one object a line, `.csv` follows RFC 4180, `.tsv` is split at
    tabs without quoting (so that a lone `"` in a text stays what it is), `.txt` is one `text` a line. CSV and TSV begin
    with a header line unless `columns` names their columns. Blank lines are skipped.

    Raises `DataError` for a missing, unreadable, malformed or empty file.
    """
    path = Path(path)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in FORMATS:
        raise DataError(f"{path}: expected a file that ends in {', '.join(FORMATS)} (or one of these with .gz)")
    with _open_text(path) as stream:
        if suffix == ".jsonl":
            records = list(_read_jsonl(path, stream))
        elif suffix == ".txt":
            records = [Record({"text": text.rstrip("\r\n")}, path, n) for n, text in _numbered(stream)]
        else:
            records = list(_read_table(path, stream, "\t" if suffix == ".tsv" else ",", columns))
    if not records:
        raise DataError(f"{path}: expected at least one row, found none")
    return records


@contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Opens `path` as UTF-8, unpacking `.gz`; turns every failure to read into a `DataError`."""
    try:
        raw = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
        with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream:  # type: ignore[type-var]
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}; "
                        f"convert it with: iconv -f latin1 -t utf-8") from None
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _numbered(stream: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """The lines of `stream` that are not blank, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(stream, start=1) if line.strip())


def _read_jsonl(path: Path, stream: io.TextIOWrapper) -> Iterator[Record]:
    for number, line in _numbered(stream):
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(fields, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(fields).__name__}")
        yield Record(fields, path, number)


def _read_table(
    path: Path, stream: io.TextIOWrapper, delimiter: str, columns: tuple[str, ...] | None
) -> Iterator[Record]:
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(stream, delimiter=delimiter, quoting=quoting, strict=True)
    start = 1
    try:
        for row in reader:
            number, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if columns is None:
                columns = _header(path, number, row)
                continue
            if len(row) != len(columns):
                raise DataError(
                    f"{path}:{number}: expected {len(columns)} columns ({', '.join(columns)}), found {len(row)}"
                )
            yield Record(dict(zip(columns, row, strict=True)), path, number)
    except csv.Error as error:
        raise DataError(f"{path}:{start}: malformed row: {error}") from None


def _header(path: Path, number: int, row: list[str]) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in row)
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise DataError(f"{path}:{number}: column {', '.join(map(repr, repeated))} appears more than once")
    if "text" not in columns:
        raise DataError(
            f"{path}:{number}: expected a header with a column 'text' (and 'label', 'text_pair' or 'score' as the task "
            f"needs), found {', '.join(map(repr, columns))}; name the columns of a file without a header with --columns"
        )
    return columns
