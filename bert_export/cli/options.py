"""Options that several commands share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.help import Decorator, option_group
from bert_export.cli.param_types import PATH, ColumnsType, NamesType, NumbersType
from bert_runtime.bundle.manifest import PRECISIONS
from bert_runtime.tasks.feature_extraction import WORD_POOLINGS
from bert_runtime.tasks.reranking import LONG_DOCUMENTS, RELEVANCE_ACTIVATIONS
from bert_runtime.tasks.token_classification import AGGREGATIONS
from bert_runtime.vector_quantization import EMBEDDING_PRECISIONS

if TYPE_CHECKING:
    from bert_runtime import Model

__all__ = [
    "bundle_argument",
    "check_columns_usage",
    "columns_option",
    "combine",
    "decoding_option",
    "drop_unset",
    "engine_option",
    "force_option",
    "inference_options",
    "input_option",
    "json_option",
    "load_model",
    "output_option",
    "task_options",
    "threads_option",
    "vector_options",
]


def combine(*decorators: Decorator) -> Decorator:
    """Combine decorators into one that adds their options in the same order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def drop_unset(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the options that the user did not pass, whose value is `None`."""
    return {name: value for name, value in options.items() if value is not None}


input_option = option_group("Input")
engine_option = option_group("Engine")
decoding_option = option_group("Decoding")
output_option = option_group("Output")

bundle_argument = click.argument("bundle", type=PATH)

json_option = output_option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

force_option = output_option("--force", is_flag=True, help="Overwrite the output of an earlier run.")

columns_option = input_option(
    "--columns",
    type=ColumnsType(),
    help="Columns of the file for the fields read, e.g. text=sentence,label=category; column numbers from 0 if the "
    "file has no header.",
)


def check_columns_usage(columns: Mapping[str, str] | None, **files: Path | None) -> None:
    """Raise `click.UsageError` for `--columns` without a file that has them.

    Args:
        columns: the value of `--columns`.
        **files: the files by the names of their options.
    """
    if columns is not None and all(file is None for file in files.values()):
        options = " or ".join(f"--{name}" for name in files)
        raise click.UsageError(f"--columns names the columns of a file: give that with {options}")


threads_option = engine_option(
    "--threads",
    type=click.IntRange(min=1),
    show_default="as measured by tune, else one per available core",
    help="Threads per operator.",
)

task_options = combine(
    decoding_option(
        "--aggregation",
        type=click.Choice(AGGREGATIONS),
        help="token-classification: how labelled tokens are merged into entities.",
    ),
    decoding_option("--bio/--no-bio", default=None, help="token-classification: predict valid BIO sequences only."),
    decoding_option(
        "--top-k",
        type=int,
        help="Number of labels (single-label text-classification), answers (question-answering), tokens for each mask "
        "(fill-mask), weights (sparse-embedding; by default all) or documents (rank).",
    ),
    decoding_option(
        "--min-weight", type=float, help="sparse-embedding: leave out tokens whose weight is not above this."
    ),
    decoding_option(
        "--candidates",
        type=NamesType(),
        help="fill-mask: words to choose from, instead of the whole vocabulary.",
    ),
    decoding_option(
        "--thresholds",
        type=NumbersType(),
        help="text-classification, multi-label: minimum probability of each label, in their order.",
    ),
    decoding_option(
        "--threshold",
        type=float,
        help="Minimum probability of a predicted label (multi-label text-classification) or of a replaced token "
        "(replaced-token-detection).",
    ),
    decoding_option(
        "--activation",
        type=click.Choice(RELEVANCE_ACTIVATIONS),
        help="rerank: whether scores are probabilities (sigmoid) or logits (identity).",
    ),
    decoding_option(
        "--long-documents",
        type=click.Choice(LONG_DOCUMENTS),
        help="rerank: read documents that do not fit in windows, of which the best one counts, or truncate them.",
    ),
    decoding_option(
        "--max-answer-tokens", type=int, help="question-answering: maximum length of an answer, in tokens."
    ),
    decoding_option(
        "--n-best",
        type=int,
        help="question-answering: number of candidate answers that probabilities are computed over.",
    ),
    decoding_option(
        "--no-answer/--always-answer",
        default=None,
        help='question-answering: whether "no answer" is a possible answer.',
    ),
    decoding_option(
        "--no-answer-threshold",
        type=float,
        help="question-answering: give no answer if its score exceeds the best answer's by more than this, in logits.",
    ),
    decoding_option(
        "--word-pooling",
        type=click.Choice(WORD_POOLINGS),
        help="feature-extraction: a vector for each token (none), or for each word: its first token's, or their mean.",
    ),
    decoding_option(
        "--special-tokens/--no-special-tokens",
        default=None,
        help="feature-extraction: whether special tokens have vectors, too; among words they have not.",
    ),
    decoding_option("--prompt-name", help="sentence-embedding: the bundle's prompt to put in front of each text."),
    decoding_option("--prompt", help="sentence-embedding: text to put in front of each text instead."),
)
"""Options of all tasks. The command gets them as keyword arguments, `None` where the user did not pass one."""

vector_options = combine(
    decoding_option(
        "--dimensions", type=int, help="sentence-embedding: number of first dimensions to keep (Matryoshka models)."
    ),
    decoding_option(
        "--embedding-precision",
        type=click.Choice(EMBEDDING_PRECISIONS),
        help="sentence-embedding: dtype of the vectors; binary ones hold eight dimensions in a byte.",
    ),
)
"""Options of embeddings that are computed; `export` has its own `--dimensions`. Pass them on as those of tasks."""

device_option = engine_option(
    "--device",
    default="auto",
    show_default=True,
    metavar="[auto|cpu|cuda[:N]|tensorrt[:N]]",
    help="Device to run on. auto: CUDA if the bundle has a variant for it and it is available, else the CPU.",
)

inference_options = combine(
    engine_option(
        "--precision",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", *PRECISIONS]),
        help="Variant to run. auto: the one that tune measured to be fastest, else the bundle's default; FP16 on CUDA.",
    ),
    device_option,
    threads_option,
    task_options,
    vector_options,
)
"""Options that say how a bundle's model is run. Pass the keyword arguments on to `load_model`."""


def load_model(bundle: Path, *, precision: str, device: str, threads: int | None, **options: Any) -> "Model":
    """Load a bundle with the values of `inference_options`."""
    from bert_runtime import load

    return load(bundle, precision=precision, device=device, threads=threads).with_options(**drop_unset(options))
