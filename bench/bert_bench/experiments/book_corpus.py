"""Text files of books as a pre-training corpus: whole books, or paragraphs, as documents."""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_models.corpus import TextFiles
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.records.open_text import open_text

__all__ = ["book_corpus"]

_SENTENCE_BOUNDARY = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["'”’)]))\s+(?=["'“‘(]*[A-Z0-9])""")
"""The space between two English sentences. Good enough for pre-training, though it splits "Mr. Darcy" in two."""


def book_corpus(books: Path, work: Path, document_start: str | None) -> TextFiles:
    """Copy a text file of books into `work` and return it as a corpus.

    Args:
        books: text file, gzipped or not, one paragraph per line.
        work: folder of the copy. A copy that is there is not made again.
        document_start: regular expression of the first line of a document. If `None`, every paragraph of at least two
            sentences is a document, with one sentence per line; other paragraphs are left out.

    """
    copy = work / ("books.txt" if document_start is not None else "paragraphs.txt")
    if not copy.is_file():
        with open_text(books) as source, atomic_write(copy) as output:
            if document_start is not None:
                shutil.copyfileobj(source, output)
            else:
                output.writelines(_paragraph_documents(source))
    return TextFiles([copy], document_start)


def _paragraph_documents(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield each paragraph of at least two sentences as one sentence per line and a blank line."""
    for paragraph in paragraphs:
        sentences = [sentence.strip() for sentence in _SENTENCE_BOUNDARY.split(paragraph.strip())]
        if len(sentences) > 1:
            yield "\n".join([*sentences, "", ""])
