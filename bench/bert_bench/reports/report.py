"""What a benchmark found: frozen values, their JSON shape, and the statistics that need several of them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bert_bench.conditions import Conditions
from bert_bench.fidelity import Fidelity
from bert_bench.timing_statistics import Speedup, Timing

__all__ = [
    "FORMAT",
    "CaseReport",
    "ConcurrencyReport",
    "ConcurrencyTiming",
    "EngineReport",
    "LatencyBreakdown",
    "Report",
]

FORMAT = 2
"""Of the JSON shape of a report; changes when the meaning of a key does."""


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
    precision: str = "fp32"
    """What its matrix products multiply."""
    peak_resident_bytes: int | None = None
    """The most resident memory that its process ever had; `None` where the system does not say."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What is installed where it runs, if that is an environment of its own."""
    batch_tokens: Mapping[str, int] = field(default_factory=dict)
    """Padded tokens per run in each throughput workload, where the engine chose the size that was fastest for it."""


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
    flops: int = 0
    """Of the encoder's matrix products on the case's tokens without padding; 0 where that is not known."""
    pairs: Mapping[str, Mapping[str, Speedup]] = field(default_factory=dict)
    """By engine of the bundle: its speed-up over every other engine."""

    @property
    def noisy(self) -> tuple[str, ...]:
        """The engines whose speed-up varied too much from round to round."""
        return tuple(name for name, speedup in self.speedups.items() if speedup.noisy)


@dataclass(frozen=True, kw_only=True)
class LatencyBreakdown:
    """Where the time of an end-to-end call on one text goes: medians of the same interleaved run."""

    tokens: int
    end_to_end_ms: float
    tokenization_ms: float
    model_ms: float

    wrapper_ms: float
    """What is left: padding, decoding, and what the stages lose by running beside each other."""


@dataclass(frozen=True, kw_only=True)
class ConcurrencyTiming:
    """What concurrent callers of one engine got."""

    texts_per_s: float
    """Median over the rounds."""
    texts_per_s_rounds: tuple[float, ...]
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class ConcurrencyReport:
    """Several callers at the same time, each asking for one short text after another."""

    callers: int
    texts: int
    timings: Mapping[str, ConcurrencyTiming]
    failed: Mapping[str, str]
    """Engines that failed with so many callers, with the reason."""


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
    offline: tuple[CaseReport, ...]
    """Throughput: many texts of mixed lengths, handed over at once."""
    splits: Mapping[str, LatencyBreakdown]
    """By engine of the bundle."""
    method: str
    settings: Mapping[str, Any]
    conditions: Conditions
    duration_s: float
    notes: tuple[str, ...] = field(default=())
    """What a reader of the numbers must know."""
    callers: tuple[ConcurrencyReport, ...] = ()
    loadgen: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By scenario and engine: what MLPerf LoadGen measured when it drove the engine. Not MLPerf results."""
    peaks_gflops: Mapping[str, float] = field(default_factory=dict)
    """The machine's fastest large matrix product by precision, measured before and after the rounds, in GFLOP/s."""
    checkpoint: Path | None = None
    labelled: Path | None = None
    """The file that the task metric is of."""
    others_share: float | None = None
    """Share of the machine's processors that other processes took during the run."""

    @property
    def title(self) -> str:
        """The checkpoint, or without one the bundle, by the last two parts of its path."""
        return "/".join((self.checkpoint or self.bundle).parts[-2:])

    @property
    def cases(self) -> tuple[CaseReport, ...]:
        """Every case."""
        return (*self.shapes, *self.singles, *self.stages, *self.offline)

    def texts_per_s(self, engine: str, case: CaseReport | None = None) -> float:
        """Throughput on a case, by default the first of `offline`."""
        case = case or self.offline[0]
        return case.texts / (case.timings[engine].p50_ms / 1e3)

    def peak_share(self, engine: EngineReport, case: CaseReport) -> float | None:
        """The encoder's FLOPs over the median time, as a share of the peak of the engine's precision.

        `None` where one of them is not known. It counts the work asked for: an engine that leaves out what the answer
        does not need has a higher share.
        """
        peak = self.peaks_gflops.get(engine.precision)
        if not case.flops or peak is None or engine.name not in case.timings:
            return None
        return case.flops / (case.timings[engine.name].p50_ms / 1e3) / (peak * 1e9)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; what is not a finite number becomes `None`."""
        values: dict[str, Any] = {"format": FORMAT, **_plain(asdict(self))}
        dictionaries = (*values["shapes"], *values["singles"], *values["stages"], *values["offline"])
        for case, read in zip(dictionaries, self.cases, strict=True):
            case["noisy"] = list(read.noisy)
            shares = {each.name: self.peak_share(each, read) for each in self.engines}
            case["peak_shares"] = {name: round(share, 4) for name, share in shares.items() if share is not None}
        values["throughput_texts_per_s"] = {
            case.name: {name: self.texts_per_s(name, case) for name in case.timings} for case in self.offline
        }
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
