"""Reading labelled and unlabelled text files: JSONL, CSV, TSV and plain text, each also as `.gz`.

One reader serves training, evaluation, calibration and prediction, so a file means the same everywhere, and
every complaint names the file and the line.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_runtime.errors import DataError

__all__ = ["FORMATS", "Record", "iter_records", "read_records"]

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

    def labels(self) -> list[str]:
        """The field `labels` (or `label`) as class names: a list, or names between commas; may be empty."""
        value = self.fields["labels"] if "labels" in self.fields else self.fields.get("label")
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, list) and all(isinstance(name, str | int) and name is not True for name in value):
            return [str(name) for name in value]
        raise DataError(
            f"{self.where}: expected 'labels' to be a list of names or names between commas, found {value!r}"
        )

    def number(self, name: str) -> float:
        """The field `name` as a finite number; raises `DataError` otherwise."""
        value = self.fields.get(name)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{self.where}: expected a number in {name!r}, found {value!r}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise DataError(f"{self.where}: expected a finite number in {name!r}, found {value!r}")
        return number


def read_records(path: str | Path, columns: Mapping[str, str] | None = None) -> list[Record]:
    """All rows of `path`, see `iter_records`."""
    return list(iter_records(path, columns))


def iter_records(path: str | Path, columns: Mapping[str, str] | None = None) -> Iterator[Record]:
    """Reads `path` row by row.

    The extension decides the format. `.jsonl` holds one object a line, `.csv` follows RFC 4180, `.tsv` is split at
    tabs without quoting (so that a lone `"` in a text stays what it is), `.txt` is one `text` a line. Blank lines are
    skipped.

    Args:
        path: the file.
        columns: our field names to the file's, such as `{"text": "sentence"}`; fields that are not named keep their
            names. Where all are numbers, counted from 0, the CSV or TSV file has no header line.

    Raises `DataError` for a missing, unreadable, malformed or empty file.
    """
    path, columns = Path(path), columns or {}
    empty = True
    for record in _rows(path, columns):
        empty = False
        yield record
    if empty:
        raise DataError(f"{path}: expected at least one row, found none")


def _rows(path: Path, columns: Mapping[str, str]) -> Iterator[Record]:
    """The rows of a file by the format that its name tells."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in FORMATS:
        raise DataError(f"{path}: expected a file that ends in {', '.join(FORMATS)} (or one of these with .gz)")
    with _open_text(path) as stream:
        if suffix == ".jsonl":
            yield from (_renamed(record, columns) for record in _read_jsonl(path, stream))
        elif suffix == ".txt":
            yield from (Record({"text": text.rstrip("\r\n")}, path, number) for number, text in _numbered(stream))
        else:
            yield from _read_table(path, stream, "\t" if suffix == ".tsv" else ",", columns)


@contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Opens `path` as UTF-8, unpacking `.gz`; turns every failure to read into a `DataError`."""
    try:
        with (
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream,
        ):
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}; "
            f"convert it with: iconv -f latin1 -t utf-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _numbered(stream: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """The lines of `stream` that are not blank, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(stream, start=1) if line.strip())


def _read_jsonl(path: Path, stream: io.TextIOWrapper) -> Iterator[Record]:
    for number, line in _numbered(stream):
        try:
            fields = json.loads(line.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(fields).__name__}")
        yield Record(fields, path, number)


def _renamed(record: Record, columns: Mapping[str, str]) -> Record:
    """The record with fields of the file's names moved to ours."""
    if not columns:
        return record
    absent = sorted(set(columns.values()) - set(record.fields))
    if absent:
        raise DataError(f"{record.where}: expected {', '.join(map(repr, absent))}, found {', '.join(record.fields)}")
    moved = {ours: record.fields[theirs] for ours, theirs in columns.items()}
    kept = {name: value for name, value in record.fields.items() if name not in columns.values()}
    return Record(kept | moved, record.path, record.line)


def _read_table(path: Path, stream: io.TextIOWrapper, delimiter: str, columns: Mapping[str, str]) -> Iterator[Record]:
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    csv.field_size_limit(2**31 - 1)  # texts may be longer than the 128 KiB it stops at by default
    reader = csv.reader(stream, delimiter=delimiter, strict=True, **quoting)
    headless = bool(columns) and all(theirs.isdecimal() for theirs in columns.values())
    names: tuple[str, ...] = ()
    start = 1
    try:
        for row in reader:
            number, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not names:
                names = tuple(map(str, range(len(row)))) if headless else _header(path, number, row, columns)
                if not headless:
                    continue
            if len(row) != len(names):
                raise DataError(f"{path}:{number}: expected {len(names)} columns as in the first row, found {len(row)}")
            yield _renamed(Record(dict(zip(names, row, strict=True)), path, number), columns)
    except csv.Error as error:
        raise DataError(f"{path}:{start}: malformed row: {error}") from None


def _header(path: Path, number: int, row: list[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """The column names of a header line, which must hold a text."""
    names = tuple(cell.strip() for cell in row)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path}:{number}: column {', '.join(map(repr, repeated))} appears more than once")
    if "text" not in names and "text" not in columns:
        raise DataError(
            f"{path}:{number}: expected a header with a column 'text' (and 'label', 'text_pair' or 'score' as the task "
            f"needs), found {', '.join(map(repr, names))}; say which columns they are with "
            "--columns text=NAME,label=NAME, or by number where the file has no header: --columns text=0,label=1"
        )
    return names
