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

from bert_export.cli.common import (
    PATH,
    bundle_argument,
    columns_option,
    device_option,
    given,
    json_option,
    precision_option,
    task_options,
    threads_option,
)
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.errors import DataError
from bert_runtime.records import Record, iter_records
from bert_runtime.tasks import Result, Task, TextInput

__all__ = ["predict"]


@click.command()
@bundle_argument
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--pair", help="Second text, to be read together with each TEXT.")
@click.option("--question", help="Question to be answered from each TEXT.")
@click.option("--input", "input_file", type=PATH, help="File of inputs, as for evaluate, or of texts (.txt).")
@click.option("--output", "output_file", type=PATH, help="Write JSON lines here instead of to stdout.")
@columns_option
@precision_option
@device_option
@threads_option
@task_options
@json_option
def predict(
    bundle: Path,
    texts: tuple[str, ...],
    pair: str | None,
    question: str | None,
    input_file: Path | None,
    output_file: Path | None,
    columns: dict[str, str] | None,
    precision: str,
    device: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer for each TEXT, for each row of a file, or for each line of stdin."""
    from bert_runtime import load

    model = load(bundle, precision=precision, device=device, threads=threads).with_options(**given(options))
    inputs, shown = tee(_inputs(model.task, texts, pair, question, input_file, columns))
    results = zip(shown, model.stream(inputs), strict=True)
    if output_file is None:
        for text, result in results:
            click.echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else _line(text, result))
        return
    written = 0
    with (
        _output(output_file) as stream,
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
    """The texts from whichever place they were given in."""
    if texts and input_file is not None:
        raise click.UsageError("give either TEXT or --input, not both")
    if pair is not None and question is not None:
        raise click.UsageError("give either --pair or --question, not both")
    if question is not None and not texts:
        raise click.UsageError("--question needs a TEXT to look into; a file holds the columns question and context")
    if pair is not None and not texts:
        raise click.UsageError("--pair needs a TEXT; a file holds pairs in its columns text and text_pair")
    if input_file is not None:
        return (_input_of(record, task) for record in iter_records(input_file, columns))
    if texts:
        return (TextInput(text, pair) if question is None else TextInput(question, text) for text in texts)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("expected a TEXT, --input FILE, or texts on stdin")
    return _from_stdin()


def _input_of(record: Record, task: Task) -> TextInput:
    """What a row of a file has to be answered, which is one answer."""
    first, *others = task.inputs(record)
    if others:
        raise DataError(
            f"{record.where}: expected one text, found text and text_pair, which {task.name} reads on their own; "
            "give a file with one text a row"
        )
    return first


def _from_stdin() -> Iterator[TextInput]:
    try:
        lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
        yield from (TextInput(line.rstrip("\r\n")) for line in lines if line.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"<stdin>: expected UTF-8 text: {error}") from None


def _line(text: TextInput, result: Result) -> str:
    """A result for a person to read."""
    shown = " ".join(" | ".join(each for each in text if each is not None).split())
    return f"{result.summary()}\t{shown}"


@contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    """A file that takes the place of `path` once everything has been written; a pipe or a device is written into."""
    special = path.exists() and not path.is_file() and not path.is_dir()
    try:
        with path.open("w", encoding="utf-8") if special else atomic_write(path) as stream:
            yield stream
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}") from None
