"""`bert-export predict`."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import Any, TextIO

import click

from bert_export.cli.options import bundle_argument, columns_option, inference_options, json_option, load_model
from bert_export.cli.param_types import PATH
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.errors import DataError
from bert_runtime.records import Record, iter_records
from bert_runtime.tasks import Result, Task, TextInput

__all__ = ["predict"]


@click.command()
@bundle_argument
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--pair", help="Second text of a pair, combined with each TEXT.")
@click.option("--question", help="Question to answer from each TEXT.")
@click.option("--input", "input_file", type=PATH, help="File of inputs, as for evaluate, or of texts (.txt).")
@click.option("--output", "output_file", type=PATH, help="File for the results, as JSON lines, instead of stdout.")
@columns_option
@inference_options
@json_option
def predict(
    bundle: Path,
    texts: tuple[str, ...],
    pair: str | None,
    question: str | None,
    input_file: Path | None,
    output_file: Path | None,
    columns: dict[str, str] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict for each TEXT, row of a file, or line of stdin.

    Options of tasks, such as --top-k, default to the bundle's settings.
    """
    model = load_model(bundle, **options)
    inputs, shown = tee(_inputs(model.task, texts, pair, question, input_file, columns))
    results = zip(shown, model.stream(inputs), strict=True)
    if output_file is None:
        for text, result in results:
            click.echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else _format(text, result))
        return
    written = 0
    with (
        _open_output(output_file) as stream,
        click.progressbar(results, label="predicting", file=sys.stderr, show_pos=True) as bar,
    ):
        for _, result in bar:
            stream.write(json.dumps(result.to_dict(), ensure_ascii=False) + "\n")
            written += 1
    click.echo(f"wrote {written} results to {output_file}", err=True)


def _inputs(
    task: Task,
    texts: tuple[str, ...],
    pair: str | None,
    question: str | None,
    input_file: Path | None,
    columns: dict[str, str] | None,
) -> Iterator[TextInput]:
    """Iterate over the inputs: arguments, rows of a file, or lines of stdin."""
    if texts and input_file is not None:
        raise click.UsageError("give either TEXT or --input, not both")
    if pair is not None and question is not None:
        raise click.UsageError("give either --pair or --question, not both")
    if question is not None and not texts:
        raise click.UsageError("--question needs a TEXT to search; a file has the columns question and context")
    if pair is not None and not texts:
        raise click.UsageError("--pair needs a TEXT; a file has pairs in its columns text and text_pair")
    if input_file is not None:
        return (_single_input(record, task) for record in iter_records(input_file, columns))
    if texts:
        return (TextInput(text, pair) if question is None else TextInput(question, text) for text in texts)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("expected a TEXT, --input FILE, or texts on stdin")
    return _read_stdin()


def _single_input(record: Record, task: Task) -> TextInput:
    """Return the input of a row, and raise `DataError` if the task reads several from it."""
    first, *others = task.inputs(record)
    if others:
        raise DataError(
            f"{record.where}: expected one text, found text and text_pair, which {task.name} reads separately; "
            "give a file with one text per row"
        )
    return first


def _read_stdin() -> Iterator[TextInput]:
    try:
        lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
        yield from (TextInput(line.rstrip("\r\n")) for line in lines if line.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"<stdin>: expected UTF-8 text: {error}") from None


def _format(text: TextInput, result: Result) -> str:
    """Format a result as one line of text, followed by its input."""
    shown = " ".join(" | ".join(part for part in text if part is not None).split())
    return f"{result.summary()}\t{shown}"


@contextmanager
def _open_output(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` once it is complete; a pipe or a device is written to directly."""
    special = path.exists() and not path.is_file() and not path.is_dir()
    try:
        with path.open("w", encoding="utf-8") if special else atomic_write(path) as stream:
            yield stream
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}") from None
