"""`bert-export predict`."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.array_output import check_array_task, is_array_file, write_arrays
from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import (
    bundle_argument,
    check_columns_usage,
    columns_option,
    inference_options,
    input_option,
    json_option,
    load_model,
    output_option,
)
from bert_export.cli.param_types import PATH
from bert_export.cli.predict_inputs import Item, argument_items, file_items, grouped, is_live, stdin_items
from bert_export.cli.predict_output import Answer, json_line, open_output, text_line
from bert_export.cli.progress import count_progress
from bert_export.cli.table_output import check_format, csv_header, csv_line, is_csv_file, result_columns
from bert_export.cli.zero_shot_options import check_zero_shot_usage, with_candidate_labels, zero_shot_options
from bert_export.output_files import check_writable
from bert_runtime.errors import DataError
from bert_runtime.inputs import InputFailure
from bert_runtime.tasks import Result, Task

if TYPE_CHECKING:
    from bert_runtime import Model, ZeroShotClassifier

__all__ = ["predict"]

_MAX_WAITING_CHARACTERS = 1 << 20
"""Results that are printed at once. A judgement: token vectors have megabytes for each text."""


@click.command(
    cls=ExampleCommand,
    examples=[
        'bert-export predict bundle "I lost my card"',
        "bert-export predict bundle --input messages.csv --output answers.jsonl",
        "# As a filter: one JSON value per line, as soon as it is known",
        "tail -f messages.txt | bert-export predict bundle --json",
        "# Labels of your own, with a model of natural language inference",
        'bert-export predict nli-bundle "I lost it" --candidate-labels bank,travel',
    ],
)
@bundle_argument
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@input_option("--pair", help="Second text of a pair, combined with each TEXT.")
@input_option("--question", help="Question to answer from each TEXT.")
@input_option("--input", "input_file", type=PATH, help="File of inputs, as for evaluate, or of texts (.txt).")
@output_option(
    "--output",
    "output_file",
    type=PATH,
    help="File for the results instead of stdout: JSON lines, a table with a row for each input (.csv), or NumPy "
    "arrays of token vectors and embeddings (.npz).",
)
@output_option(
    "--on-error",
    type=click.Choice(["raise", "skip", "return"]),
    default="raise",
    show_default=True,
    help="For an input that cannot be processed: raise stops there, skip goes on without a result and says so on "
    'stderr, return goes on with {"error": …} in the place of its result.',
)
@columns_option
@inference_options
@zero_shot_options
@json_option
def predict(
    bundle: Path,
    texts: tuple[str, ...],
    pair: str | None,
    question: str | None,
    input_file: Path | None,
    output_file: Path | None,
    on_error: str,
    columns: dict[str, str] | None,
    candidate_labels: tuple[str, ...] | None,
    hypothesis_template: str | None,
    multi_label: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict for each TEXT, row of a file, or line of stdin.

    The results are in the order of the inputs. A blank line of stdin or of a text file, and an empty text of a table,
    is an input like any other, so that lines correspond; a blank line of JSONL is none. From a pipe, results are
    written as soon as no more input is waiting.

    Options of tasks, such as --top-k, default to the bundle's settings.
    """
    _check_usage(texts, pair, question, input_file)
    check_columns_usage(columns, input=input_file)
    if input_file is not None and output_file is not None and _is_replaced(input_file, output_file):
        raise click.UsageError(f"--output {output_file} is the --input file, which would be lost; name another file")
    if is_array_file(output_file) and on_error == "return":
        raise click.UsageError("--on-error return has no place in arrays; choose skip, or write JSON lines")
    if output_file is not None:
        check_format(output_file)
    if output_file is not None and is_array_file(output_file):
        check_writable(output_file)
    zero_shot = candidate_labels, hypothesis_template, multi_label
    has_pair = pair is not None or question is not None
    check_zero_shot_usage(*zero_shot, has_pair=has_pair, top_k=options.get("top_k"))
    loaded = load_model(bundle, **options)
    if output_file is not None and is_array_file(output_file):
        check_array_task(output_file, loaded.task)
    header, line_of = _line_format(output_file, loaded.task, on_error, zero_shot=candidate_labels is not None)
    model = with_candidate_labels(loaded, *zero_shot)
    live = not texts and is_live(input_file)
    groups = grouped(_items(loaded.task, texts, pair, question, input_file, columns), live=live)
    if output_file is None:
        for group in groups:
            _print(_answers(model, group, on_error), as_json=as_json)
        return
    answers = (answer for group in groups for _, answer in _answers(model, group, on_error))
    if is_array_file(output_file):
        written = write_arrays(output_file, (answer for answer in answers if isinstance(answer, Result)))
        click.echo(f"wrote {written} results to {output_file}", err=True)
        return
    with (
        open_output(output_file) as stream,
        count_progress("predicting", len(texts) or None) as advance,
    ):
        stream.write(header)
        written = 0
        for answer in answers:
            stream.write(line_of(answer) + "\n")
            written += 1
            advance(1)
    click.echo(f"wrote {written} results to {output_file}", err=True)


