"""Interleaved timing: every case on every engine in every round."""

from collections.abc import Callable, Sequence
from statistics import median

from bert_bench.engines.engine import SPLIT_BATCH_TOKENS
from bert_bench.errors import WorkerError
from bert_bench.settings import Settings
from bert_bench.timing_statistics import calls_per_burst
from bert_bench.workers.engine_pool import EnginePool, RunningEngine
from bert_bench.workloads import Case, Workload
from bert_runtime.tasks import TextInput

__all__ = ["METHOD", "measure_cases", "measure_concurrency"]

METHOD = (
    "Every engine runs in its own process. Timings are interleaved: in each round every case is timed on every "
    "engine, and another engine begins each round; a case that takes some engine long is timed in every third round "
    "only. An engine is timed with an untimed call, then a burst of calls timed one by one; between two engines the "
    "machine rests until the previous engine's threads have stopped spinning. Percentiles are over the calls of all "
    "rounds; a speed-up is the median over the rounds of baseline time divided by engine time, both of the same "
    "round. bert-export splits a batch of token ids into smaller batches as it does texts; a compared engine runs it "
    f"whole, or in batches of {SPLIT_BATCH_TOKENS} tokens, one after another on all threads or one on each at a time, "
    "whichever a trial found fastest."
)

_LONG_CALL_BURSTS = 5
"""Length of a call, in bursts, from which it gets no untimed call: a cold start (sleeping threads, another engine's
weights in the cache) costs a few milliseconds, less than 1 % of such a call."""

_LONG_CASE_ROUNDS = 3
"""A long case is timed in one of this many rounds."""


def measure_cases(
    engine_pool: EnginePool, workload: Workload, settings: Settings, progress: Callable[[str], None]
) -> None:
    """Time every case of the workload on every engine that accepts it, interleaved in rounds, see `METHOD`.

    Appends one list of latencies per round to `RunningEngine.samples_ms`; an engine that fails is dropped.
    """
    bursts: dict[tuple[str, str], tuple[int, int]] = {}
    longest_call_ms: dict[str, float] = {}
    for engine in tuple(engine_pool.running):
        progress(f"warming up {engine.name}")
        with engine_pool.drop_on_failure(engine.name, "while warming up"):
            cases = [case for case in workload.cases if engine.accepts(case)]
            engine.batch_tokens, engine.streams = engine.worker.call("set_cases", cases)
            for case in cases:
                call_ms = _estimate_call_ms(engine, case, settings.burst_ms)
                bursts[engine.name, case.name] = _burst_calls(call_ms, settings.burst_ms)
                longest_call_ms[case.name] = max(longest_call_ms.get(case.name, 0.0), call_ms)
    for round_index in range(settings.rounds):
        progress(f"round {round_index + 1} of {settings.rounds}")
        for case in workload.cases:
            rotation = round_index
            if longest_call_ms.get(case.name, 0.0) > settings.long_case_ms:
                rotation, skipped = divmod(round_index, _LONG_CASE_ROUNDS)
                if skipped:
                    continue
            for engine in engine_pool.rotated(rotation, case):
                with engine_pool.drop_on_failure(engine.name, f"while timing {case.name}"):
                    samples_ms = engine.worker.call("time_burst", case.name, *bursts[engine.name, case.name])
                    engine.samples_ms[case.name].append(samples_ms)


def measure_concurrency(
    engine_pool: EnginePool, texts: Sequence[TextInput], settings: Settings, progress: Callable[[str], None]
) -> None:
    """Time concurrent clients on every engine, interleaved in rounds, for each of `settings.clients`.

    Appends to `RunningEngine.concurrent_rounds`. An engine that fails with some number of clients is left out of that
    number's later rounds; the reason goes to `RunningEngine.concurrent_failures`.
    """
    for round_index in range(settings.clients_rounds if settings.clients else 0):
        progress(f"concurrent clients, round {round_index + 1} of {settings.clients_rounds}")
        for clients in settings.clients:
            case = Case(name=f"clients{clients}", stage="concurrent", texts=tuple(texts), tokens=())
            for engine in engine_pool.rotated(round_index, case):
                if clients in engine.concurrent_failures:
                    continue
                try:
                    timed = engine.worker.call("time_concurrent_calls", texts, clients, settings.clients_s)
                    engine.concurrent_rounds[clients].append(timed)
                except WorkerError as error:
                    engine.concurrent_failures[clients] = str(error)


def _estimate_call_ms(engine: RunningEngine, case: Case, burst_ms: float) -> float:
    """Return a call's latency in ms: the median of three calls after warm-up, or one call if it fills a burst."""
    call_ms: float = engine.worker.call("time_burst", case.name, 1, 1)[0]
    if call_ms < burst_ms:
        call_ms = median(engine.worker.call("time_burst", case.name, 0, 3))
    return call_ms


def _burst_calls(call_ms: float, burst_ms: float) -> tuple[int, int]:
    """Return the numbers of untimed and of timed calls of a burst."""
    return int(call_ms < _LONG_CALL_BURSTS * burst_ms), calls_per_burst(call_ms, burst_ms)
