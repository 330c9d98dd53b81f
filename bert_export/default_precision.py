"""Choose the default precision of a bundle: the fastest of the CPU variants that are accurate enough."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_export.labelled_data import LabelledData
from bert_export.variants import BuiltVariant
from bert_runtime.bundle.manifest import Variant
from bert_runtime.tasks import Task

__all__ = ["DefaultPrecision", "choose_default_precision", "with_metrics"]


class DefaultPrecision(NamedTuple):
    """The default precision and its reason."""

    precision: str
    reason: str
    faithful: tuple[str, ...] = ("fp32",)
    """The precisions that are accurate enough to be the default, whether or not they are fast enough."""


def with_metrics(task: Task, built: Sequence[BuiltVariant], labelled: LabelledData) -> list[BuiltVariant]:
    """Add the task metrics on a labelled file to the variants.

    Args:
        task: The task.
        built: Variants whose outputs are those on the labelled inputs.
        labelled: The file, or the retrieval data set.
    """
    return [
        variant.with_measurements(metrics={**labelled.score(task, variant.outputs), "examples": labelled.num_examples})
        for variant in built
    ]


def choose_default_precision(task: Task, built: Sequence[BuiltVariant], max_drop: float) -> DefaultPrecision:
    """Choose INT8 if it is accurate enough and measured faster, FP32 otherwise.

    INT8 is accurate enough if its outputs agree with FP32's as `Task.agreement_floor` demands and, with a labelled
    file, its task metric drops by at most `max_drop`: a metric can stand still while many answers change.

    Args:
        task: The task.
        built: The CPU variants, with latencies; FP32 first.
        max_drop: Points (hundredths) of the task metric that INT8 may lose.
    """
    fp32, *others = (variant.variant for variant in built)
    if not others:
        return DefaultPrecision("fp32", "the only variant")
    int8 = others[0]
    accurate, evidence = _compare_drift(task, int8)
    if fp32.metrics:
        within_drop, metrics_evidence = _compare_metrics(task, fp32, int8, max_drop)
        accurate, evidence = accurate and within_drop, f"{metrics_evidence}; {evidence}"
    else:
        evidence = f"no labelled file was given; {evidence}"
    shape = list(fp32.latency_ms)[-1]
    speedup = fp32.latency_ms[shape] / int8.latency_ms[shape]
    reason = f"{evidence}; INT8 runs {speedup:.2f}× as fast at {shape}"
    if not accurate:
        return DefaultPrecision("fp32", reason)
    return DefaultPrecision("int8" if speedup > 1 else "fp32", reason, ("fp32", "int8"))


def _compare_metrics(task: Task, fp32: Variant, int8: Variant, max_drop: float) -> tuple[bool, str]:
    """Return whether INT8's task metric drops by at most `max_drop` points, and the evidence in words."""
    metric = task.deciding_metric(fp32.metrics)
    before, after = fp32.metrics[metric], int8.metrics[metric]
    drop = (before - after) * 100
    accurate = drop <= max_drop + 1e-9  # 0.934 - 0.929 is a little more than 0.005
    return accurate, (
        f"INT8 {metric} {after:.4f} against {before:.4f} in FP32 on {fp32.metrics['examples']} examples, "
        f"a drop of {drop:.2f} points where {max_drop:g} {'are' if max_drop != 1 else 'is'} allowed"
    )


def _compare_drift(task: Task, int8: Variant) -> tuple[bool, str]:
    """Return whether INT8's outputs agree with FP32's as well as the task demands, and the evidence in words."""
    key, floor = task.agreement_floor
    return int8.drift[key] >= floor, (
        f"{key} of INT8 with FP32 is {int8.drift[key]:.4f} on {int8.drift['texts']} texts, where {floor} is asked"
    )
