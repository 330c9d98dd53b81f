"""What a benchmark found: frozen values, their JSON shape, and the statistics that need several of them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bert_bench.conditions import Conditions
from bert_bench.fidelity import Fidelity
from bert_bench.timing import Speedup, Timing

__all__ = ["CaseReport", "EngineReport", "Report", "Split"]


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What is known about one engine besides its latencies."""

    name: str
    label: str
    """What it is, for a reader who does not know the name."""
    pid: int
    ready_s: float
    """From the start of its process until the model is loaded: interpreter, imports, files."""
    first_answer_s: float
    """From the start of its process until the first text is answered."""
    resident_bytes: int
    """Resident memory of its process after the run."""
    size_bytes: int
    """Graph and weights on disk."""
    fidelity: Fidelity | None
    """`None` where no FP32 engine ran to compare with."""


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case: what was timed, and how long it took on each engine."""

    name: str
    stage: str
    texts: int
    """How many texts, 0 where token ids were given."""
    tokens: Mapping[str, float]
    """Lengths after tokenization, special tokens included: `min`, `mean`, `max` and `total`, padding not counted."""
    timings: Mapping[str, Timing]
    speedups: Mapping[str, Speedup]
    """Over the report's baseline; empty for the stages that only the bundle's engines have."""

    @property
    def noisy(self) -> tuple[str, ...]:
        """The engines whose speed-up varied too much from round to round."""
        return tuple(name for name, speedup in self.speedups.items() if speedup.noisy)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the time of an end-to-end call on one text goes: medians of the same interleaved run."""

    tokens: int
    end_to_end_ms: float
    tokenization_ms: float
    model_ms: float

    wrapper_ms: float
    """What is left: padding, decoding, and what the stages lose by running beside each other."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the benchmark."""

    bundle: Path
    task: str
    engines: tuple[EngineReport, ...]
    not_run: Mapping[str, str]
    """Engines that could not run, with the reason."""
    baseline: str
    """The engine that speed-ups are relative to."""
    shapes: tuple[CaseReport, ...]
    """Model only: token ids in, raw outputs out."""
    singles: tuple[CaseReport, ...]
    """End to end: one text in, its decoded answer out."""
    stages: tuple[CaseReport, ...]
    """The parts of the first of `singles`."""
    mixed: CaseReport
    """Throughput: many texts of mixed lengths, handed over at once."""
    splits: Mapping[str, Split]
    """By engine of the bundle."""
    method: str
    settings: Mapping[str, Any]
    conditions: Conditions
    duration_s: float
    notes: tuple[str, ...] = field(default=())
    """What a reader of the numbers must know."""

    @property
    def cases(self) -> tuple[CaseReport, ...]:
        """Every case."""
        return (*self.shapes, *self.singles, *self.stages, self.mixed)

    def texts_per_s(self, engine: str) -> float:
        """Throughput on the mixed workload."""
        return self.mixed.texts / (self.mixed.timings[engine].p50_ms / 1e3)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; what is not a finite number becomes `None`."""
        values: dict[str, Any] = _plain(asdict(self))
        for case, read in zip(
            (*values["shapes"], *values["singles"], *values["stages"], values["mixed"]), self.cases, strict=True
        ):
            case["noisy"] = list(read.noisy)
        values["throughput_texts_per_s"] = {each.name: self.texts_per_s(each.name) for each in self.engines}
        return values


def _plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
