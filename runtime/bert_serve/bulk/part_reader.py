"""Rows of a part as Arrow batches: from Parquet as they are, from text files with types that their rows suggest."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_WHAT_TO_DO = "name the columns to keep with --keep, or convert the file to Parquet"


class Rows(NamedTuple):
    """Rows of a part."""

    batch: pa.RecordBatch
    errors: Mapping[int, str]
    """Why rows cannot be read, by their numbers in the batch; their values, or in Parquet their inputs, are null."""


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
    return _read_text(part, columns, keep, batch_rows)


def _read_parquet(
    part: Part, columns: InputColumns, keep: Sequence[str] | None, batch_rows: int
) -> tuple[pa.Schema, Iterator[Rows]]:
    file = open_parquet(part.path)
    if part.rows is None:
        raise DataError(f"{part.path}: could not be read when the run was planned, and now it can; run again")
    whole = file.schema_arrow.remove_metadata()
    names = [name for name in whole.names if keep is None or name in keep or name in columns.names]
    # A text that is not UTF-8 is replaced by null, also in a column that has none.
    fields = [whole.field(name) for name in names]
    schema = pa.schema([field.with_nullable(True) if field.name in columns.names else field for field in fields])
    rows = _parquet_rows(file, part, names, batch_rows)
    return schema, (
        _without_invalid_texts(
            pa.RecordBatch.from_arrays(batch.columns, schema=schema), columns, f"{part.path}: row", first
        )
        for first, batch in rows
    )


def _parquet_rows(file: Any, part: Part, names: Sequence[str], batch_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the row groups that have rows of the part, and drop the rows around it.

    Yields:
        The number in the file of a batch's first row, from 0, and the batch.
    """
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
                start = max(first, part.first_row)
                kept = batch.slice(start - first, max(0, min(row, stop) - start))
                if len(kept):
                    yield start, kept
                if row >= stop:
                    return
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{part.path}: cannot be read after row {row}: {error}") from None


def _without_invalid_texts(batch: pa.RecordBatch, columns: InputColumns, where: str, first_row: int) -> Rows:
    """Replace inputs whose bytes are not UTF-8, which writers of Parquet do not check, by null."""
    errors: dict[int, str] = {}
    for name in columns.names:
        texts = batch.column(name)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            found = _decode_texts(texts)
        else:
            continue
        for row, text in enumerate(found):
            if isinstance(text, UnicodeDecodeError):
                errors[row] = f"{where} {first_row + row}: the column {name!r} is not UTF-8: {text}"
        valid = pa.array([text if isinstance(text, str) else None for text in found], pa.string())
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, batch.schema.field(number), _as_type(valid, texts.type))
    return Rows(batch, errors)


def _decode_texts(texts: pa.Array) -> list[str | UnicodeDecodeError | None]:
    """Return the texts of a column of strings, and why bytes are none."""
    found: list[str | UnicodeDecodeError | None] = []
    for data in _plain_strings(texts).cast(pa.large_binary()).to_pylist():
        try:
            found.append(None if data is None else data.decode("utf-8"))
        except UnicodeDecodeError as error:
            found.append(error)
    return found


def _plain_strings(texts: pa.Array) -> pa.Array:
    return texts.dictionary_decode() if types.is_dictionary(texts.type) else texts


