"""Text and JSONL files as a corpus, and `open_corpus`, which chooses the reader.

A corpus is streamed, because even a single document may exceed the memory. A line may hold a sentence or a paragraph;
this package calls it a sentence.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from bert_models.corpus.hugging_face_datasets import HuggingFaceDataset
from bert_models.corpus.sentences import Sentence, split_sentences
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError
from bert_runtime.records.open_text import open_text

__all__ = ["Corpus", "JsonlFiles", "TextFiles", "open_corpus"]


class Corpus(Protocol):
    """A source of documents."""

    def sentences(self) -> Iterator[Sentence]:
        """Yield all sentences in order; the first one starts a document. Raise `DataError` for unreadable input."""

    def fingerprint(self) -> str:
        """Return a SHA-256, in hexadecimal, of everything that `sentences` depends on. Raise `DataError` like it."""


@dataclass(frozen=True)
class TextFiles:
    """UTF-8 text files, optionally `.gz`. Blank lines separate documents, and every file starts a new one.

    Raises:
        DataError: both ways to find documents are given, or `document_start` is not a regular expression.
    """

    paths: Sequence[str | Path]
    document_start: str | None = None
    """Regular expression to search in every line. A match starts a document; blank lines then have no meaning."""
    one_per_line: bool = False
    """Whether every line is a document."""

    def __post_init__(self) -> None:
        if self.document_start is not None and self.one_per_line:
            raise DataError("expected one_per_line or document_start, found both")
        try:
            re.compile(self.document_start or "")
        except re.error as error:
            raise DataError(
                f"expected a regular expression as document_start, found {self.document_start!r}: {error}"
            ) from None

    def sentences(self) -> Iterator[Sentence]:
        for path in map(Path, self.paths):
            starts = True
            for _, line in _numbered_lines(path):
                text = line.strip()
                if not text:
                    starts = starts or self.document_start is None
                    continue
                # Search the line before it is stripped: a pattern may include the spaces before a title.
                starts = starts or self.one_per_line or self._is_start(line)
                yield Sentence(text, starts)
                starts = False

    def _is_start(self, line: str) -> bool:
        return self.document_start is not None and re.search(self.document_start, line) is not None

    def fingerprint(self) -> str:
        return _files_fingerprint(["text", self.document_start, self.one_per_line], self.paths)


@dataclass(frozen=True)
class JsonlFiles:
    """JSONL files, optionally `.gz`. Every JSON object is a document; the lines of its text are the sentences."""

    paths: Sequence[str | Path]
    field: str = "text"
    """Key of the text in an object."""

    def sentences(self) -> Iterator[Sentence]:
        for path in map(Path, self.paths):
            for number, line in _numbered_lines(path):
                if line.strip():
                    yield from split_sentences(_field(line, self.field, f"{path}:{number}"), f"{path}:{number}")

    def fingerprint(self) -> str:
        return _files_fingerprint(["jsonl", self.field], self.paths)


def open_corpus(
    sources: Sequence[str | Path],
    *,
    document_start: str | None = None,
    one_per_line: bool = False,
    field: str = "text",
    split: str = "train",
) -> Corpus:
    """Open text files, JSONL files, or one dataset of the Hugging Face `datasets` library as a corpus.

    Args:
        sources: files that are all JSONL (`.jsonl`, `.jsonl.gz`) or all plain text (any other name but that of a table,
            such as `.csv`), or one dataset: a folder, or `dataset:org/name[/config][@revision]` for one on the hub.
        document_start: regular expression that starts a document, see `TextFiles`; plain text only.
        one_per_line: treat every line as a document; plain text only.
        field: key or column of the text; JSONL and datasets only.
        split: split of a dataset.

    Raises:
        DataError: sources are missing or of different kinds, or an option does not apply to them.
    """
    if not sources:
        raise DataError("expected at least one file or dataset to train on, found none")
    kinds = {_kind(source) for source in sources}
    if len(kinds) > 1 or (kinds == {"dataset"} and len(sources) > 1):
        raise DataError(
            "expected only text files, only JSONL files, or one dataset, found "
            + ", ".join(f"{source} ({_kind(source)})" for source in sources)
        )
    if kinds == {"text"}:
        if field != "text":
            raise DataError(
                f"{sources[0]}: plain text has no field {field!r}; only JSONL files and datasets have fields"
            )
        return TextFiles(sources, document_start, one_per_line)
    if document_start is not None or one_per_line:
        raise DataError(
            f"{sources[0]}: document_start and one_per_line are for plain text; every {kinds.pop()} row is a document"
        )
    if kinds == {"jsonl"}:
        return JsonlFiles(sources, field)
    return HuggingFaceDataset.from_name(str(sources[0]).removeprefix("dataset:"), split=split, field=field)


_TABLES = {".csv", ".tsv", ".parquet", ".arrow", ".json"}
"""Suffixes of files whose separators and labels would be read as text."""


def _kind(source: str | Path) -> str:
    """Return `text`, `jsonl` or `dataset`; raise `DataError` for a table."""
    if str(source).startswith("dataset:") or Path(source).is_dir():
        return "dataset"
    path = Path(source)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix in _TABLES:
        raise DataError(
            f"{source}: expected plain text or JSONL, found a {suffix} file, whose separators would be read as text; "
            'convert it to JSONL with rows like {"text": …}'
        )
    return "jsonl" if suffix == ".jsonl" else "text"


def _field(line: str, field: str, where: str) -> str:
    """Return the text in a line of JSONL; `where` names the line in errors."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    if not isinstance(row.get(field), str):
        found = type(row[field]).__name__ if field in row else f"the fields {', '.join(map(repr, row)) or '(none)'}"
        raise DataError(f"{where}: expected a text in the field {field!r}, found {found}")
    return cast(str, row[field])


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of `path` without line ends, and their numbers from 1."""
    with open_text(path) as stream:
        for line in stream:
            yield stream.line_number, line.rstrip("\r\n")


def _files_fingerprint(settings: Sequence[object], paths: Sequence[str | Path]) -> str:
    """Return a SHA-256 of the settings and of the contents of all files in order; file names have no effect."""
    try:
        contents = [sha256_file(Path(path)) for path in paths]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: no such file") from None
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error}") from None
    compressed = [Path(path).suffix == ".gz" for path in paths]
    return hashlib.sha256(json.dumps([settings, contents, compressed]).encode()).hexdigest()
