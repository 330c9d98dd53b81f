"""Check GPU engines against PyTorch in FP32, on token ids and on real texts, and compare their speed with the goals."""

from collections.abc import Mapping, Sequence
from functools import partial

import click
import numpy as np

from bert_bench.experiments.cuda_engines import EAGER, Engine
from bert_bench.timing_statistics import Timing, paired_speedup
from bert_export.cuda.parity import FP16_TOLERANCE
from bert_export.parity import reference_outputs
from bert_models import TaskModel
from bert_runtime.model import Model
from bert_runtime.runner import FunctionRunner
from bert_runtime.tasks import TextInput, max_abs_difference
from bert_runtime.tokenization import Batch

__all__ = ["check_outputs", "fidelity", "goals"]


def check_outputs(engines: Mapping[str, Engine], model: TaskModel, batches: list[Batch]) -> dict[str, float]:
    """Compare every engine's outputs with PyTorch's in FP32, on the batches that it accepts.

    Args:
        engines: engines by name.
        model: the reference, in FP32 on the CPU.
        batches: batches to run; every engine accepts at least one.

    Returns:
        Per engine, the largest absolute difference divided by the largest absolute output.

    Raises:
        click.ClickException: A difference exceeds FP16's tolerance.

    """
    expected = [reference_outputs(model, batch) for batch in batches]
    scale = max(0.1, *(float(np.abs(outputs).max(initial=0)) for outputs in expected))
    errors = {
        name: max(
            float(np.abs(engine.run(batch) - outputs).max(initial=0)) / scale
            for batch, outputs in zip(batches, expected, strict=True)
            if engine.accepts(batch)
        )
        for name, engine in engines.items()
    }
    if wrong := [f"{name} ({error:.2g})" for name, error in errors.items() if not error <= FP16_TOLERANCE]:
        raise click.ClickException(
            f"outputs differ from PyTorch in FP32 by more than {FP16_TOLERANCE} of the largest: {', '.join(wrong)}"
        )
    return errors


def fidelity(model: Model, reference: TaskModel, texts: Sequence[TextInput]) -> dict[str, float]:
    """Compare a model's outputs on texts with PyTorch's in FP32 on the CPU.

    Returns:
        The task's agreement, such as `label_agreement`, and the largest difference, `max_abs_difference`.

    """
    reference_model = Model(
        reference.runtime_task(), model.tokenizer, FunctionRunner(partial(reference_outputs, reference))
    )
    outputs, expected = model.outputs(texts), reference_model.outputs(texts)
    return {**model.task.agreement(outputs, expected), "max_abs_difference": max_abs_difference(outputs, expected)}


def goals(timings: Mapping[str, Mapping[str, Timing]], measured: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Return the goals for BERT-base on an H200: the figure, its goal, and its value here.

    Args:
        timings: by workload and engine.
        measured: result of `fidelity`; empty if it was not measured.

    """

    def speedup(workload: str, engine: str, *baselines: str) -> float | None:
        """Return the speed-up over the fastest of the baselines."""
        engines = timings.get(workload, {})
        found = [engines[name] for name in baselines if name in engines]
        if engine not in engines or not found:
            return None
        return min(paired_speedup(engines[engine], baseline).median for baseline in found)

    def rate(workload: str, sequences: int, engine: str) -> float | None:
        timing = timings.get(workload, {}).get(engine)
        return None if timing is None else sequences / timing.p50_ms * 1e3

    single = timings.get("1x128", {}).get("bundle")
    compiled = "torch.compile"
    figures = [
        ("1x128, p50 in ms", "at most 0.5", None if single is None else single.p50_ms),
        ("1x128 vs. torch.compile", "at least 1.2", speedup("1x128", "bundle", compiled)),
        ("128x128, sequences/s", "at least 20000", rate("128x128", 128, "bundle")),
        ("128x128 vs. the best PyTorch", "at least 1.0", speedup("128x128", "bundle", EAGER, compiled)),
        (
            "mixed, unsorted: packed vs. padded",
            "at least 1.5",
            speedup("mixed, unsorted", "bundle, packed", "bundle, no CUDA graphs"),
        ),
        ("largest difference of logits", "at most 0.02", measured.get("max_abs_difference")),
        ("labels that agree", "at least 0.999", measured.get("label_agreement")),
    ]
    return [(name, goal, "not measured" if value is None else f"{value:.4g}") for name, goal, value in figures]
