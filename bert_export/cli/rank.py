"""`bert-export rank`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import (
    bundle_argument,
    check_columns_usage,
    columns_option,
    inference_options,
    input_option,
    json_option,
    load_model,
)
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_runtime.errors import DataError, InputError
from bert_runtime.records import iter_rows
from bert_runtime.tasks.relevance_rows import read_pairs

if TYPE_CHECKING:
    from bert_runtime import Model

__all__ = ["rank"]


@click.command(
    cls=ExampleCommand,
    examples=[
        'bert-export rank bundle --query "where is my card" "it is late" "we close"',
        "# The best three lines of a file",
        'bert-export rank bundle --query "where is my card" --input lines.txt --top-k 3',
        "# A query with its documents in each row; one JSON list per row",
        "bert-export rank bundle --input candidates.jsonl --json",
    ],
)
@bundle_argument
@click.argument("documents", nargs=-1, metavar="[DOCUMENT]...")
@input_option("--query", help="What documents are to be relevant to.")
@input_option(
    "--input",
    "input_file",
    type=PATH,
    help="File of documents (text), one per row; without --query, of a query and documents per row.",
)
@columns_option
@inference_options
@json_option
def rank(
    bundle: Path,
    documents: tuple[str, ...],
    query: str | None,
    input_file: Path | None,
    columns: dict[str, str] | None,
    as_json: bool,
    top_k: int | None,
    **options: Any,
) -> None:
    """Sort DOCUMENTs by their relevance to a query, best first.

    Without --json, a line has the score, the document's number from 0, and the document.
    """
    _check_usage(documents, query, input_file)
    check_columns_usage(columns, input=input_file)
    model = load_model(bundle, **options)
    if input_file is None:
        _print(model, query or "", documents, top_k, as_json=as_json)
    elif query is not None:
        _print(model, query, list(_texts(input_file, columns)), top_k, as_json=as_json)
    else:
        for row in iter_rows(input_file, columns):
            if isinstance(row, DataError):
                raise row
            pairs = read_pairs(row)
            try:
                _print(model, pairs[0].text, [pair.text_pair or "" for pair in pairs], top_k, as_json=as_json)
            except InputError as error:
                raise DataError(f"{row.where}: {error}") from None


def _check_usage(documents: Sequence[str], query: str | None, input_file: Path | None) -> None:
    """Raise `click.UsageError` for arguments that do not say what to read, or say it twice."""
    if documents and input_file is not None:
        raise click.UsageError("give either DOCUMENT or --input, not both")
    if not documents and input_file is None:
        raise click.UsageError("expected DOCUMENT, or --input FILE")
    if documents and query is None:
        raise click.UsageError("a DOCUMENT needs a --query; a file may have a query in each row")


def _texts(path: Path, columns: dict[str, str] | None) -> Iterator[str]:
    """Yield the text of each row, also where it is empty, so that numbers are those of the rows."""
    for row in iter_rows(path, columns):
        if isinstance(row, DataError):
            raise row
        yield row.text()


def _print(model: "Model", query: str, documents: Sequence[str], top_k: int | None, *, as_json: bool) -> None:
    """Print the documents of one query."""
    ranked = model.rank(query, documents, top_k=top_k)
    if as_json:
        print_json([document.to_dict() for document in ranked])
        return
    for document in ranked:
        text = " ".join(document.document.split())
        click.echo(f"{document.score:.4f}\t{document.index}\t{text}")
