"""The columns of a table that hold a model's inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyarrow import types

from bert_runtime import DataError, InputError, NextSentencePrediction, QuestionAnswering, Reranking, SingleInput, Task
from bert_runtime.records.column_hints import closest_name

__all__ = ["InputColumns", "check_column_types"]


@dataclass(frozen=True)
class InputColumns:
    """Names of the columns of a text, and of the second text of a pair: for a question, that of its context."""

    text: str
    pair: str | None = None

    @classmethod
    def of(
        cls, task: Task, text: str | None, pair: str | None, question: str | None = None, context: str | None = None
    ) -> Self:
        """Return the columns that a task reads, by the names that a caller gave for some of them.

        By default they are `text`, `question` and `context` for questions, and `text` and `text_pair` for the next
        sentence and for reranking. Another task reads pairs only where `pair` is given.

        Raises:
            InputError: a name was given for a column that the task does not read.
        """
        if isinstance(task, QuestionAnswering):
            if text is not None or pair is not None:
                raise InputError(f"{task.name} reads a question and a context: name these columns, not those of a text")
            return cls(question or "question", context or "context")
        if question is not None or context is not None:
            raise InputError(f"{task.name} reads a text: name its column, not those of a question and a context")
        needs_pair = isinstance(task, NextSentencePrediction | Reranking)
        return cls(text or "text", pair or ("text_pair" if needs_pair else None))

    @property
    def names(self) -> tuple[str, ...]:
        """The one name, or both."""
        return (self.text,) if self.pair is None else (self.text, self.pair)

    def check(self, found: Sequence[str], where: str) -> None:
        """Raise `DataError` unless both columns are among those of a table.

        Args:
            found: the table's columns.
            where: the table in the message, such as its file.
        """
        for name in self.names:
            if name not in found:
                closest = closest_name((name, "sentence"), found)
                raise DataError(
                    f"{where}: expected a column {name!r}, found {', '.join(map(repr, found)) or 'none'}"
                    + (f"; is it {closest!r}? name the column of the texts" if closest else "")
                )

    def inputs(self, columns: Sequence[Sequence[Any]]) -> list[SingleInput]:
        """Return the model's inputs from the values of the columns `names`; a missing value gives no valid input."""
        if self.pair is None:
            return list(columns[0])
        return list(zip(*columns, strict=True))


def check_column_types(schema: pa.Schema, columns: InputColumns, where: str) -> None:
    """Raise `DataError` unless the columns of inputs are there, and hold strings.

    Args:
        schema: the table's schema.
        columns: the columns that are read.
        where: the table in the message, such as its file.
    """
    columns.check(schema.names, where)
    for name in columns.names:
        kind = schema.field(name).type
        value = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(value) or types.is_large_string(value) or types.is_null(value) or _is_view(value)):
            raise DataError(f"{where}: expected the column {name!r} to hold strings, found {kind}")


def _is_view(kind: pa.DataType) -> bool:
    return kind == pa.string_view()
