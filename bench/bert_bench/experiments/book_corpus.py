"""The books as a corpus to pre-train on: whole, or a paragraph a document."""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_models.corpus import TextFiles
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.records.open_text import open_text

__all__ = ["books_as_text"]

_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["'”’)]))\s+(?=["'“‘(]*[A-Z0-9])""")
"""What lies between two English sentences: good enough to learn from, though "Mr. Darcy" is cut in two."""


def books_as_text(books: Path, work: Path, document_start: str | None) -> TextFiles:
    """The books as a text file; with `None`, paragraphs of at least two sentences are documents."""
    target = work / ("books.txt" if document_start is not None else "paragraphs.txt")
    if not target.is_file():
        with open_text(books) as source, atomic_write(target) as copy:
            if document_start is not None:
                shutil.copyfileobj(source, copy)
            else:
                copy.writelines(_paragraphs(source))
    return TextFiles([target], document_start)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Of paragraphs, a line each, those of at least two sentences: a line each, and a blank one."""
    for line in lines:
        sentences = [each.strip() for each in _SENTENCE_END.split(line.strip())]
        if len(sentences) > 1:
            yield "\n".join([*sentences, "", ""])
