"""From samples to the parts of a report."""

from collections.abc import Mapping, Sequence

from bert_bench.fidelity import Fidelity
from bert_bench.lineup import Contestant
from bert_bench.report import CaseReport, EngineReport, Split
from bert_bench.timing import paired_speedup, summarize
from bert_bench.workloads import Case
from bert_runtime.errors import MissingExtraError

__all__ = ["case_report", "choose_baseline", "engine_report", "require_psutil", "split_single"]

_BASELINES = ("onnxruntime-plain", "pytorch", "fp32")
"""What speed-ups are relative to: the first of these that ran, else the first engine."""


def choose_baseline(engines: Sequence[str]) -> str:
    """The engine that the others are compared with."""
    return next((name for name in _BASELINES if name in engines), engines[0])


def case_report(case: Case, contestants: Sequence[Contestant], baseline: str) -> CaseReport:
    """The statistics of one case over the engines that took it."""
    timings = {each.name: summarize(rounds) for each in contestants if (rounds := each.samples_ms.get(case.name))}
    tokens = case.tokens
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
    )


def engine_report(contestant: Contestant, fidelity: Fidelity | None) -> EngineReport:
    """What is known about an engine at the end of the run; its process must still be there."""
    import psutil

    return EngineReport(
        name=contestant.name,
        label=contestant.spec.label,
        pid=contestant.worker.pid,
        ready_s=contestant.ready_s,
        first_answer_s=contestant.first_answer_s,
        resident_bytes=psutil.Process(contestant.worker.pid).memory_info().rss,
        size_bytes=contestant.size_bytes,
        fidelity=fidelity,
    )


def split_single(single: CaseReport, tokenization: CaseReport, model: CaseReport) -> Mapping[str, Split]:
    """The stages of the end-to-end call `single`, by engine that has them."""
    splits: dict[str, Split] = {}
    for name in tokenization.timings:
        whole, first, second = (case.timings[name].p50_ms for case in (single, tokenization, model))
        splits[name] = Split(
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
