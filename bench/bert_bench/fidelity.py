"""Fidelity: how far the engines' raw outputs are from a reference engine's, in the same run that times them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bert_bench.errors import BenchError
from bert_bench.workers.engine_pool import EnginePool, RunningEngine
from bert_runtime.tasks import Example, Outputs, Task, TextInput, max_abs_difference
from bert_runtime.tokenization import TextTokenizer

__all__ = ["FP32_TOLERANCE", "REFERENCE_ENGINES", "Fidelity", "check_fidelity"]

FP32_TOLERANCE = 1e-3
"""Maximum absolute difference of raw outputs between FP32 engines; rounding explains about a hundredth of it."""

REFERENCE_ENGINES = ("pytorch", "onnxruntime-plain", "bert-export-fp32", "fp32")
"""Candidates for the reference: the first that runs is compared with."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How far one engine's raw outputs are from the reference's. Field names are JSON keys of reports."""

    reference: str
    """Name of the reference engine."""
    texts: int
    """Number of texts compared."""
    max_abs_error: float
    """Maximum absolute difference over all outputs of all texts."""
    agreement: Mapping[str, float] = field(default_factory=dict)
    """Task-specific agreement, see `Task.agreement`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The task metric on the labelled texts, if there are any."""


def check_fidelity(
    engine_pool: EnginePool,
    task: Task,
    tokenizer: TextTokenizer,
    texts: Sequence[TextInput],
    *,
    examples: Sequence[Example] = (),
    must_agree: Collection[str] | None = None,
    other_model: Collection[str] = (),
) -> dict[str, Fidelity]:
    """Run the texts through every engine and compare the raw outputs with the reference's.

    An engine whose outputs have another shape, are not finite, or (in FP32) differ by more than `FP32_TOLERANCE` is
    dropped from the pool with the reason, or raises if it must agree.

    Args:
        engine_pool: the running engines.
        task: the bundle's task, for agreement and metric.
        tokenizer: the bundle's tokenizer.
        texts: texts to predict.
        examples: labelled examples of the same texts, for the task metric.
        must_agree: names of engines whose disagreement is an error; `None` for all.
        other_model: names of engines that run a compressed model: none is the reference, and all may differ from it.

    Returns:
        Fidelity by engine; empty if no candidate for the reference runs.

    Raises:
        BenchError: an engine that must agree does not.
    """
    outputs = _collect_outputs(engine_pool, tokenizer, texts)
    reference = next((name for name in REFERENCE_ENGINES if name in outputs and name not in other_model), None)
    if reference is None:
        return {}

    def is_near(engine: RunningEngine) -> bool:
        return engine.spec.is_fp32 and engine.name not in other_model

    problems = {
        engine.name: problem
        for engine in engine_pool.running
        if (problem := _problem(outputs[engine.name], outputs[reference], is_near=is_near(engine)))
    }
    errors = [f"{name}: {problem}" for name, problem in problems.items() if must_agree is None or name in must_agree]
    if errors:
        raise BenchError(
            f"outputs differ from those of {reference} on {len(texts)} texts, so speeds cannot be compared: "
            f"{'; '.join(errors)}. Is the checkpoint the one that the bundle was made from?"
        )
    for name, problem in problems.items():
        with engine_pool.drop_on_failure(name):
            raise BenchError(f"outputs differ from those of {reference} on {len(texts)} texts: {problem}")
    return {
        name: Fidelity(
            reference=reference,
            texts=len(texts),
            max_abs_error=max_abs_difference(engine_outputs, outputs[reference]),
            agreement=task.agreement(engine_outputs, outputs[reference]),
            metrics=task.score(engine_outputs, examples) if examples else {},
        )
        for name, engine_outputs in outputs.items()
        if name not in problems
    }


def _collect_outputs(
    engine_pool: EnginePool, tokenizer: TextTokenizer, texts: Sequence[TextInput]
) -> dict[str, list[Outputs]]:
    """Return the outputs of each text by engine; engines that fail are dropped."""
    outputs: dict[str, list[Outputs]] = {}
    encoded = list(zip(texts, tokenizer.encode(texts), strict=True))
    for engine in tuple(engine_pool.running):
        with engine_pool.drop_on_failure(engine.name, "while predicting the probe texts"):
            arrays = engine.worker.call("raw_outputs", texts)
            outputs[engine.name] = [
                Outputs(text, windows, window_arrays, tokenizer)
                for (text, windows), window_arrays in zip(encoded, arrays, strict=True)
            ]
    return outputs


def _problem(outputs: Sequence[Outputs], reference: Sequence[Outputs], *, is_near: bool) -> str | None:
    """Return what is wrong with an engine's outputs, `None` if nothing; `is_near`: they must be near the reference."""
    shapes, expected = ([[array.shape for array in item.arrays] for item in part] for part in (outputs, reference))
    if shapes != expected:
        first = next(i for i, (x, y) in enumerate(zip(shapes, expected, strict=True)) if x != y)
        return f"expected outputs of shape {expected[first]} for text {first}, found {shapes[first]}"
    if not all(np.isfinite(item.flat).all() for item in outputs):
        return "found outputs that are not finite"
    error = max_abs_difference(outputs, reference)
    if is_near and error > FP32_TOLERANCE:
        return f"expected a difference of at most {FP32_TOLERANCE:g}, found {error:.3g}"
    return None
