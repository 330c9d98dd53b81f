"""Parts of a bulk run: ranges of rows, each of which becomes a file of answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bert_runtime import DataError
from bert_serve.bulk.input_files import PARQUET, FileState, InputFile

__all__ = ["Part", "open_parquet", "plan_parts"]


@dataclass(frozen=True)
class Part:
    """Consecutive rows of an input file, and the file that their answers go to."""

    path: Path
    """The input file."""
    output: str
    """Name of the file of answers, below the output folder."""
    state: FileState
    """State of the input file when the run was planned; the rows are those of this file and no other."""
    first_row: int = 0
    rows: int | None = None
    """Number of rows; `None` where nobody has counted them: in a text file, and in one that is not readable."""
    is_readable: bool = True
    """Whether the file could be opened; answering the part of another says why not."""


def plan_parts(inputs: Sequence[InputFile], part_rows: int) -> list[Part]:
    """Divide files into parts; the same files always give the same parts.

    A Parquet file of more than `part_rows` rows becomes several, `NAME-00000-of-00012.parquet` and so on. A text file
    is one part, since finding its rows takes reading it, and so is a Parquet file that cannot be read.
    """
    return [part for file in inputs for part in _parts(file, part_rows)]


def _parts(file: InputFile, part_rows: int) -> Iterator[Part]:
    state = FileState.of(file.path)  # before the rows are counted
    if file.path.suffix != PARQUET:
        yield Part(file.path, f"{file.stem}{PARQUET}", state)
        return
    try:
        with open_parquet(file.path) as opened:
            rows = opened.metadata.num_rows
    except DataError:  # this part will fail, and the others will not
        yield Part(file.path, f"{file.stem}{PARQUET}", state, is_readable=False)
        return
    count = max(1, -(-rows // part_rows))
    for number in range(count):
        name = f"{file.stem}{PARQUET}" if count == 1 else f"{file.stem}-{number:05}-of-{count:05}{PARQUET}"
        first = number * part_rows
        yield Part(file.path, name, state, first, min(part_rows, rows - first))


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; raise `DataError` for anything else."""
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file, found something that cannot be read: {error}") from None
