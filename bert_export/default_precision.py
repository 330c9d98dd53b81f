"""Choose the default precision of a bundle: the fastest of the CPU variants that are accurate enough."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from bert_export.labelled_data import LabelledData
from bert_export.paired_bootstrap import is_within
from bert_export.variants import BuiltVariant
from bert_runtime.bundle.manifest import Variant
from bert_runtime.tasks import Task
from bert_runtime.variant_choice import gains_speed

__all__ = ["DefaultPrecision", "choose_default_precision", "with_metrics"]


_Built = TypeVar("_Built", bound=BuiltVariant)


class DefaultPrecision(NamedTuple):
    """The default precision and its reason."""

    precision: str
    reason: str
    faithful: tuple[str, ...] = ("fp32",)
    """The precisions that are accurate enough to be the default, whether or not they are fast enough."""


def with_metrics(task: Task, built: Sequence[_Built], labelled: LabelledData) -> list[_Built]:
    """Add the task metrics on a labelled file to the variants.

    Args:
        task: the task.
        built: variants whose outputs are those on the labelled inputs.
        labelled: the file, or the retrieval data set.
    """
    return [
        variant.with_measurements(metrics={**labelled.score(task, variant.outputs), "examples": labelled.num_examples})
        for variant in built
    ]


def choose_default_precision(task: Task, built: Sequence[BuiltVariant], max_drop: float) -> DefaultPrecision:
    """Choose the fastest of FP32 and the variants that are accurate enough.

    A variant is accurate enough if its outputs agree with FP32's as `Task.agreement_floor` demands and, with a labelled
    file, its task metric drops by at most `max_drop`: a metric can stand still while many answers change.

    Args:
        task: the task.
        built: the CPU variants, with latencies; FP32 first.
        max_drop: points (hundredths) of the task metric that a variant may lose.
    """
    fp32, *others = (variant.variant for variant in built)
    if not others:
        return DefaultPrecision("fp32", "the only variant")
    judged = {other.precision: _judge(task, fp32, other, max_drop) for other in others}
    reason = "; ".join(verdict.evidence for verdict in judged.values())
    if not fp32.metrics:
        reason = f"no labelled file was given; {reason}"
    faithful = {precision: verdict.speedup for precision, verdict in judged.items() if verdict.accurate}
    faster = {precision: speedup for precision, speedup in faithful.items() if speedup > 1}
    return DefaultPrecision(max(faster, key=lambda name: faster[name], default="fp32"), reason, ("fp32", *faithful))


class _Verdict(NamedTuple):
    """A variant compared with FP32."""

    accurate: bool
    speedup: float
    """Compared with FP32, at the longest shape; 1 where the variant runs as FP32 on this processor."""
    evidence: str


def _judge(task: Task, fp32: Variant, variant: Variant, max_drop: float) -> _Verdict:
    """Compare a variant's drift, task metric and speed with FP32's."""
    title = _title(variant)
    accurate, evidence = _compare_drift(task, variant)
    if fp32.metrics:
        within_drop, metrics_evidence = _compare_metrics(task, fp32, variant, max_drop)
        accurate, evidence = accurate and within_drop, f"{metrics_evidence}; {evidence}"
    shape = list(fp32.latency_ms)[-1]
    if variant.evaluated_on:  # no evidence for a processor that rounds activations, too
        return _Verdict(False, 1, f"{evidence}; {title} was evaluated on {variant.evaluated_on}")
    if not gains_speed(variant):
        return _Verdict(accurate, 1, f"{evidence}; {title} runs as FP32 on this processor")
    speedup = fp32.latency_ms[shape] / variant.latency_ms[shape]
    return _Verdict(accurate, speedup, f"{evidence}; {title} runs {speedup:.2f}× as fast at {shape}")


def _title(variant: Variant) -> str:
    """Return the precision as sentences name it."""
    return "INT8" if variant.precision == "int8" else variant.precision


def _compare_metrics(task: Task, fp32: Variant, variant: Variant, max_drop: float) -> tuple[bool, str]:
    """Return whether a variant's task metric drops by at most `max_drop` points, and the evidence in words."""
    metric = task.deciding_metric(fp32.metrics)
    before, after = fp32.metrics[metric], variant.metrics[metric]
    drop = (before - after) * 100
    accurate = is_within(drop, max_drop)
    return accurate, (
        f"{_title(variant)} {metric} {after:.4f} against {before:.4f} in FP32 on {fp32.metrics['examples']} examples, "
        f"a drop of {drop:.2f} points where {max_drop:g} {'are' if max_drop != 1 else 'is'} allowed"
    )


def _compare_drift(task: Task, variant: Variant) -> tuple[bool, str]:
    """Return whether a variant's outputs agree with FP32's as well as the task demands, and the evidence in words."""
    key, floor = task.agreement_floor
    drift = variant.drift
    return drift[key] >= floor, (
        f"{key} of {_title(variant)} with FP32 is {drift[key]:.4f} on {drift['texts']} texts, where {floor} is asked"
    )
