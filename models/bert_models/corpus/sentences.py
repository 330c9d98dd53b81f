"""`Sentence`, the unit that a corpus yields, and splitting a document into them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_runtime.errors import DataError

__all__ = ["Sentence", "split_sentences"]


class Sentence(NamedTuple):
    """A line of a corpus."""

    text: str
    """The line without surrounding white space; never empty."""
    starts_document: bool


def split_sentences(document: str, where: str) -> Iterator[Sentence]:
    """Yield the non-blank lines of a document.

    Args:
        document: the text.
        where: the document, for error messages.

    Raises:
        DataError: the text has a lone surrogate.
    """
    try:
        document.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can escape code points that UTF-8 cannot encode
        found = ord(document[error.start])
        raise DataError(
            f"{where}: expected text that UTF-8 can encode, found a lone surrogate (U+{found:04X}) at character "
            f"{error.start}; replace it with: text.encode('utf-8', 'replace').decode()"
        ) from None
    starts = True
    for line in re.split(r"[\r\n]+", document):
        if text := line.strip():
            yield Sentence(text, starts)
            starts = False
