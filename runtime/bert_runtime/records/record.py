"""One row of a data file: access to its fields, with complaints that name the place."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from bert_runtime.errors import DataError
from bert_runtime.records.answers import parse_answers

__all__ = ["Record"]


@dataclass(frozen=True)
class Record:
    """One row of a data file: its fields and where it came from."""

    fields: Mapping[str, Any]
    path: Path
    line: int | None = None
    """The row's first line, counted from 1; `None` where the format has no rows of lines."""
    location: str | None = None
    """How to find the row in a file whose format has no rows of lines."""

    @property
    def where(self) -> str:
        """`file:line` or `file: location`, as error messages begin."""
        if self.location is not None:
            return f"{self.path}: {self.location}"
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"

    def rename_columns(self, columns: Mapping[str, str]) -> Self:
        """The record with the fields that `columns` names moved to our names, see `iter_records`."""
        if not columns:
            return self
        absent = sorted(set(columns.values()) - set(self.fields))
        if absent:
            raise DataError(f"{self.where}: expected {', '.join(map(repr, absent))}, found {', '.join(self.fields)}")
        moved = {ours: self.fields[theirs] for ours, theirs in columns.items()}
        kept = {name: value for name, value in self.fields.items() if name not in columns.values()}
        return replace(self, fields=kept | moved)

    def text(self, name: str = "text") -> str:
        """The field `name` as a non-empty string; raises `DataError` otherwise."""
        value = self._field(name)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: expected {name!r} to be a string, found {type(value).__name__}")
        if not value.strip():
            raise DataError(f"{self.where}: {name!r} is empty")
        return value

    def optional_text(self, name: str) -> str | None:
        """The field `name` as a non-empty string, or `None` where the row does not have it."""
        return None if self.fields.get(name) in (None, "") else self.text(name)

    def label(self) -> str:
        """The field `label` as a class name; whole numbers count as names."""
        value = self.fields.get("label")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text("label").strip()

    def labels(self) -> list[str]:
        """The field `labels` (or `label`) as class names: a list, or names between commas; may be empty."""
        value = self.fields["labels"] if "labels" in self.fields else self.fields.get("label")
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, list) and all(isinstance(name, str | int) and name is not True for name in value):
            return [str(name) for name in value]
        raise DataError(
            f"{self.where}: expected 'labels' to be a list of names or names between commas, found {value!r}"
        )

    def number(self, name: str) -> float:
        """The field `name` as a finite number; raises `DataError` otherwise."""
        value = self.fields.get(name)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{self.where}: expected a number in {name!r}, found {value!r}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise DataError(f"{self.where}: expected a finite number in {name!r}, found {value!r}")
        return number

    def tokens(self) -> list[str]:
        """The field `tokens` as a non-empty list of non-empty strings; raises `DataError` otherwise."""
        tokens = self._list("tokens")
        if not tokens:
            raise DataError(f"{self.where}: 'tokens' is empty")
        for position, token in enumerate(tokens):
            if not isinstance(token, str) or not token:
                raise DataError(f"{self.where}: expected tokens[{position}] to be a non-empty string, found {token!r}")
        return tokens

    def tags(self, name: str = "tags") -> list[str]:
        """The field `name` as a list of class names, one for each of `tokens`; whole numbers count as names."""
        tags, count = self._list(name), len(self.tokens())
        if len(tags) != count:
            raise DataError(f"{self.where}: expected as many {name!r} as 'tokens' ({count}), found {len(tags)}")
        for position, tag in enumerate(tags):
            if not isinstance(tag, str | int) or isinstance(tag, bool) or tag == "":
                raise DataError(f"{self.where}: expected {name}[{position}] to be a name, found {tag!r}")
        return [str(tag) for tag in tags]

    def answers(self) -> list[tuple[str, int]]:
        """The field `answers` as texts, each with the character of the field `context` at which it starts.

        An empty list says that the context does not answer the question. The field may have either shape that
        `parse_answers` reads; raises `DataError` where it is missing, malformed, or at odds with the context.
        """
        return parse_answers(self._field("answers"), self.text("context"), f"{self.where}: answers")

    def _field(self, name: str) -> Any:
        """The field `name`, which must be there."""
        value = self.fields.get(name)
        if value is None:
            raise DataError(
                f"{self.where}: expected a field {name!r}, found only {', '.join(map(repr, self.fields)) or 'nothing'}"
            )
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._field(name)
        if not isinstance(value, list):
            raise DataError(f"{self.where}: expected {name!r} to be a list, found {type(value).__name__}")
        return value
