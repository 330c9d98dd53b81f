"""Answer a part of a bulk run: read its rows, and write the file of answers whole or not at all."""

import os
import platform
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bert_runtime import BertError, DataError, DeploymentError, InputError
from bert_serve.bulk.answer_columns import ERROR
from bert_serve.bulk.batch_function import BatchFunction
from bert_serve.bulk.input_files import FileState
from bert_serve.bulk.part_reader import Rows, read_part
from bert_serve.bulk.parts import Part
from bert_serve.bulk.run_record import RECORD_NAME

__all__ = ["Job", "PartResult", "answer_part", "remove_leftovers"]

_SUFFIX = ".partial"


@dataclass(frozen=True)
class Job:
    """Work that is done with every part. Cheap to pickle."""

    function: BatchFunction
    output: Path
    """The folder of answers."""
    batch_rows: int
    """Rows that are read, answered and written together: what bounds the memory. Also the rows of a row group."""


@dataclass(frozen=True)
class PartResult:
    """Result of a part."""

    part: Part
    rows: int = 0
    """Rows with or without an answer; 0 if the part failed."""
    rows_without_answer: int = 0
    failure: str | None = None
    """Why there is no file of answers; `None` where there is one."""


def answer_part(job: Job, part: Part, advance: Callable[[int], object] = lambda rows: None) -> PartResult:
    """Answer a part and write its file, which appears under its name when it is complete.

    To do it again, also at the same time in another process, replaces the file by an equal one.

    Args:
        job: what to do.
        part: the part.
        advance: called with the number of rows that have been done since the last call.

    Returns:
        How many rows were done, or why the input could not be processed.

    Raises:
        DeploymentError: this machine does not have the run's output folder.
        OSError: the output cannot be written.
    """
    if not (job.output / RECORD_NAME).is_file():  # a folder of this machine's own would swallow the answers
        raise DeploymentError(
            f"{job.output}: expected the output folder of this run on {platform.node()}, found none; all machines need "
            "it under the same path, on storage that they share"
        )
    try:
        return _answer_part(job, part, advance)
    except (DataError, InputError) as error:
        return PartResult(part, failure=str(error))


def _answer_part(job: Job, part: Part, advance: Callable[[int], object]) -> PartResult:
    function = job.function
    _check_state(part)
    schema, batches = read_part(part, function.columns, function.keep, job.batch_rows)
    rows = without_answer = 0
    with _writer(job.output / part.output, function.output_schema(schema, str(part.path))) as writer:
        for batch in batches:
            answered = _answer_rows(function, batch, f"{part.path}: rows from {part.first_row + rows}")
            rows += len(answered)
            if function.on_error == "return":
                without_answer += len(answered) - answered.column(function.prefix + ERROR).null_count
            writer.write_batch(answered)
            advance(len(answered))
        _check_state(part)
        if part.rows not in (None, rows):
            raise DataError(
                f"{part.path}: expected {part.rows:,} rows from row {part.first_row}, found {rows:,}: the file is "
                "damaged, or was replaced; write it again"
            )
    return PartResult(part, rows, without_answer)


def _check_state(part: Part) -> None:
    """Raise `DataError` where the input file is no longer the one that the part was planned for."""
    if (found := FileState.of(part.path)) != part.state:
        raise DataError(
            f"{part.path}: was changed or replaced after the run had begun: expected {part.state}, found {found}; "
            "run again when it is complete"
        )


def _answer_rows(function: BatchFunction, rows: Rows, where: str) -> pa.RecordBatch:
    """Return rows with their answers, and with the reasons of those that could not be read."""
    if rows.errors and function.on_error == "raise":
        raise DataError(next(iter(rows.errors.values())))
    try:
        answered = function(rows.batch)
    except InputError as error:
        raise DataError(f"{where}: {error}") from None
    if not rows.errors:
        return answered
    number = answered.schema.get_field_index(function.prefix + ERROR)
    reasons = answered.column(number).to_pylist()
    for row, reason in rows.errors.items():
        reasons[row] = reason
    return answered.set_column(number, answered.schema.field(number), pa.array(reasons, pa.string()))


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of a Parquet file that appears under its name when the block ends without an error.

    The file has a name of its own until then, so that two attempts at one part do not write into one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_SUFFIX}")
    strings = [field.name for field in schema if pa.types.is_string(field.type)]
    try:
        with partial.open("wb") as stream:
            with pq.ParquetWriter(stream, schema, compression="zstd", use_dictionary=strings) as writer:
                yield writer
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except pa.ArrowException as error:
        raise BertError(f"{path}: cannot be written: {error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        with suppress(OSError):
            path.unlink()
