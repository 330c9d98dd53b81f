"""Reading a file by its format, which its name tells."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import TextIOWrapper
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.conll import read_conll, read_conllu
from bert_runtime.records.lines import read_jsonl, read_lines
from bert_runtime.records.open_text import open_text
from bert_runtime.records.record import Record
from bert_runtime.records.squad import read_squad
from bert_runtime.records.tables import read_table

__all__ = ["FORMATS", "iter_records", "read_records"]

_READERS: dict[str, Callable[[Path, TextIOWrapper, Mapping[str, str]], Iterator[Record]]] = {
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
"""File name extensions that `read_records` understands, before an optional `.gz`."""


def read_records(path: str | Path, columns: Mapping[str, str] | None = None) -> list[Record]:
    """All rows of `path`, see `iter_records`."""
    return list(iter_records(path, columns))


def iter_records(path: str | Path, columns: Mapping[str, str] | None = None) -> Iterator[Record]:
    """Reads `path` row by row.

    The extension decides the format. `.jsonl` holds one object a line, `.csv` follows RFC 4180, `.tsv` is split at
    tabs without quoting (so that a lone `"` in a text stays what it is), `.txt` and `.md` are one `text` a line. Blank
    lines are skipped. `.conll` and `.conllu` hold one token a line, and give one record with `tokens` and `tags` a
    sentence; `.json` is laid out as SQuAD, and gives one record with `id`, `title`, `question`, `context` and `answers`
    a question.

    Args:
        path: the file.
        columns: our field names to the file's, such as `{"text": "sentence"}`; fields that are not named keep their
            names. Where all are numbers, counted from 0, the CSV or TSV file has no header line. A `.conll` file has
            numbers alone, by default its first column for `tokens` and its last for `tags`; a `.conllu` file has
            numbers or the names of CoNLL-U, by default `form` and `upos`; a `.json` file takes none.

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
    if suffix not in _READERS:
        raise DataError(f"{path}: expected a file that ends in {', '.join(FORMATS)} (or one of these with .gz)")
    with open_text(path) as stream:
        yield from _READERS[suffix](path, stream, columns)
