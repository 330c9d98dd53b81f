"""Measure the CPU variants of a bundle on a labelled file, for its report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bert_export.progress import throttled_steps
from bert_export.report.analysis import (
    Calibration,
    Confusion,
    Difference,
    Flip,
    Scatter,
    calibration,
    confusion,
    differences,
    flips,
    scatter,
)
from bert_export.report.judgements import Judgement, judge
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.evaluation import build_examples, check_metrics, run_examples
from bert_runtime.model import Model
from bert_runtime.records import read_records

__all__ = [
    "Comparison",
    "Evaluation",
    "VariantEvaluation",
    "compare_judgements",
    "evaluate_variants",
    "summarize_judgement",
]

_MAX_FLIPS = 50
"""Changed decisions that a report lists for a variant."""

_MAX_DIFFERENCES = 20
"""Inputs with differing numbers that a report lists for a variant."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant's decisions compared with the reference's."""

    units: int
    """Number of units that both decide."""
    changed: int
    """Number of units for which they decide differently."""
    repaired: int
    """Number of changed units that the variant has right, and the reference wrong."""
    broken: int
    """Number of changed units that the reference has right, and the variant wrong."""
    flips: tuple[Flip, ...]
    """The changed units that the reference was surest of."""
    differences: tuple[Difference, ...]
    """For tasks that predict numbers, the inputs whose numbers differ most."""
    mean_abs_difference: float | None
    """Mean distance of these tasks' numbers from the reference's."""


@dataclass(frozen=True, kw_only=True)
class VariantEvaluation:
    """The evaluation of one variant on a labelled file."""

    variant: str
    metrics: Mapping[str, float]
    confusion: Confusion | None
    calibration: Calibration | None
    scatter: Scatter | None
    compared: Comparison | None
    """Comparison with the reference; `None` for the reference itself."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of all variants on a labelled file."""

    file: str
    sha256: str
    examples: int
    metric: str
    """Key of the metric that accepts INT8."""
    unit: str
    """The noun for the units that are decided, in the plural."""
    reference: str
    """The variant that the others are compared with."""
    variants: tuple[VariantEvaluation, ...]


_UNITS = {
    "token-classification": "words",
    "replaced-token-detection": "words",
    "question-answering": "questions",
    "fill-mask": "masks",
    "next-sentence-prediction": "pairs",
    "rerank": "pairs",
    "sentence-embedding": "pairs",
    "sparse-embedding": "queries",
}
"""The noun for a task's units, in the plural, where they are not texts."""


def evaluate_variants(
    models: Mapping[str, Model],
    file: Path,
    columns: Mapping[str, str] | None,
    progress: Callable[[str], None],
) -> Evaluation:
    """Run the variants on a labelled file, and compare each with the first.

    Args:
        models: the variants' models by title, the reference first.
        file: the labelled file.
        columns: column names by field, see `read_records`.
        progress: called with a line at the start of each stage, and within long ones.

    Raises:
        DataError: the file does not fit the task, or leaves a metric undefined.
    """
    reference, first = next(iter(models.items()))
    records = read_records(file, columns)
    examples = build_examples(first.task, first.tokenizer, records)
    evaluated: list[VariantEvaluation] = []
    judged: dict[str, Judgement] = {}
    for title, model in models.items():
        stage = f"evaluating {title} on {len(examples)} examples of {file.name}"
        progress(stage)
        outputs = run_examples(model, examples, _counter(progress, stage, len(examples)))
        metrics = check_metrics(model.task.score(outputs, examples), file)
        judged[title] = judge(model.task, outputs, examples)
        compared = None if title == reference else compare_judgements(judged[title], judged[reference])
        evaluated.append(summarize_judgement(title, metrics, judged[title], compared))
    return Evaluation(
        file=file.name,
        sha256=sha256_file(file),
        examples=len(examples),
        metric=first.task.metric_for(examples),
        unit=_UNITS.get(first.task.name, "texts"),
        reference=reference,
        variants=tuple(evaluated),
    )


def _counter(progress: Callable[[str], None], stage: str, total: int) -> Callable[[int], None]:
    """Return a callback that counts examples, and reports their number from time to time."""
    on_step, done = throttled_steps(progress, stage), 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        on_step(done, total)

    return count


def summarize_judgement(
    title: str, metrics: Mapping[str, float], judgement: Judgement, compared: Comparison | None
) -> VariantEvaluation:
    """Return what a report says of a variant's decisions and numbers."""
    return VariantEvaluation(
        variant=title,
        metrics=metrics,
        confusion=confusion(judgement.table),
        calibration=calibration(judgement),
        scatter=scatter(judgement.numbers),
        compared=compared,
    )


def compare_judgements(judgement: Judgement, reference: Judgement) -> Comparison:
    """Compare a variant with the reference."""
    found = flips(judgement.decisions, reference.decisions)
    numbers = []
    if judgement.numbers is not None and reference.numbers is not None:
        numbers = differences(judgement.numbers, reference.numbers)
    return Comparison(
        units=len(judgement.decisions) or len(numbers),
        changed=len(found),
        repaired=sum(flip.variant.correct and not flip.reference.correct for flip in found),
        broken=sum(flip.reference.correct and not flip.variant.correct for flip in found),
        flips=tuple(found[:_MAX_FLIPS]),
        differences=tuple(numbers[:_MAX_DIFFERENCES]),
        mean_abs_difference=fmean(abs(item.variant - item.reference) for item in numbers) if numbers else None,
    )
