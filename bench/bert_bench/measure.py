"""The interleaved run: every case on every engine in every round."""

from collections.abc import Callable
from statistics import median

from bert_bench.lineup import Contestant, Lineup
from bert_bench.settings import Settings
from bert_bench.timing import calls_per_burst
from bert_bench.workloads import Case, Workload

__all__ = ["METHOD", "measure"]

METHOD = (
    "Every engine runs in a process of its own. In each round every case is timed on every engine in turn, and the "
    "engine that begins changes from round to round. A turn is an untimed call, then a burst of calls timed one by "
    "one; between two turns the machine rests until the threads of the engine before have stopped spinning. "
    "Percentiles are over the calls of all rounds; a speed-up is the median over the rounds of baseline time divided "
    "by engine time, both of the same round."
)

_LONG_CALL_BURSTS = 5
"""A call as long as this many bursts gets no untimed call before it: what it would lose by starting cold (threads
asleep, another engine's weights in the cache: a few milliseconds) is below one per cent."""


def measure(lineup: Lineup, workload: Workload, settings: Settings, progress: Callable[[str], None]) -> None:
    """Fills the samples of every contestant; one that fails on the way is dropped."""
    plans: dict[tuple[str, str], tuple[int, int]] = {}
    for contestant in tuple(lineup.running):
        progress(f"warming up {contestant.name}")
        with lineup.guard(contestant.name, "while warming up"):
            contestant.worker.call("prepare", workload.cases)
            for case in filter(contestant.takes, workload.cases):
                plans[contestant.name, case.name] = _plan(contestant, case, settings.burst_ms)
    for turn in range(settings.rounds):
        progress(f"round {turn + 1} of {settings.rounds}")
        for case in workload.cases:
            for contestant in lineup.in_turn(turn, case):
                with lineup.guard(contestant.name, f"while timing {case.name}"):
                    samples = contestant.worker.call("burst", case.name, *plans[contestant.name, case.name])
                    contestant.samples_ms[case.name].append(samples)


def _plan(contestant: Contestant, case: Case, burst_ms: float) -> tuple[int, int]:
    """How many calls a turn takes: untimed, timed."""
    call_ms = contestant.worker.call("burst", case.name, 1, 1)[0]
    if call_ms < burst_ms:
        call_ms = median(contestant.worker.call("burst", case.name, 0, 3))
    return int(call_ms < _LONG_CALL_BURSTS * burst_ms), calls_per_burst(call_ms, burst_ms)
