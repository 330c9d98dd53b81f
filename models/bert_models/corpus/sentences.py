"""What a corpus is made of."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_runtime.errors import DataError

__all__ = ["Sentence", "split_sentences"]


class Sentence(NamedTuple):
    """One line of a corpus, without the spaces around it and never empty."""

    text: str
    starts_document: bool


def split_sentences(document: str, where: str) -> Iterator[Sentence]:
    """The lines of a document that are not blank; `where` names it in errors."""
    try:
        document.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell what no encoding can
        found = ord(document[error.start])
        raise DataError(
            f"{where}: the text holds a lone surrogate (U+{found:04X}) at character {error.start}, which no text "
            "encoding can express; replace it with: text.encode('utf-8', 'replace').decode()"
        ) from None
    starts = True
    for line in re.split(r"[\r\n]+", document):
        if text := line.strip():
            yield Sentence(text, starts)
            starts = False
