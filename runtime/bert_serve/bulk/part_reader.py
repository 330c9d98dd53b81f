"""Rows of a part as Arrow batches: from Parquet as they are, from text files with types that their rows suggest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from bert_runtime import DataError, Record
from bert_runtime.records import iter_rows
from bert_serve.bulk.input_columns import InputColumns
from bert_serve.bulk.input_files import PARQUET
from bert_serve.bulk.parts import Part, open_parquet

__all__ = ["Rows", "read_part"]


class Rows(NamedTuple):
    """Rows of a part."""

    batch: pa.RecordBatch
    errors: Mapping[int, str]
    """Why rows of a text file cannot be read, by their numbers in the batch; their values are null."""


def read_part(
    part: Part, columns: InputColumns, keep: Sequence[str] | None, batch_rows: int
) -> tuple[pa.Schema, Iterator[Rows]]:
    """Return the schema of a part's rows, and its rows in order, a batch at a time.

    Args:
        part: the part.
        columns: the columns of inputs, which are read.
        keep: the other columns that are read; all if `None`.
        batch_rows: rows of a batch, except the last.

    Raises:
        DataError: the file cannot be read, also while iterating.
    """
    if part.path.suffix == PARQUET:
        return _read_parquet(part, columns, keep, batch_rows)
    return _read_text(part, columns, batch_rows)


def _read_parquet(
    part: Part, columns: InputColumns, keep: Sequence[str] | None, batch_rows: int
) -> tuple[pa.Schema, Iterator[Rows]]:
    file = open_parquet(part.path)
    whole = file.schema_arrow.remove_metadata()
    names = [name for name in whole.names if keep is None or name in keep or name in columns.names]
    return pa.schema([whole.field(name) for name in names]), _parquet_rows(file, part, names, batch_rows)


def _parquet_rows(file: Any, part: Part, names: Sequence[str], batch_rows: int) -> Iterator[Rows]:
    """Read the row groups that have rows of the part, and drop the rows around it."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    stop = part.first_row + (part.rows or 0)
    groups = [
        number
        for number, (end, size) in enumerate(zip(ends, sizes, strict=True))
        if end > part.first_row and end - size < stop
    ]
    row = ends[groups[0]] - sizes[groups[0]] if groups else 0
    with closing(file):
        try:
            for batch in file.iter_batches(batch_rows, row_groups=groups, columns=list(names)):
                first, row = row, row + len(batch)
                kept = batch.slice(max(0, part.first_row - first), max(0, min(row, stop) - max(first, part.first_row)))
                if len(kept):
                    yield Rows(kept, {})
                if row >= stop:
                    return
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{part.path}: cannot be read after row {row}: {error}") from None


def _read_text(part: Part, columns: InputColumns, batch_rows: int) -> tuple[pa.Schema, Iterator[Rows]]:
    mapping = {field: name for field, name in zip(_fields(columns), columns.names, strict=True) if field != name}
    rows = iter_rows(part.path, mapping)
    first = list(islice(rows, batch_rows))
    schema = _infer_schema([row for row in first if isinstance(row, Record)], mapping, str(part.path))
    return schema, _text_rows(first, rows, schema, mapping, batch_rows)


def _fields(columns: InputColumns) -> tuple[str, ...]:
    """Return the names that the reader of text files has for the columns of inputs."""
    if columns.pair is None:
        return ("text",)
    return ("question", "context") if (columns.text, columns.pair) == ("question", "context") else ("text", "text_pair")


def _text_rows(
    first: list[Record | DataError],
    others: Iterator[Record | DataError],
    schema: pa.Schema,
    mapping: Mapping[str, str],
    batch_rows: int,
) -> Iterator[Rows]:
    rows = chain(first, others)
    while chunk := list(islice(rows, batch_rows)):
        values = [_values(row, mapping) if isinstance(row, Record) else {} for row in chunk]
        errors = {number: str(row) for number, row in enumerate(chunk) if isinstance(row, DataError)}
        yield Rows(_to_batch(values, schema, chunk), errors)


def _values(row: Record, mapping: Mapping[str, str]) -> dict[str, Any]:
    """Return a row's values by the names that its columns have in the file."""
    return {mapping.get(field, field): value for field, value in row.fields.items()}


def _infer_schema(rows: Sequence[Record], mapping: Mapping[str, str], where: str) -> pa.Schema:
    """Return the columns of rows, with the types of their values; what has several types is JSON text."""
    values = [_values(row, mapping) for row in rows]
    names = dict.fromkeys(name for row in values for name in row)
    if not names:
        raise DataError(f"{where}: expected rows, found none that can be read among the first")
    return pa.schema([pa.field(name, _infer_type([row.get(name) for row in values])) for name in names])


def _infer_type(values: Sequence[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()
    return pa.string() if types.is_null(kind) else kind


def _to_batch(
    values: Sequence[Mapping[str, Any]], schema: pa.Schema, rows: Sequence[Record | DataError]
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        column = [row.get(field.name) for row in values]
        if types.is_string(field.type):
            column = [value if isinstance(value, str | None) else json.dumps(value) for value in column]
        try:
            arrays.append(pa.array(column, field.type))
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            where = next((row.where for row in rows if isinstance(row, Record)), "")
            raise DataError(
                f"{where}: in this row or one of the next {len(rows):,}, the column {field.name!r} holds something "
                f"else than the file's first rows ({field.type}): {error}; leave the column out with --keep, or "
                "convert the file to Parquet"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
