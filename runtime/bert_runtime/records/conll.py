"""CoNLL and CoNLL-U: one token per line, and a blank line after each sentence."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.records.open_text import Utf8Text
from bert_runtime.records.record import Record

__all__ = ["read_conll", "read_conllu"]

_FIELDS = ("tokens", "tags")
_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_ID = re.compile(r"[0-9]+")
_OTHER_ID = re.compile(r"[0-9]+[-.][0-9]+")  # 3-4: a token of two words; 8.1: an elided word

_Row = tuple[int, list[str]]
"""A line number and the line's columns."""


def read_conll(path: Path, stream: Utf8Text, columns: Mapping[str, str]) -> Iterator[Record]:
    """Read a CoNLL file: one record per sentence.

    By default, `tokens` are the first column and `tags` the last if there are several. `-DOCSTART-` lines separate
    documents, and are skipped.
    """
    chosen = _column_numbers(path, columns, (), "by number from 0, such as tokens=0,tags=3")
    for lines in _sentences(stream, lambda line: not line.strip() or line.startswith("-DOCSTART-")):
        rows = [(number, _cells(line)) for number, line in lines]
        first, width = rows[0][0], len(rows[0][1])
        for number, cells in rows:
            if len(cells) != width:
                raise DataError(f"{path}:{number}: expected {width} columns as in line {first}, found {len(cells)}")
        sources = {"tokens": 0, "tags": width - 1} | chosen
        if "tags" not in chosen and sources["tags"] == sources["tokens"]:
            del sources["tags"]
        yield _record(path, rows, sources)


def read_conllu(path: Path, stream: Utf8Text, columns: Mapping[str, str]) -> Iterator[Record]:
    """Read a CoNLL-U file: one record per sentence, by default with `tokens` from FORM and `tags` from UPOS.

    Comments, multi-word tokens (id 3-4) and empty nodes (id 8.1) are skipped.
    """
    expected = f"by name ({', '.join(_CONLLU_COLUMNS)}) or by number from 0 to {len(_CONLLU_COLUMNS) - 1}"
    sources = {"tokens": 1, "tags": 3} | _column_numbers(path, columns, _CONLLU_COLUMNS, expected)
    for lines in _sentences(stream, lambda line: not line.strip()):
        rows = [
            (number, cells)
            for number, line in lines
            if not line.startswith("#") and (cells := _conllu_cells(path, number, line))
        ]
        if rows:
            yield _record(path, rows, sources)


def _column_numbers(path: Path, columns: Mapping[str, str], names: Sequence[str], expected: str) -> dict[str, int]:
    """Resolve columns given by number or by one of `names`, ignoring case, to column numbers."""
    unknown = [
        f"{field}={column}"
        for field, column in columns.items()
        if field not in _FIELDS or not (column.isdecimal() or column.lower() in names)
    ]
    if unknown:
        raise DataError(f"{path}: expected columns for 'tokens' and 'tags' {expected}, found {', '.join(unknown)}")
    return {
        field: names.index(column.lower()) if column.lower() in names else int(column)
        for field, column in columns.items()
    }


def _sentences(stream: Utf8Text, separates: Callable[[str], bool]) -> Iterator[list[tuple[int, str]]]:
    """Group numbered lines into sentences at the lines that separate them."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(stream, start=1):
        if not separates(line):
            sentence.append((number, line))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _cells(line: str) -> list[str]:
    """Split a CoNLL line at tabs or spaces; `str.split` would also split at U+00A0, which tokens may contain."""
    line = line.rstrip("\r\n")
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _conllu_cells(path: Path, number: int, line: str) -> list[str] | None:
    """Split a CoNLL-U line into columns; `None` for a multi-word token or an empty node."""
    cells = line.rstrip("\r\n").split("\t")
    if len(cells) != len(_CONLLU_COLUMNS):
        raise DataError(f"{path}:{number}: expected {len(_CONLLU_COLUMNS)} columns between tabs, found {len(cells)}")
    if _WORD_ID.fullmatch(cells[0]):
        return cells
    if _OTHER_ID.fullmatch(cells[0]):
        return None
    raise DataError(f"{path}:{number}: expected an id such as 3, 3-4 or 8.1 in the first column, found {cells[0]!r}")


def _record(path: Path, rows: list[_Row], sources: Mapping[str, int]) -> Record:
    """Create a sentence's record from the column number of each field."""
    line, cells = rows[0]
    missing = [source for source in sources.values() if source >= len(cells)]
    if missing:
        raise DataError(f"{path}:{line}: expected a column {max(missing)}, counted from 0, found {len(cells)} columns")
    return Record({name: [cells[source] for _, cells in rows] for name, source in sources.items()}, path, line)
