"""The report of a benchmark: measured values, their JSON form, and derived values such as throughput."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_bench.checkpoints import EncoderSize
from bert_bench.conditions import Conditions
from bert_bench.fidelity import Fidelity
from bert_bench.json_fields import to_json_values
from bert_bench.reports.titles import model_title
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
"""Version of the JSON format; changes when the meaning of a key does."""


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """One engine: load times, memory, size and fidelity."""

    name: str
    label: str
    """A description for readers who do not know the name."""
    pid: int
    ready_s: float
    """Seconds from the start of its process until the model is loaded; median over the starts."""
    first_prediction_s: float = field(metadata={"key": "first_answer_s"})
    """Seconds from the start of its process until the first prediction; median over the starts."""
    resident_bytes: int
    """Resident memory of its process after the run."""
    size_bytes: int
    """Graph and weights on disk."""
    fidelity: Fidelity | None
    """`None` if no FP32 engine ran to compare with."""
    precision: str = "fp32"
    """Precision of its matmuls."""
    peak_resident_bytes: int | None = None
    """Peak resident memory of its process; `None` if the system does not report it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the distributions in its environment, if that is not the benchmark's."""
    batch_tokens: Mapping[str, int] = field(default_factory=dict)
    """By case: padded tokens per batch, if the engine chose the fastest size by trial."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """By case: batches at a time, if the engine chose several."""


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case: what was timed, and how long it took on each engine."""

    name: str
    stage: str
    """The stage that was timed, see `bert_bench.workloads.Stage`."""
    texts: int
    """Number of texts, 0 for token ids."""
    tokens: Mapping[str, float]
    """Lengths after tokenization, special tokens included, padding not: `min`, `mean`, `max` and `total`."""
    timings: Mapping[str, Timing]
    """By engine."""
    speedups: Mapping[str, Speedup]
    """By engine: speed-up over the report's baseline; empty for stages that only the bundle's engines are timed on."""
    flops: int = 0
    """FLOPs of the encoder's matmuls on the case's tokens without padding; 0 if unknown."""
    pairs: Mapping[str, Mapping[str, Speedup]] = field(default_factory=dict)
    """By engine of the bundle, then by compared engine: the former's speed-up over the latter."""

    @property
    def noisy(self) -> tuple[str, ...]:
        """Engines whose speed-up over the baseline is noisy, see `Speedup.noisy`."""
        return tuple(name for name, speedup in self.speedups.items() if speedup.noisy)


@dataclass(frozen=True, kw_only=True)
class LatencyBreakdown:
    """The stages of an end-to-end call on one text: median latencies of the same interleaved run."""

    tokens: int
    end_to_end_ms: float
    tokenization_ms: float
    model_ms: float

    wrapper_ms: float
    """The rest: padding, decoding, and what the stages lose by following each other."""


@dataclass(frozen=True, kw_only=True)
class ConcurrencyTiming:
    """Throughput and latency of one engine under a number of concurrent clients."""

    texts_per_s: float
    """Throughput of all clients together: median over the rounds."""
    texts_per_s_rounds: tuple[float, ...]
    """Throughput of each round."""
    p50_ms: float
    """Percentiles of a call's latency, over the pooled calls of all clients and rounds."""
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class ConcurrencyReport:
    """Concurrent clients, each of which predicts one short text after another."""

    clients: int = field(metadata={"key": "callers"})
    """Number of clients."""
    texts: int
    """Number of different texts."""
    timings: Mapping[str, ConcurrencyTiming]
    """By engine."""
    failed: Mapping[str, str]
    """By engine that failed with so many clients: the reason."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A benchmark run: conditions, engines, cases and their timings.

    `to_dict` gives its JSON values. Some JSON keys differ from the names here, see the fields' metadata.
    """

    bundle: Path
    task: str
    engines: tuple[EngineReport, ...]
    not_run: Mapping[str, str]
    """By engine that could not run: the reason."""
    baseline: str
    """The engine that speed-ups are relative to."""
    shapes: tuple[CaseReport, ...]
    """Model only: token ids in, raw outputs out."""
    singles: tuple[CaseReport, ...]
    """End to end: one text in, its decoded prediction out."""
    stages: tuple[CaseReport, ...]
    """Stages of the first of `singles`."""
    offline: tuple[CaseReport, ...]
    """Throughput: many texts of mixed lengths, passed in one call."""
    latency_breakdowns: Mapping[str, LatencyBreakdown] = field(metadata={"key": "splits"})
    """By engine of the bundle: the stages of the first of `singles`."""
    method: str
    """How timings were taken."""
    settings: Mapping[str, Any]
    """The settings by JSON key."""
    conditions: Conditions
    duration_s: float
    notes: tuple[str, ...] = field(default=())
    """Remarks that a reader of the numbers must know."""
    concurrency: tuple[ConcurrencyReport, ...] = field(default=(), metadata={"key": "callers"})
    loadgen: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By scenario, then by engine: metrics of MLPerf LoadGen. Not MLPerf results."""
    peaks_gflops: Mapping[str, float] = field(default_factory=dict)
    """By precision: GFLOP/s of the machine's fastest large matmul, the higher of before and after the rounds."""
    checkpoint: Path | None = None
    labelled: Path | None = None
    """The labelled file of the task metric."""
    background_load: float | None = field(default=None, metadata={"key": "others_share"})
    """Fraction of the machine's CPU time that other processes took during the run."""

    encoder: EncoderSize | None = None
    """The encoder's size; `None` if the checkpoint was not read."""
    given_title: str | None = field(default=None, metadata={"key": "title"})
    """The model's name as the user gave it."""

    @property
    def title(self) -> str:
        """The model's name: the given one, else that of its size, else of its path."""
        path = (self.checkpoint or self.bundle).resolve()
        return self.given_title or model_title(self.encoder) or path.name

    @property
    def cases(self) -> tuple[CaseReport, ...]:
        """All cases."""
        return (*self.shapes, *self.singles, *self.stages, *self.offline)

    def texts_per_s(self, engine: str, case: CaseReport | None = None) -> float:
        """Return an engine's throughput in texts per second: texts over median latency.

        Args:
            engine: the engine's name.
            case: a case of texts, by default the first of `offline`.
        """
        case = case or self.offline[0]
        return case.texts / (case.timings[engine].p50_ms / 1e3)

    def peak_share(self, engine: EngineReport, case: CaseReport) -> float | None:
        """Return the case's FLOPs over its median latency, as a fraction of the peak in the engine's precision.

        `None` if FLOPs, peak or timing are unknown. FLOPs are those of the full encoder, so an engine that skips work
        which the prediction does not need has a higher share.
        """
        peak = self.peaks_gflops.get(engine.precision)
        if not case.flops or peak is None or engine.name not in case.timings:
            return None
        return case.flops / (case.timings[engine.name].p50_ms / 1e3) / (peak * 1e9)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; numbers that are not finite become `None`."""
        values: dict[str, Any] = {"format": FORMAT, **to_json_values(self)}
        case_values = (*values["shapes"], *values["singles"], *values["stages"], *values["offline"])
        for case_value, case in zip(case_values, self.cases, strict=True):
            case_value["noisy"] = list(case.noisy)
            shares = {engine.name: self.peak_share(engine, case) for engine in self.engines}
            case_value["peak_shares"] = {name: round(share, 4) for name, share in shares.items() if share is not None}
        values["throughput_texts_per_s"] = {
            case.name: {name: self.texts_per_s(name, case) for name in case.timings} for case in self.offline
        }
        return values
