"""SQuAD 1.1 and 2.0: one JSON document of questions about paragraphs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_runtime.errors import DataError
from bert_runtime.records.answers import parse_answers
from bert_runtime.records.open_text import Utf8Text
from bert_runtime.records.record import Record

__all__ = ["read_squad"]

_HINT = "a file of one JSON object per line must end in .jsonl"
_KINDS = {bool: "true or false", int: "a whole number", list: "a list", str: "a string"}


def read_squad(path: Path, stream: Utf8Text, columns: Mapping[str, str]) -> Iterator[Record]:
    """Read a SQuAD file: one record per question.

    A record has `id`, `question`, `context` and, where given, `title` and `answers`.
    """
    if columns:
        named = ", ".join(f"{field}={column}" for field, column in columns.items())
        raise DataError(f"{path}: expected no columns, because SQuAD's fields have fixed names, found {named}")
    for article in _Node(_document(path, stream), path).items("data"):
        title = {"title": article.member("title", str)} if "title" in article.value else {}
        for paragraph in article.items("paragraphs"):
            context = paragraph.member("context", str)
            for question in paragraph.items("qas"):
                yield _record(path, title, context, question)


@dataclass(frozen=True)
class _Node:
    """An object of a JSON document, and its path from the document's root."""

    value: dict[str, Any]
    path: Path
    location: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}: {self.location}" if self.location else str(self.path)

    def member(self, name: str, *kinds: type) -> Any:
        """Return the member `name`, which must be of one of `kinds`."""
        if name not in self.value:
            raise DataError(f"{self.where}: expected {name!r}, found {', '.join(map(repr, self.value)) or 'nothing'}")
        value = self.value[name]
        if type(value) not in kinds:
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise DataError(f"{self.where}: expected {name!r} to be {expected}, found {type(value).__name__}")
        return value

    def items(self, name: str) -> "Iterator[_Node]":
        """Iterate over the objects in the list `name`."""
        for number, item in enumerate(self.member(name, list)):
            location = f"{self.location}.{name}[{number}]".removeprefix(".")
            if not isinstance(item, dict):
                raise DataError(f"{self.path}: {location}: expected an object, found {type(item).__name__}")
            yield _Node(item, self.path, location)


def _document(path: Path, stream: Utf8Text) -> dict[str, Any]:
    text = stream.read_all()
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        hint = f"; {_HINT}" if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        found = type(document).__name__
        raise DataError(f"{path}: expected an object with 'data' as in SQuAD, found {found}; {_HINT}")
    return document


def _record(path: Path, title: Mapping[str, str], context: str, question: _Node) -> Record:
    fields: dict[str, Any] = {
        "id": str(question.member("id", str, int)),
        **title,
        "question": question.member("question", str),
        "context": context,
    }
    impossible = "is_impossible" in question.value and question.member("is_impossible", bool)
    if impossible:
        fields["answers"] = []
    elif "answers" in question.value:
        answers = parse_answers(question.value["answers"], context, f"{question.where}.answers")
        fields["answers"] = [{"text": text, "answer_start": start} for text, start in answers]
    return Record(fields, path, location=f"question {fields['id']}")
