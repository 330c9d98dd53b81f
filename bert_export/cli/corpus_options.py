"""Options of a pre-training corpus: plain text, JSONL, or a dataset of the `datasets` library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.options import combine, input_option
from bert_export.cli.param_types import PATH

if TYPE_CHECKING:
    from bert_models.corpus import Corpus

__all__ = ["corpus_options", "read_corpus"]

corpus_options = combine(
    input_option(
        "--document-start", metavar="REGEX", help="Text files: a line that matches this starts a new document."
    ),
    input_option("--one-per-line", is_flag=True, help="Text files: every line is a document."),
    input_option("--split", show_default="train", help="Split of a dataset of the datasets library."),
    input_option("--cache", type=PATH, show_default="below ~/.cache/bert-export", help="Folder for tokenized corpora."),
)
"""Options that say how a corpus is read and where its tokens are cached."""


def read_corpus(sources: Sequence[str], columns: Mapping[str, str] | None, options: Mapping[str, Any]) -> "Corpus":
    """Open the corpus of `--corpus`.

    Args:
        sources: the files or dataset.
        columns: the value of `--columns`; only the field `text` is read.
        options: the values of `corpus_options`; others are ignored.

    Raises:
        click.UsageError: the options contradict each other.
    """
    from bert_models.corpus import open_corpus

    if unknown := sorted(set(columns or {}) - {"text"}):
        raise click.UsageError(f"--columns: a corpus has only the field text, found {', '.join(unknown)}")
    split = options["split"]
    is_dataset = any(source.startswith("dataset:") or Path(source).is_dir() for source in sources)
    if split is not None and not is_dataset:
        raise click.UsageError("--split applies to a dataset of the datasets library, but --corpus names files")
    return open_corpus(
        sources,
        document_start=options["document_start"], one_per_line=options["one_per_line"],
        field=(columns or {}).get("text", "text"), split=split or "train",
    )  # fmt: skip
