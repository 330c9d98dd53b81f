"""Build the parts of a report from the engines' samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bert_bench.checkpoints import EncoderSize
from bert_bench.fidelity import Fidelity
from bert_bench.reports.report import CaseReport, ConcurrencyReport, ConcurrencyTiming, EngineReport, LatencyBreakdown
from bert_bench.settings import Settings
from bert_bench.timing_statistics import Speedup, Timing, paired_speedup, summarize
from bert_bench.workers.engine_pool import RunningEngine
from bert_bench.workloads import Case
from bert_runtime.errors import MissingExtraError

__all__ = [
    "case_report",
    "choose_baseline",
    "concurrency_reports",
    "engine_report",
    "latency_breakdowns",
    "require_psutil",
]

_BASELINES = ("onnxruntime-plain", "pytorch", "fp32", "bert-export-fp32")
"""Candidates for the baseline of speed-ups: the first that ran, else the first engine."""


def choose_baseline(engines: Sequence[str]) -> str:
    """Return the engine that speed-ups are relative to."""
    return next((name for name in _BASELINES if name in engines), engines[0])


def case_report(
    case: Case, engines: Sequence[RunningEngine], baseline: str, size: EncoderSize | None = None
) -> CaseReport:
    """Return the statistics of one case.

    Args:
        case: the case.
        engines: the running engines; those without samples of the case are left out.
        baseline: the engine that speed-ups are relative to.
        size: the encoder's size, for FLOPs.
    """
    timings = {engine.name: summarize(rounds) for engine in engines if (rounds := engine.samples_ms.get(case.name))}
    bundle_engines = [engine.name for engine in engines if engine.spec.is_bundle and engine.name in timings]
    has_baseline = baseline in timings and not case.bundle_only
    return CaseReport(
        name=case.name,
        stage=case.stage,
        texts=len(case.texts),
        tokens={
            "min": min(case.tokens),
            "mean": round(sum(case.tokens) / len(case.tokens), 2),
            "max": max(case.tokens),
            "total": sum(case.tokens),
        },
        timings=timings,
        speedups=_speedups(timings, timings[baseline]) if has_baseline else {},
        flops=0 if size is None or case.stage == "tokenization" else sum(size.flops(1, n) for n in case.tokens),
        pairs={
            name: {
                other: paired_speedup(timings[name], timing)
                for other, timing in timings.items()
                if other not in bundle_engines
            }
            for name in bundle_engines
        },
    )


def _speedups(timings: Mapping[str, Timing], baseline: Timing) -> dict[str, Speedup]:
    return {name: paired_speedup(timing, baseline) for name, timing in timings.items()}


def concurrency_reports(
    engines: Sequence[RunningEngine], settings: Settings, texts: int
) -> tuple[ConcurrencyReport, ...]:
    """Return the statistics of concurrent clients, one report for each number of clients.

    Args:
        engines: the running engines.
        settings: the settings, for the numbers of clients.
        texts: number of different texts.
    """
    return tuple(
        ConcurrencyReport(
            clients=clients,
            texts=texts,
            timings={
                engine.name: _concurrency_timing(rounds)
                for engine in engines
                if clients not in engine.concurrent_failures and (rounds := engine.concurrent_rounds.get(clients))
            },
            failed={
                engine.name: engine.concurrent_failures[clients]
                for engine in engines
                if clients in engine.concurrent_failures
            },
        )
        for clients in settings.clients
    )


def _concurrency_timing(rounds: Sequence[tuple[Sequence[float], float]]) -> ConcurrencyTiming:
    """Return percentiles over the pooled calls of all rounds, and throughput as the median over the rounds."""
    timing = summarize([samples_ms for samples_ms, _ in rounds])
    rates = tuple(len(samples_ms) / duration_s for samples_ms, duration_s in rounds)
    return ConcurrencyTiming(
        texts_per_s=median(rates),
        texts_per_s_rounds=rates,
        p50_ms=timing.p50_ms,
        p90_ms=timing.p90_ms,
        p99_ms=timing.p99_ms,
    )


def engine_report(engine: RunningEngine, fidelity: Fidelity | None) -> EngineReport:
    """Return load times, memory, size and versions of an engine whose process still runs."""
    import psutil

    distributions = () if engine.environment is None else engine.environment.distributions
    return EngineReport(
        name=engine.name,
        label=engine.spec.label,
        precision=engine.spec.precision,
        pid=engine.worker.pid,
        ready_s=engine.ready_s,
        first_prediction_s=engine.first_prediction_s,
        resident_bytes=psutil.Process(engine.worker.pid).memory_info().rss,
        peak_resident_bytes=_peak_resident_bytes(engine.worker.pid),
        size_bytes=engine.size_bytes,
        fidelity=fidelity,
        versions=engine.worker.call("versions", distributions) if distributions else {},
        batch_tokens=engine.batch_tokens,
        streams=engine.streams,
    )


def _peak_resident_bytes(pid: int) -> int | None:
    """Return a process's peak resident memory on Linux, `None` elsewhere."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def latency_breakdowns(
    single: CaseReport, tokenization: CaseReport, model: CaseReport
) -> Mapping[str, LatencyBreakdown]:
    """Return the stages of the end-to-end call `single` by engine that was timed on the stages; medians in ms."""
    breakdowns: dict[str, LatencyBreakdown] = {}
    for name in tokenization.timings:
        end_to_end_ms, tokenization_ms, model_ms = (
            case.timings[name].p50_ms for case in (single, tokenization, model)
        )  # fmt: skip
        breakdowns[name] = LatencyBreakdown(
            tokens=int(single.tokens["total"]),
            end_to_end_ms=end_to_end_ms,
            tokenization_ms=tokenization_ms,
            model_ms=model_ms,
            wrapper_ms=end_to_end_ms - tokenization_ms - model_ms,
        )
    return breakdowns


def require_psutil() -> None:
    """Raise `MissingExtraError` if psutil is missing: before the measurement instead of after it."""
    try:
        import psutil  # noqa: F401 - check that it is installed
    except ImportError:
        raise MissingExtraError("psutil", "bench", "measuring memory") from None
