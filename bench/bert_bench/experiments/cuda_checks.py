"""What engines on a GPU are held against: PyTorch in FP32, on token ids and on real texts, and what is aimed at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import click
import numpy as np

from bert_bench.timing_statistics import Timing, paired_speedup
from bert_export.cuda.build import HALF_TOLERANCE
from bert_export.parity import reference_outputs
from bert_models import TaskModel
from bert_runtime.cpu.session import Session
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput, max_abs_difference
from bert_runtime.tokenization import Batch

__all__ = ["EAGER", "Engine", "Run", "check_outputs", "fidelity", "goals"]

Run = Callable[[Batch], FloatArray]
"""Token ids to raw outputs."""

EAGER = "PyTorch eager"
"""The engine that speed-ups are over."""


@dataclass(frozen=True)
class Engine:
    """One way to run the model."""

    run: Run
    reads: Callable[[Batch], bool] = lambda batch: True
    """The batches it can be given; one that does not read all is left out where texts go in."""
    many_callers: bool = True
    """Whether several threads may call it."""

    threads = 1

    @property
    def reads_all(self) -> bool:
        """Whether it takes any padding."""
        return self.reads(Batch(*(np.array([[0, 1]]) for _ in range(3))))


@dataclass(frozen=True)
class _PyTorch:
    """Stands where a model has its session."""

    model: TaskModel

    def run(self, batch: Batch) -> FloatArray:
        return reference_outputs(self.model, batch)


def check_outputs(engines: Mapping[str, Engine], model: TaskModel, batches: list[Batch]) -> dict[str, float]:
    """Each engine's largest difference from PyTorch in FP32 on what it reads, as a share of the largest output.

    Raises `ClickException` where it exceeds what FP16 explains.
    """
    expected = [reference_outputs(model, batch) for batch in batches]
    scale = max(0.1, *(float(np.abs(each).max(initial=0)) for each in expected))
    errors = {
        name: max(
            float(np.abs(engine.run(batch) - right).max(initial=0)) / scale
            for batch, right in zip(batches, expected, strict=True)
            if engine.reads(batch)
        )
        for name, engine in engines.items()
    }
    if wrong := [f"{name} ({error:.2g})" for name, error in errors.items() if not error <= HALF_TOLERANCE]:
        raise click.ClickException(f"not the outputs of PyTorch in FP32, to {HALF_TOLERANCE}: {', '.join(wrong)}")
    return errors


def fidelity(model: Model, reference: TaskModel, texts: Sequence[TextInput]) -> dict[str, float]:
    """The largest difference of outputs from PyTorch in FP32 on the CPU, and the share of texts that agree."""
    expected = Model(reference.runtime_task(), model.tokenizer, cast("Session", _PyTorch(reference)))
    found, right = model.outputs(texts), expected.outputs(texts)
    return {**model.task.agreement(found, right), "max_abs_difference": max_abs_difference(found, right)}


def goals(timings: Mapping[str, Mapping[str, Timing]], measured: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """What is aimed at on an H200 with BERT-base: the figure, what it should be, and what it is here."""

    def ratio(case: str, ours: str, *others: str) -> float | None:
        engines = timings.get(case, {})
        beside = [engines[name] for name in others if name in engines]
        if ours not in engines or not beside:
            return None
        return min(paired_speedup(engines[ours], each).median for each in beside)

    def rate(case: str, sequences: int, name: str) -> float | None:
        found = timings.get(case, {}).get(name)
        return None if found is None else sequences / found.p50_ms * 1e3

    single = timings.get("1x128", {}).get("bundle")
    compiled = "torch.compile"
    figures = [
        ("1x128, p50 in ms", "at most 0.6", None if single is None else single.p50_ms),
        ("1x128 beside torch.compile", "at least 1.2", ratio("1x128", "bundle", compiled)),
        ("128x128, sequences/s", "at least 20000", rate("128x128", 128, "bundle")),
        ("128x128 beside the best PyTorch", "at least 1.0", ratio("128x128", "bundle", EAGER, compiled)),
        (
            "mixed, unsorted: packed beside padded",
            "at least 1.5",
            ratio("mixed, unsorted", "bundle, packed", "bundle, no CUDA graphs"),
        ),
        ("largest difference of logits", "at most 0.02", measured.get("max_abs_difference")),
        ("labels that agree", "at least 0.999", measured.get("label_agreement")),
    ]
    return [(name, wanted, "not measured" if found is None else f"{found:.4g}") for name, wanted, found in figures]