def _check_usage(texts: tuple[str, ...], pair: str | None, question: str | None, input_file: Path | None) -> None:
    """Raise `click.UsageError` for arguments that do not say what to read, or say it twice."""
    if texts and input_file is not None:
        raise click.UsageError("give either TEXT or --input, not both")
    if pair is not None and question is not None:
        raise click.UsageError("give either --pair or --question, not both")
    if question is not None and not texts:
        raise click.UsageError("--question needs a TEXT to search; a file has the columns question and context")
    if pair is not None and not texts:
        raise click.UsageError("--pair needs a TEXT; a file has pairs in its columns text and text_pair")
    if not texts and input_file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("expected a TEXT, --input FILE, or texts on stdin")


def _is_replaced(input_file: Path, output_file: Path) -> bool:
    """Return whether the results would replace the inputs, also where the two paths differ."""
    return output_file.is_file() and input_file.is_file() and output_file.samefile(input_file)


def _line_format(
    path: Path | None, task: Task, on_error: str, *, zero_shot: bool
) -> tuple[str, Callable[[Answer], str]]:
    """Return the beginning of the output file, and what makes a line of an answer.

    Raises:
        DataError: the results do not fit into the rows of a CSV file.
    """
    if path is None or not is_csv_file(path):
        return "", json_line
    columns = result_columns(path, task, zero_shot=zero_shot)
    with_errors = on_error == "return"
    line_of = partial(csv_line, columns=columns, with_errors=with_errors)
    return csv_header(columns, with_errors=with_errors) + "\n", line_of


def _items(
    task: Task,
    texts: tuple[str, ...],
    pair: str | None,
    question: str | None,
    input_file: Path | None,
    columns: dict[str, str] | None,
) -> Iterator[Item]:
    """Iterate over the inputs: arguments, rows of a file, or lines of stdin."""
    if texts:
        return argument_items(texts, pair, question)
    return stdin_items() if input_file is None else file_items(input_file, columns, task)


def _answers(model: "Model | ZeroShotClassifier", group: list[Item], on_error: str) -> Iterator[tuple[Item, Answer]]:
    """Yield the results of a group of inputs, and do with those that cannot be processed what `on_error` says."""
    values = [item.value for item in group if not isinstance(item.value, DataError)]
    results = model.stream(values, on_error="return")  # one by one: those of all may not fit in memory
    for index, item in enumerate(group):
        if isinstance(item.value, DataError):
            problem = str(item.value)
        elif isinstance(result := next(results), InputFailure):
            problem = f"{item.location}: {result.error}"
        else:
            yield item, result
            continue
        if on_error == "raise":
            raise DataError(problem)
        if on_error == "skip":
            click.echo(f"skipped {problem}", err=True)
        else:
            yield item, InputFailure(index, problem)


def _print(answers: Iterator[tuple[Item, Answer]], *, as_json: bool) -> None:
    """Print the results of a group at once, of long ones a part at a time, also those before an error."""
    lines: list[str] = []
    characters = 0
    try:
        for item, answer in answers:
            lines.append(json_line(answer) if as_json else text_line(item.value, answer))
            characters += len(lines[-1])
            if characters > _MAX_WAITING_CHARACTERS:
                printed, lines, characters = lines, [], 0
                click.echo("\n".join(printed))
    finally:
        if lines:
            click.echo("\n".join(lines))