def _as_type(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return strings as another type of strings."""
    if types.is_dictionary(kind):
        return texts.cast(kind.value_type).dictionary_encode().cast(kind)
    return texts.cast(kind)


def _read_text(
    part: Part, columns: InputColumns, keep: Sequence[str] | None, batch_rows: int
) -> tuple[pa.Schema, Iterator[Rows]]:
    mapping = {field: name for field, name in zip(_fields(columns), columns.names, strict=True) if field != name}

    def is_read(name: str) -> bool:
        return keep is None or name in keep or name in columns.names

    rows = (
        row if isinstance(row, DataError) else _read_row(row, mapping, is_read)
        for row in iter_rows(part.path, mapping, allow_empty=True)
    )
    first = list(islice(rows, batch_rows))
    if not first:  # the columns that a row would have at least
        least = dict.fromkeys((*columns.names, *(keep or ())))
        return pa.schema([pa.field(name, pa.string()) for name in least]), iter(())
    read = [row.values for row in first if isinstance(row, _Row)]
    names = list(dict.fromkeys(name for row in read for name in row))
    if not names:
        raise DataError(f"{part.path}: expected rows, found none that can be read among the first")
    columns.check(names, str(part.path))
    schema = pa.schema(
        [pa.field(name, _infer_type([row.get(name) for row in read])) for name in names if is_read(name)]
    )
    return schema, _text_rows(first, rows, schema, is_read, batch_rows)


def _fields(columns: InputColumns) -> tuple[str, ...]:
    """Return the names that the reader of text files has for the columns of inputs."""
    if columns.pair is None:
        return ("text",)
    return ("question", "context") if (columns.text, columns.pair) == ("question", "context") else ("text", "text_pair")


class _Row(NamedTuple):
    """A row of a text file that can be read."""

    where: str
    values: Mapping[str, Any]
    """By the names of the columns in the file."""


def _read_row(record: Record, mapping: Mapping[str, str], is_read: Callable[[str], bool]) -> "_Row | DataError":
    """Return the values of a row; an error if a string that is read has half of a surrogate pair."""
    renamed = {mapping.get(field, field): value for field, value in record.fields.items()}
    values = {**renamed, **record.displaced}
    try:
        read = {name: value for name, value in values.items() if is_read(name)}
        json.dumps(read, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        return DataError(f"{record.where}: holds a lone surrogate (U+{code:04X}), which no text encoding can express")
    return _Row(record.where, values)


def _text_rows(
    first: list[_Row | DataError],
    others: Iterator[_Row | DataError],
    schema: pa.Schema,
    is_read: Callable[[str], bool],
    batch_rows: int,
) -> Iterator[Rows]:
    rows = chain(first, others)
    while chunk := list(islice(rows, batch_rows)):
        errors = {number: str(row) for number, row in enumerate(chunk) if isinstance(row, DataError)}
        _check_names([row for row in chunk if isinstance(row, _Row)], schema, is_read)
        yield Rows(_to_batch(chunk, schema), errors)


def _infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type of a column's values; what has several types, or objects without fields, is JSON text."""
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()
    return pa.string() if types.is_null(kind) or _has_empty_object(kind) else kind


def _has_empty_object(kind: pa.DataType) -> bool:
    """Return whether a type has an object without fields, which Parquet cannot hold."""
    if types.is_list(kind):
        return _has_empty_object(kind.value_type)
    return types.is_struct(kind) and (not kind.num_fields or any(_has_empty_object(field.type) for field in kind))


def _has_new_field(found: pa.DataType, known: pa.DataType) -> bool:
    """Return whether objects of a type have fields that another type lacks, which Arrow would drop."""
    if types.is_list(found) and types.is_list(known):
        return _has_new_field(found.value_type, known.value_type)
    if not (types.is_struct(found) and types.is_struct(known)):
        return False
    index = {field.name: field.type for field in known}
    return any(field.name not in index or _has_new_field(field.type, index[field.name]) for field in found)


def _to_batch(rows: Sequence[_Row | DataError], schema: pa.Schema) -> pa.RecordBatch:
    values = [row.values if isinstance(row, _Row) else {} for row in rows]
    arrays = []
    for field in schema:
        column = [row.get(field.name) for row in values]
        if types.is_string(field.type):
            column = [value if isinstance(value, str | None) else json.dumps(value) for value in column]
        try:
            if types.is_nested(field.type) and _has_new_field(found := pa.array(column).type, field.type):
                raise pa.ArrowInvalid(f"found {found}")
            arrays.append(pa.array(column, field.type))
        except (pa.ArrowException, OverflowError) as error:
            where = next((row.where for row in rows if isinstance(row, _Row)), "")
            raise DataError(
                f"{where}: in this row or one of the next {len(rows):,}, the column {field.name!r} holds something "
                f"else than the file's first rows ({field.type}): {error}; {_WHAT_TO_DO}"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_names(rows: Sequence[_Row], schema: pa.Schema, is_read: Callable[[str], bool]) -> None:
    """Raise `DataError` for a column that the file's first rows do not have: the file of answers has none for it."""
    known = set(schema.names)
    for row in rows:
        if new := [name for name in row.values if name not in known and is_read(name)]:
            raise DataError(
                f"{row.where}: the column {new[0]!r} is not in any of the file's first rows; {_WHAT_TO_DO}, or give "
                "the first row all columns, null where there is no value"
            )
