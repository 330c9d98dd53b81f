"""Results of `bert-export predict` in a CSV file, one row for each input."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from bert_export.cli.predict_output import Answer, encodable
from bert_runtime.cascade.task import CascadeTask
from bert_runtime.errors import DataError
from bert_runtime.inputs import InputFailure
from bert_runtime.tasks import NextSentencePrediction, QuestionAnswering, Reranking, Task, TextClassification

__all__ = ["check_format", "csv_header", "csv_line", "is_csv_file", "result_columns"]

_UNKNOWN_FORMATS = (".gz", ".parquet", ".tsv", ".xlsx")
"""Ends of file names that would say something else than what is in the file."""

_LINE_END = "\r\n"
"""End of a line, by whose characters Python before 3.13 quotes values: with none, a value became several rows."""


def check_format(path: Path) -> None:
    """Raise `DataError` for a file whose name asks for a format that `predict` does not write."""
    if path.suffix.lower() in _UNKNOWN_FORMATS:
        raise DataError(
            f"{path}: expected a file name that ends in .jsonl (JSON lines), .csv or .npz (arrays), found {path.suffix}"
        )


def is_csv_file(path: Path | None) -> bool:
    """Return whether results go to a CSV file."""
    return path is not None and path.suffix.lower() == ".csv"


def result_columns(path: Path, task: Task, *, zero_shot: bool = False) -> tuple[str, ...]:
    """Return the columns of a task's results: attributes of a result.

    Args:
        path: the file that they are for.
        task: the bundle's task, with the options of the call.
        zero_shot: whether texts get candidate labels, of which the best one is written.

    Raises:
        DataError: a result has more than one row's values.
    """
    match task:
        case CascadeTask(problem_type="single_label", top_k=None):
            return ("label", "score", "model", "truncated")
        case TextClassification(problem_type="single_label", top_k=None):
            return ("label", "score", "truncated")
        case TextClassification(problem_type="regression") if len(task.labels) == 1:
            return ("score", "truncated")
        case NextSentencePrediction():
            return ("label", "score", "truncated")
        case Reranking():
            return ("score", "logit", "truncated")
        case QuestionAnswering(top_k=1):
            return ("answer", "score", "start", "end")
    if zero_shot:
        return ("label", "score", "truncated")
    raise DataError(
        f"{path}: a CSV file has a row of a few values for each text, and results of {task.name} have more here; "
        "write a .jsonl file"
    )


def csv_header(columns: Sequence[str], *, with_errors: bool) -> str:
    """Return the names of columns as a line of CSV; with errors, `error` comes last."""
    return _csv_line([*columns, *_error_column("error", with_errors=with_errors)])


def csv_line(answer: Answer, columns: Sequence[str], *, with_errors: bool) -> str:
    """Return an answer as a line of CSV; the values of an input that could not be processed are empty."""
    if isinstance(answer, InputFailure):
        return _csv_line([*("" for _ in columns), *_error_column(answer.error, with_errors=with_errors)])
    values = (_plain(getattr(answer, name)) for name in columns)
    return _csv_line([*values, *_error_column("", with_errors=with_errors)])


def _error_column(value: str, *, with_errors: bool) -> list[str]:
    return [value] if with_errors else []


def _csv_line(values: Sequence[object]) -> str:
    """Return values as a line of CSV, without its end."""
    line = StringIO()
    csv.writer(line, lineterminator=_LINE_END).writerow(values)
    return encodable(line.getvalue().removesuffix(_LINE_END))


def _plain(value: object) -> object:
    """Write truth values as JSON does."""
    return str(value).lower() if isinstance(value, bool) else value
