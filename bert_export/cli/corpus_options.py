"""The flags of a corpus: raw text, JSONL, or a dataset of the `datasets` library."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.common import PATH

if TYPE_CHECKING:
    from bert_models.corpus import Corpus

__all__ = ["corpus_options", "read_corpus"]


def corpus_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds what says how a corpus is read, and where its tokens are kept; see `read_corpus`."""
    options = (
        click.option("--document-start", help="Regular expression of the lines that begin a document of a text file."),
        click.option("--one-per-line", is_flag=True, help="Every line of a text file is a document."),
        click.option("--split", help="Part of a dataset of the datasets library.  [default: train]"),
        click.option(
            "--cache", type=PATH, help="Where tokenized corpora are kept; by default below ~/.cache/bert-export."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_corpus(
    sources: Sequence[str],
    columns: Mapping[str, str] | None,
    *,
    document_start: str | None,
    one_per_line: bool,
    split: str | None,
) -> "Corpus":
    """The corpus of `--corpus`; of `--columns`, `text` alone is read."""
    from bert_models.corpus import open_corpus

    if strange := sorted(set(columns or {}) - {"text"}):
        raise click.UsageError(f"--columns: a corpus has the field text alone, found {', '.join(strange)}")
    if split is not None and not any(each.startswith("dataset:") or Path(each).is_dir() for each in sources):
        raise click.UsageError("--split goes with a dataset of the datasets library, and --corpus names files")
    return open_corpus(
        sources,
        document_start=document_start, one_per_line=one_per_line,
        field=(columns or {}).get("text", "text"), split=split or "train",
    )  # fmt: skip
