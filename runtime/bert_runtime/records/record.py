"""A row of a data file: typed access to its fields, with errors that name the file and the line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bert_runtime.errors import DataError
from bert_runtime.records.answers import parse_answers
from bert_runtime.records.column_hints import closest_name, suggest_columns

__all__ = ["Record"]


@dataclass(frozen=True)
class Record:
    """A row of a data file: its fields, and its location for error messages.

    All methods that return a field raise `DataError` where it is missing or malformed.
    """

    fields: Mapping[str, Any]
    """Values by field name."""
    path: Path
    """The file."""
    line: int | None = None
    """Number of the row's first line, from 1; `None` for formats whose rows are not lines."""
    location: str | None = None
    """Location of the row in a format whose rows are not lines, such as `question 56be4db0acb8001400a502ec`."""
    is_blank: bool = False
    """Whether it is a blank line, or a row of a table whose cells are all empty."""
    allow_empty: bool = False
    """Whether texts may be empty: as inputs for prediction they may, as examples they may not."""
    displaced: Mapping[str, Any] = field(default_factory=dict)
    """Values by name of the file's columns whose names `rename_columns` gave to others."""

    @property
    def where(self) -> str:
        """Location for error messages: `file:line` or `file: location`."""
        if self.location is not None:
            return f"{self.path}: {self.location}"
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"

    def rename_columns(self, columns: Mapping[str, str]) -> Self:
        """Return the record with the file's column names replaced by field names, see `iter_records`."""
        if not columns:
            return self
        absent = sorted(set(columns.values()) - set(self.fields))
        if absent:
            closest = closest_name(absent[:1], list(self.fields))
            raise DataError(
                f"{self.where}: expected {', '.join(map(repr, absent))}, found {', '.join(self.fields)}"
                + (f"; the closest to {absent[0]!r} is {closest!r}" if closest else "")
            )
        moved = {field: self.fields[column] for field, column in columns.items()}
        kept = {name: value for name, value in self.fields.items() if name not in columns.values()}
        displaced = {name: value for name, value in kept.items() if name in moved}
        return replace(self, fields=kept | moved, displaced=displaced)

    def text(self, name: str = "text") -> str:
        """Return the field `name`, which must be a string, and not a blank one unless `allow_empty`."""
        value = self._field(name)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: expected {name!r} to be a string, found {type(value).__name__}")
        if not (self.allow_empty or value.strip()):
            raise DataError(f"{self.where}: {name!r} is empty")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return the field `name` as `text` does; `None` if it is missing or empty."""
        return None if self.fields.get(name) in (None, "") else self.text(name)

    def texts(self, name: str) -> list[str]:
        """Return the field `name`, which holds a text or a list of at least one, each as `text` has it."""
        value = self.fields.get(name)
        if not isinstance(value, list):
            return [self.text(name)]
        if not value:
            raise DataError(f"{self.where}: expected at least one text in {name!r}, found none")
        for position, text in enumerate(value):
            if not isinstance(text, str) or not (text.strip() or self.allow_empty):
                raise DataError(
                    f"{self.where}: expected {name}[{position}] to be a non-empty string, found {text!r:.80}"
                )
        return value

    def label(self) -> str:
        """Return the field `label` as a class name; an int is converted."""
        value = self.fields.get("label")
        if value is None and "labels" in self.fields:
            raise DataError(
                f"{self.where}: expected one 'label', found 'labels'; train a model of several labels per text with "
                "--problem-type multi_label, or name the column with --columns label=labels if each row has one"
            )
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text("label").strip()

    def labels(self) -> list[str]:
        """Return the field `labels`, or `label`, as class names: a list or comma-separated names; it may be empty."""
        value = self.fields["labels"] if "labels" in self.fields else self.fields.get("label")
        if value is None:
            value = self._field("labels")
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, list) and all(isinstance(name, str | int) and name is not True for name in value):
            return [str(name) for name in value]
        raise DataError(
            f"{self.where}: expected 'labels' to be a list of names or comma-separated names, found {value!r}"
        )

    def number(self, name: str) -> float:
        """Return the field `name`, which must be a finite number or the text of one."""
        value = self.fields.get(name)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{self.where}: expected a number in {name!r}, found {value!r}") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise DataError(f"{self.where}: expected a finite number in {name!r}, found {value!r}")
        return number

    def tokens(self) -> list[str]:
        """Return the field `tokens`, which must be a non-empty list of non-empty strings."""
        tokens = self._list("tokens")
        if not tokens:
            raise DataError(f"{self.where}: 'tokens' is empty")
        for position, token in enumerate(tokens):
            if not isinstance(token, str) or not token:
                raise DataError(f"{self.where}: expected tokens[{position}] to be a non-empty string, found {token!r}")
        return tokens

    def tags(self, name: str = "tags") -> list[str]:
        """Return the field `name` as class names, one per entry of `tokens`; ints are converted."""
        tags, count = self._list(name), len(self.tokens())
        if len(tags) != count:
            raise DataError(f"{self.where}: expected as many {name!r} as 'tokens' ({count}), found {len(tags)}")
        for position, tag in enumerate(tags):
            if not isinstance(tag, str | int) or isinstance(tag, bool) or tag == "":
                raise DataError(f"{self.where}: expected {name}[{position}] to be a name, found {tag!r}")
        return [str(tag) for tag in tags]

    def answers(self) -> list[tuple[str, int]]:
        """Return the field `answers`, in one of the shapes that `parse_answers` reads.

        Returns:
            Text and index of the first character in the field `context` of each answer; empty if the context does not
            answer the question.
        """
        return parse_answers(self._field("answers"), self.text("context"), f"{self.where}: answers")

    def _field(self, name: str) -> Any:
        """Return the field `name`, which must be there."""
        value = self.fields.get(name)
        if value is None:
            hint = "" if name in self.fields else suggest_columns([name], list(self.fields))
            raise DataError(
                f"{self.where}: expected a field {name!r}, found only {', '.join(map(repr, self.fields)) or 'nothing'}"
                + (f"; name it with {hint}" if hint else "")
            )
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._field(name)
        if not isinstance(value, list):
            raise DataError(f"{self.where}: expected {name!r} to be a list, found {type(value).__name__}")
        return value
