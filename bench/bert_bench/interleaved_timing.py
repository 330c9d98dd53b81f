"""The interleaved run: every case on every engine in every round."""

from collections.abc import Callable, Sequence
from statistics import median

from bert_bench.engines.engine import SPLIT_BATCH_TOKENS
from bert_bench.errors import WorkerError
from bert_bench.settings import Settings
from bert_bench.timing_statistics import calls_per_burst
from bert_bench.workers.engine_pool import EnginePool, RunningEngine
from bert_bench.workloads import Case, Workload
from bert_runtime.tasks import TextInput

__all__ = ["METHOD", "measure", "measure_concurrency"]

METHOD = (
    "Every engine runs in a process of its own. In each round every case is timed on every engine in turn, and the "
    "engine that begins changes from round to round; a case that takes some engine long is in every third round only. "
    "A turn is an untimed call, then a burst of calls timed one by one; between two turns the machine rests until the "
    "threads of the engine before have stopped spinning. Percentiles are over the calls of all rounds; a speed-up is "
    "the median over the rounds of baseline time divided by engine time, both of the same round. "
    "This project's engines divide a batch of token ids into runs as they do texts; a peer runs it whole, or in runs "
    f"of {SPLIT_BATCH_TOKENS} tokens where that was faster when it was tried."
)

_LONG_CALL_BURSTS = 5
"""A call as long as this many bursts gets no untimed call before it: what it would lose by starting cold (threads
asleep, another engine's weights in the cache: a few milliseconds) is below one per cent."""

_LONG_CASE_ROUNDS = 3
"""A long case is measured in one of so many rounds."""


def measure(engine_pool: EnginePool, workload: Workload, settings: Settings, progress: Callable[[str], None]) -> None:
    """Fills the samples of every running_engine; one that fails on the way is dropped."""
    plans: dict[tuple[str, str], tuple[int, int]] = {}
    longest_ms: dict[str, float] = {}
    for running_engine in tuple(engine_pool.running):
        progress(f"warming up {running_engine.name}")
        with engine_pool.drop_on_failure(running_engine.name, "while warming up"):
            cases = [case for case in workload.cases if running_engine.accepts(case)]
            running_engine.batch_tokens = running_engine.worker.call("prepare", cases)
            for case in cases:
                call_ms, plan = _plan(running_engine, case, settings.burst_ms)
                plans[running_engine.name, case.name] = plan
                longest_ms[case.name] = max(longest_ms.get(case.name, 0.0), call_ms)
    for turn in range(settings.rounds):
        progress(f"round {turn + 1} of {settings.rounds}")
        for case in workload.cases:
            is_long = longest_ms.get(case.name, 0.0) > settings.long_case_ms
            if is_long and turn % _LONG_CASE_ROUNDS:
                continue
            for running_engine in engine_pool.rotation(turn // _LONG_CASE_ROUNDS if is_long else turn, case):
                with engine_pool.drop_on_failure(running_engine.name, f"while timing {case.name}"):
                    samples = running_engine.worker.call("burst", case.name, *plans[running_engine.name, case.name])
                    running_engine.samples_ms[case.name].append(samples)


def measure_concurrency(
    engine_pool: EnginePool, texts: Sequence[TextInput], settings: Settings, progress: Callable[[str], None]
) -> None:
    """Fills the calls of concurrent callers; an engine that fails with so many is left out of them, with the reason."""
    for turn in range(settings.callers_rounds if settings.callers else 0):
        progress(f"concurrent callers, round {turn + 1} of {settings.callers_rounds}")
        for callers in settings.callers:
            case = Case(name=f"callers{callers}", stage="concurrent", texts=tuple(texts), tokens=())
            for running_engine in engine_pool.rotation(turn, case):
                if callers in running_engine.callers_failed:
                    continue
                try:
                    found = running_engine.worker.call("concurrent", texts, callers, settings.callers_s)
                    running_engine.callers[callers].append(found)
                except WorkerError as error:
                    running_engine.callers_failed[callers] = str(error)


def _plan(running_engine: RunningEngine, case: Case, burst_ms: float) -> tuple[float, tuple[int, int]]:
    """The milliseconds of a call, and how many of them a turn takes: untimed, timed."""
    call_ms = running_engine.worker.call("burst", case.name, 1, 1)[0]
    if call_ms < burst_ms:
        call_ms = median(running_engine.worker.call("burst", case.name, 0, 3))
    return call_ms, (int(call_ms < _LONG_CALL_BURSTS * burst_ms), calls_per_burst(call_ms, burst_ms))
