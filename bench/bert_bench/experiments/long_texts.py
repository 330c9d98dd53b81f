"""Two classifications of long texts, made of public data: passages of books, and passages of encyclopedia articles.

A passage is a fixed number of words in a row, and its label the title of the text that it comes from.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_export.calibration_texts import spread
from bert_runtime.records import read_records
from bert_runtime.records.open_text import open_text

__all__ = ["LONG_TEXTS", "LongTexts"]

_NUM_BOOKS, _BOOK_WORDS, _BOOK_TRAIN, _BOOK_TEST = 12, 180, 300, 120
"""The longest books, the words of a passage, and the passages of each book to train on and to test on."""

_ARTICLE_WORDS, _ARTICLE_TRAIN_EVERY = 110, 3
"""The words of a passage, and of how many passages of an article one is to train on."""

Rows = list[dict[str, Any]]


class LongTexts(NamedTuple):
    """A classification of long texts."""

    description: str
    read: Callable[[Path], tuple[Rows, Rows]]
    """Returns the rows to train on and to test on, from the folder of data sets."""

    def write(self, data: Path, folder: Path) -> tuple[Path, Path]:
        """Write `train.jsonl` and `test.jsonl` and return their paths."""
        paths = folder / "train.jsonl", folder / "test.jsonl"
        for path, rows in zip(paths, self.read(data), strict=True):
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return paths


def _passages(title: str, words: list[str], length: int) -> Rows:
    """Return the words of a text in passages of `length` words, without the rest."""
    starts = range(0, len(words) - length + 1, length)
    return [{"text": " ".join(words[start : start + length]), "label": title} for start in starts]


def _books(data: Path) -> tuple[Rows, Rows]:
    """Return passages of the longest books, those of the last fifth of a book for the test."""
    train: Rows = []
    test: Rows = []
    books = sorted(_book_words(data / "books" / "books.md.gz"), key=lambda book: -len(book[1]))
    for title, words in books[:_NUM_BOOKS]:
        passages = _passages(title, words, _BOOK_WORDS)
        end = len(passages) * 4 // 5
        train += spread(passages[:end], _BOOK_TRAIN)
        test += spread(passages[end:], _BOOK_TEST)
    return train, test


def _book_words(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the words of each book, without headings."""
    title, words = "", list[str]()
    with open_text(path) as lines:
        for line in lines:
            if line.startswith("# Title: "):
                if words:
                    yield title, words
                title, words = line.removeprefix("# Title: ").strip(), []
            elif not line.startswith(("#", "---")):
                words += line.split()
    yield title, words


def _articles(data: Path) -> tuple[Rows, Rows]:
    """Return passages of SQuAD's articles, every third one to train on."""
    train: Rows = []
    test: Rows = []
    for part in ("train", "dev"):
        contexts: dict[str, dict[str, None]] = {}
        for record in read_records(data / "squad_v1.1" / f"{part}-articles.json.gz"):
            contexts.setdefault(record.fields["title"], {})[record.fields["context"]] = None
        for title, paragraphs in contexts.items():
            passages = _passages(title, " ".join(paragraphs).split(), _ARTICLE_WORDS)
            for index, row in enumerate(passages):
                (test if index % _ARTICLE_TRAIN_EVERY else train).append(row)
    return train, test


LONG_TEXTS = {
    "books": LongTexts(
        f"{_BOOK_WORDS} words in a row of one of {_NUM_BOOKS} novels and other books → its title; tested on the last "
        "fifth of each book, trained on the rest",
        _books,
    ),
    "articles": LongTexts(
        f"{_ARTICLE_WORDS} words in a row of one of 29 encyclopedia articles (SQuAD 1.1) → its title; every third "
        "passage is trained on",
        _articles,
    ),
}
