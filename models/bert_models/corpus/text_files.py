"""Raw text as a stream of sentences that know where a document begins.

A corpus is never held in memory: a document may be larger than it. What a line is, a sentence or a paragraph, is up to
the files; the rest of this package calls it a sentence.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from bert_models.corpus.hugging_face_datasets import HuggingFaceDataset
from bert_models.corpus.sentences import Sentence, split_sentences
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.errors import DataError

__all__ = ["Corpus", "JsonlFiles", "TextFiles", "open_corpus"]


class Corpus(Protocol):
    """Documents from anywhere."""

    def sentences(self) -> Iterator[Sentence]:
        """All sentences in order; the first starts a document. Raises `DataError`."""

    def fingerprint(self) -> str:
        """A SHA-256 in hexadecimal of all that decides what `sentences` gives. Raises `DataError`."""


@dataclass(frozen=True)
class TextFiles:
    """UTF-8 text files, also as `.gz`, with blank lines between documents; a file starts a document."""

    paths: Sequence[str | Path]
    document_start: str | None = None
    """A regular expression: documents start at the lines in which it is found, and blank lines mean nothing."""
    one_per_line: bool = False
    """Every line is a document."""

    def __post_init__(self) -> None:
        if self.document_start is not None and self.one_per_line:
            raise DataError("a corpus has documents of one line, or documents that start at a pattern, not both")
        try:
            re.compile(self.document_start or "")
        except re.error as error:
            raise DataError(f"document start {self.document_start!r} is no regular expression: {error}") from None

    def sentences(self) -> Iterator[Sentence]:
        for path in map(Path, self.paths):
            starts = True
            for _, line in _numbered_lines(path):
                text = line.strip()
                if not text:
                    starts = starts or self.document_start is None
                    continue
                # The line as it stands: a pattern may ask for the spaces before a title.
                starts = starts or self.one_per_line or self._is_start(line)
                yield Sentence(text, starts)
                starts = False

    def _is_start(self, line: str) -> bool:
        return self.document_start is not None and re.search(self.document_start, line) is not None

    def fingerprint(self) -> str:
        return _files_fingerprint(["text", self.document_start, self.one_per_line], self.paths)


@dataclass(frozen=True)
class JsonlFiles:
    """Files with one JSON object a line, also as `.gz`; each is a document, whose lines are its sentences."""

    paths: Sequence[str | Path]
    field: str = "text"
    """The key of a document's text."""

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
    """The corpus of files that are all JSONL or all plain text, or of one dataset of the `datasets` library.

    A file that ends in `.jsonl` or `.jsonl.gz` is JSONL, every other is plain text. A folder is a dataset; so is
    `dataset:` with a name on the hub behind it, `dataset:org/name` or `dataset:org/name/config`.

    Raises `DataError` for a mixture.
    """
    if not sources:
        raise DataError("expected at least one file or dataset to train on, found none")
    kinds = {_kind(each) for each in sources}
    if len(kinds) > 1 or (kinds == {"dataset"} and len(sources) > 1):
        raise DataError(
            "expected only text files, only JSONL files, or one dataset, found "
            + ", ".join(f"{each} ({_kind(each)})" for each in sources)
        )
    if kinds == {"text"}:
        if field != "text":
            raise DataError(f"{sources[0]}: plain text has no column {field!r}; those are of JSONL and of datasets")
        return TextFiles(sources, document_start, one_per_line)
    if document_start is not None or one_per_line:
        raise DataError(f"{sources[0]}: in {kinds.pop()} a row is a document: there is no document start to choose")
    if kinds == {"jsonl"}:
        return JsonlFiles(sources, field)
    return HuggingFaceDataset.from_name(str(sources[0]).removeprefix("dataset:"), split=split, field=field)


def _kind(source: str | Path) -> str:
    if str(source).startswith("dataset:") or Path(source).is_dir():
        return "dataset"
    path = Path(source)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return "jsonl" if suffix == ".jsonl" else "text"


def _field(line: str, field: str, where: str) -> str:
    """The text of a JSONL row."""
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
    """The lines of `path` with their numbers from 1.

    Each is decoded by itself: a stream of text decodes ahead and could not say in which line it failed.
    """
    number = 0
    try:
        with _open_bytes(path) as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}; "
            "convert it with: iconv -f latin1 -t utf-8"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}:{number + 1}: cannot be read: {error}") from None


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _files_fingerprint(settings: Sequence[object], paths: Sequence[str | Path]) -> str:
    """A digest of the settings and of the files' contents in order; what they are called does not count."""
    try:
        contents = [sha256_file(Path(path)) for path in paths]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: no such file") from None
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error}") from None
    packed = [Path(path).suffix == ".gz" for path in paths]
    return hashlib.sha256(json.dumps([settings, contents, packed]).encode()).hexdigest()
