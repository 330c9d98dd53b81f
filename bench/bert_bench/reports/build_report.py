"""From samples to the parts of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bert_bench.checkpoints import EncoderSize
from bert_bench.fidelity import Fidelity
from bert_bench.reports.report import CaseReport, ConcurrencyReport, ConcurrencyTiming, EngineReport, LatencyBreakdown
from bert_bench.settings import Settings
from bert_bench.timing_statistics import paired_speedup, summarize
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
"""What speed-ups are relative to: the first of these that ran, else the first engine."""


def choose_baseline(engines: Sequence[str]) -> str:
    """The engine that the others are compared with."""
    return next((name for name in _BASELINES if name in engines), engines[0])


def case_report(
    case: Case, contestants: Sequence[RunningEngine], baseline: str, size: EncoderSize | None = None
) -> CaseReport:
    """The statistics of one case over the engines that took it."""
    timings = {each.name: summarize(rounds) for each in contestants if (rounds := each.samples_ms.get(case.name))}
    tokens = case.tokens
    own = [each.name for each in contestants if each.spec.own and each.name in timings]
    return CaseReport(
        name=case.name,
        stage=case.stage,
        texts=len(case.texts),
        tokens={
            "min": min(tokens),
            "mean": round(sum(tokens) / len(tokens), 2),
            "max": max(tokens),
            "total": sum(tokens),
        },
        timings=timings,
        speedups={name: paired_speedup(timing, timings[baseline]) for name, timing in timings.items()}
        if baseline in timings and not case.bundle_only
        else {},
        flops=0 if size is None or case.stage == "tokenization" else sum(size.flops(1, n) for n in tokens),
        pairs={
            name: {
                other: paired_speedup(timings[name], timing) for other, timing in timings.items() if other not in own
            }
            for name in own
        },
    )


def concurrency_reports(
    contestants: Sequence[RunningEngine], settings: Settings, texts: int
) -> tuple[ConcurrencyReport, ...]:
    """What concurrent callers got, by their number."""
    return tuple(
        ConcurrencyReport(
            callers=callers,
            texts=texts,
            timings={
                each.name: _callers_timing(rounds)
                for each in contestants
                if callers not in each.callers_failed and (rounds := each.callers.get(callers))
            },
            failed={each.name: each.callers_failed[callers] for each in contestants if callers in each.callers_failed},
        )
        for callers in settings.callers
    )


def _callers_timing(rounds: Sequence[tuple[Sequence[float], float]]) -> ConcurrencyTiming:
    """The statistics of some callers on one engine: calls of all rounds together, rates round by round."""
    timing = summarize([samples for samples, _ in rounds])
    rates = tuple(len(samples) / seconds for samples, seconds in rounds)
    return ConcurrencyTiming(
        texts_per_s=median(rates),
        texts_per_s_rounds=rates,
        p50_ms=timing.p50_ms,
        p90_ms=timing.p90_ms,
        p99_ms=timing.p99_ms,
    )


def engine_report(running_engine: RunningEngine, fidelity: Fidelity | None) -> EngineReport:
    """What is known about an engine at the end of the run; its process must still be there."""
    import psutil

    spec, environment = running_engine.spec, running_engine.environment
    names = () if environment is None else environment.distributions
    return EngineReport(
        name=running_engine.name,
        label=spec.label,
        precision=spec.precision,
        pid=running_engine.worker.pid,
        ready_s=running_engine.ready_s,
        first_answer_s=running_engine.first_answer_s,
        resident_bytes=psutil.Process(running_engine.worker.pid).memory_info().rss,
        peak_resident_bytes=_peak_resident_bytes(running_engine.worker.pid),
        size_bytes=running_engine.size_bytes,
        fidelity=fidelity,
        versions=running_engine.worker.call("versions", names) if names else {},
        batch_tokens=running_engine.batch_tokens,
    )


def _peak_resident_bytes(pid: int) -> int | None:
    """The most resident memory a process ever had, as Linux tells it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def latency_breakdowns(
    single: CaseReport, tokenization: CaseReport, model: CaseReport
) -> Mapping[str, LatencyBreakdown]:
    """The stages of the end-to-end call `single`, by engine that has them."""
    splits: dict[str, LatencyBreakdown] = {}
    for name in tokenization.timings:
        whole, first, second = (case.timings[name].p50_ms for case in (single, tokenization, model))
        splits[name] = LatencyBreakdown(
            tokens=int(single.tokens["total"]),
            end_to_end_ms=whole,
            tokenization_ms=first,
            model_ms=second,
            wrapper_ms=whole - first - second,
        )
    return splits


def require_psutil() -> None:
    """Raises `MissingExtraError` before anything is measured that could then not be reported."""
    try:
        import psutil  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingExtraError("psutil", "bench", "measuring memory") from None
