"""Which variant a bundle runs by default: the fastest of those that are faithful enough."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_export.variants import BuiltVariant
from bert_runtime.evaluation import check_metrics
from bert_runtime.tasks import Example, Task

__all__ = ["Decision", "choose_default", "with_metrics"]


class Decision(NamedTuple):
    """The default precision, and why."""

    precision: str
    reason: str
    faithful: tuple[str, ...] = ("fp32",)
    """The precisions that are faithful enough, the default or not."""


def with_metrics(
    task: Task, built: Sequence[BuiltVariant], examples: Sequence[Example], path: Path
) -> list[BuiltVariant]:
    """The variants with their task metrics on the examples of a labelled file, whose inputs were the probe's texts."""
    return [
        each.with_measurements(
            metrics={**check_metrics(task.score(each.outputs, examples), path), "examples": len(examples)}
        )
        for each in built
    ]


def choose_default(task: Task, built: Sequence[BuiltVariant], max_drop: float) -> Decision:
    """INT8 if it is faithful enough and measured faster, FP32 otherwise. FP32 comes first in `built`."""
    fp32, *others = (each.variant for each in built)
    if not others:
        return Decision("fp32", "the only variant")
    int8 = others[0]
    if fp32.metrics:
        before, after = fp32.metrics[task.metric], int8.metrics[task.metric]
        drop = (before - after) * 100
        faithful = drop <= max_drop + 1e-9  # 0.934 - 0.929 is a little more than 0.005
        evidence = (
            f"INT8 {task.metric} {after:.4f} against {before:.4f} in FP32 on {fp32.metrics['examples']} examples, "
            f"a drop of {drop:.2f} points where {max_drop:g} {'are' if max_drop != 1 else 'is'} allowed"
        )
    else:
        key, floor = task.agreement_floor
        faithful = int8.drift[key] >= floor
        evidence = (
            f"no labelled file was given; {key} of INT8 with FP32 is {int8.drift[key]:.4f} on {int8.drift['texts']} "
            f"texts, where {floor} is asked"
        )
    shape = list(fp32.latency_ms)[-1]
    speedup = fp32.latency_ms[shape] / int8.latency_ms[shape]
    evidence += f"; INT8 runs {speedup:.2f}× as fast at {shape}"
    if not faithful:
        return Decision("fp32", evidence)
    return Decision("int8" if speedup > 1 else "fp32", evidence, ("fp32", "int8"))
