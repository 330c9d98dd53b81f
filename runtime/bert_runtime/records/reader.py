"""Reading of data files in the format that their extension names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.conll import read_conll, read_conllu
from bert_runtime.records.lines import read_jsonl, read_lines
from bert_runtime.records.open_text import Utf8Text, open_text
from bert_runtime.records.record import Record
from bert_runtime.records.squad import read_squad
from bert_runtime.records.tables import read_table

__all__ = ["FORMATS", "iter_records", "iter_rows", "read_records"]

_READERS: dict[str, Callable[[Path, Utf8Text, Mapping[str, str]], Iterator[Record | DataError]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_table, delimiter=","),
    ".tsv": partial(read_table, delimiter="\t"),
    ".txt": read_lines,
    ".md": read_lines,
    ".conll": read_conll,
    ".conllu": read_conllu,
    ".json": read_squad,
}

FORMATS = tuple(_READERS)
"""File extensions that `read_records` supports, before an optional `.gz`."""


def read_records(path: str | Path, columns: Mapping[str, str] | None = None) -> list[Record]:
    """Read all rows of a file into memory, see `iter_records`."""
    return list(iter_records(path, columns))


def iter_records(path: str | Path, columns: Mapping[str, str] | None = None) -> Iterator[Record]:
    """Read a file of examples row by row.

    The extension selects the format:

    * `.jsonl`: one JSON object per line.
    * `.csv`: comma-separated, quoted as in RFC 4180.
    * `.tsv`: tab-separated without quoting, so a lone `"` is part of the text.
    * `.txt`, `.md`: one `text` per line.
    * `.conll`, `.conllu`: one token per line; one record per sentence, with `tokens` and `tags`.
    * `.json`: SQuAD; one record per question, with `id`, `title`, `question`, `context` and `answers`.

    Blank lines are skipped.

    Args:
        path: the file, compressed if its name ends in `.gz`.
        columns: the file's name for each field, such as `{"text": "sentence"}`; other fields keep their names.
            If all are numbers, counted from 0, the CSV or TSV file has no header. For `.conll`, columns are numbers:
            by default, `tokens` is the first and `tags` the last. For `.conllu`, they are numbers or CoNLL-U names: by
            default `form` and `upos`. `.json` takes none.

    Yields:
        The rows in order.

    Raises:
        DataError: the file is missing, unreadable, malformed or empty.
    """
    empty = True
    for record in _read_rows(Path(path), columns or {}):
        if isinstance(record, DataError):
            raise record
        if not record.is_blank:
            empty = False
            yield record
    if empty:
        raise DataError(f"{path}: expected at least one row, found none")


def iter_rows(
    path: str | Path, columns: Mapping[str, str] | None = None, *, allow_empty: bool = False
) -> Iterator[Record | DataError]:
    """Read a file of inputs for prediction row by row: every row is an input, whatever it holds.

    A blank line of a text file, or row of a table, is an empty text; JSONL, CoNLL and SQuAD have no blank rows. The
    formats are those of `iter_records`.

    Args:
        path: the file.
        columns: see `iter_records`.
        allow_empty: whether a file may have no rows.

    Yields:
        The rows in order, or the error of a row of a text file, JSONL, CSV or TSV that cannot be read.

    Raises:
        DataError: the file is missing, unreadable, malformed as a whole, or empty.
    """
    empty = True
    for record in _read_rows(Path(path), columns or {}):
        empty = False
        yield record if isinstance(record, DataError) else replace(record, allow_empty=True)
    if empty and not allow_empty:
        raise DataError(f"{path}: expected at least one row, found none")


def _read_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Record | DataError]:
    """Read a file with the reader for its extension, blank rows and errors of rows included."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in _READERS:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        hint = "; Parquet is read by bert-export batch" if suffix == ".parquet" else ""
        raise DataError(f"{path}: expected a file that ends in {', '.join(FORMATS)} (or one of these with .gz){hint}")
    with open_text(path) as stream:
        yield from _READERS[suffix](path, stream, columns)
