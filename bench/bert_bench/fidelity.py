"""Whether the engines compute the same thing: without that, their speeds say nothing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bert_bench.errors import BenchError
from bert_bench.workers.engine_pool import EnginePool
from bert_runtime.tasks import Example, Outputs, Task, TextInput, max_abs_difference
from bert_runtime.tokenization import TextTokenizer

__all__ = ["FP32_TOLERANCE", "Fidelity", "check_fidelity"]

FP32_TOLERANCE = 1e-3
"""How far the raw outputs of two FP32 engines may differ; rounding explains about a hundredth of this."""

_REFERENCES = ("pytorch", "fp32", "bert-export-fp32", "onnxruntime-plain")
"""What the outputs are held against: the first of these that runs."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How far one engine's raw outputs are from the reference's."""

    reference: str
    texts: int
    """On how many texts, tokenized and batched like any others."""
    max_abs_error: float
    agreement: Mapping[str, float] = field(default_factory=dict)
    """In the task's own terms, as `Task.agreement` gives it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The task metric on the labelled texts, where there are any."""


def check_fidelity(
    engine_pool: EnginePool,
    task: Task,
    tokenizer: TextTokenizer,
    texts: Sequence[TextInput],
    *,
    examples: Sequence[Example] = (),
    own: Collection[str] | None = None,
) -> dict[str, Fidelity]:
    """Runs `texts` through every engine and compares; empty where no FP32 engine runs.

    `examples` are those of the texts, for the task metric. An engine that computes something else than the reference is
    dropped with that as its reason if it is not one of `own` (`None`: all are), and otherwise a `BenchError`.
    """
    outputs: dict[str, list[Outputs]] = {}
    encoded = list(zip(texts, tokenizer.encode(texts), strict=True))
    for running_engine in tuple(engine_pool.running):
        with engine_pool.drop_on_failure(running_engine.name, "while answering the probe texts"):
            rows = running_engine.worker.call("rows", texts)
            outputs[running_engine.name] = [
                Outputs(*each, found, tokenizer) for each, found in zip(encoded, rows, strict=True)
            ]
    reference = next((name for name in _REFERENCES if name in outputs), None)
    if reference is None:
        return {}
    wrong = {
        each.name: problem
        for each in engine_pool.running
        if (problem := _problem(outputs[each.name], outputs[reference], exact=each.spec.is_fp32))
    }
    ours = [f"{name}: {problem}" for name, problem in wrong.items() if own is None or name in own]
    if ours:
        raise BenchError(
            f"engines that should compute the same do not agree with {reference} on {len(texts)} texts, so their "
            f"speeds cannot be compared: {'; '.join(ours)}. Is the checkpoint the one that the bundle was made from?"
        )
    for name, problem in wrong.items():
        with engine_pool.drop_on_failure(name):
            raise BenchError(f"does not agree with {reference} on {len(texts)} texts: {problem}")
    return {
        name: Fidelity(
            reference=reference,
            texts=len(texts),
            max_abs_error=max_abs_difference(values, outputs[reference]),
            agreement=task.agreement(values, outputs[reference]),
            metrics=task.score(values, examples) if examples else {},
        )
        for name, values in outputs.items()
        if name not in wrong
    }


def _problem(values: Sequence[Outputs], reference: Sequence[Outputs], *, exact: bool) -> str | None:
    """What is wrong with an engine's outputs, `None` if nothing is. Only an FP32 engine must be near the reference."""
    shapes, expected = ([[row.shape for row in each.arrays] for each in part] for part in (values, reference))
    if shapes != expected:
        first = next(i for i, (x, y) in enumerate(zip(shapes, expected, strict=True)) if x != y)
        return f"expected outputs of shape {expected[first]} for text {first}, found {shapes[first]}"
    if not all(np.isfinite(each.flat).all() for each in values):
        return "found outputs that are not finite"
    error = max_abs_difference(values, reference)
    if exact and error > FP32_TOLERANCE:
        return f"expected a difference of at most {FP32_TOLERANCE:g}, found {error:.3g}"
    return None
