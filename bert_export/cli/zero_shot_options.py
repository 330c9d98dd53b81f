"""Options of `bert-export predict` and `evaluate` for zero-shot classification."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bert_export.cli.help import option_group
from bert_export.cli.options import combine, drop_unset
from bert_export.cli.param_types import NamesType
from bert_runtime.zero_shot.hypotheses import DEFAULT_TEMPLATE

if TYPE_CHECKING:
    from bert_runtime import Model, ZeroShotClassifier

__all__ = ["check_zero_shot_usage", "with_candidate_labels", "zero_shot_options"]

_option = option_group("Zero-shot classification")

zero_shot_options = combine(
    _option(
        "--candidate-labels",
        type=NamesType(),
        help="Labels to choose from, for a text-classification bundle of natural language inference.",
    ),
    _option(
        "--hypothesis-template",
        metavar="TEXT",
        show_default=DEFAULT_TEMPLATE,
        help="Sentence that is made of a label, with {} in its place.",
    ),
    _option(
        "--multi-label",
        is_flag=True,
        default=None,
        help="Judge each label alone, so that several may fit; otherwise the scores sum to 1.",
    ),
)
"""The command gets them as keyword arguments, `None` where the user did not pass one."""


def check_zero_shot_usage(
    labels: Sequence[str] | None,
    template: str | None,
    multi_label: bool | None,
    *,
    has_pair: bool,
    top_k: int | None,
) -> None:
    """Raise `click.UsageError` for options that need `--candidate-labels`, and for those that exclude it."""
    if labels is None and (template is not None or multi_label):
        raise click.UsageError("--hypothesis-template and --multi-label need --candidate-labels")
    if labels is not None and has_pair:
        raise click.UsageError("give either --candidate-labels or --pair or --question")
    if labels is not None and top_k is not None:
        raise click.UsageError("give either --candidate-labels, all of which have a score, or --top-k")


def with_candidate_labels(
    model: "Model", labels: Sequence[str] | None, template: str | None, multi_label: bool | None
) -> "Model | ZeroShotClassifier":
    """Return a classifier of a model by labels; the model itself where there are none."""
    from bert_runtime import ZeroShotClassifier

    if labels is None:
        return model
    options = drop_unset({"hypothesis_template": template, "multi_label": multi_label})
    return ZeroShotClassifier(model, labels, **options)
