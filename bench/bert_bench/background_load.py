"""Background load: CPU time that other processes take during a benchmark."""

import os
from contextlib import suppress
from time import monotonic

from bert_bench.conditions import Conditions

__all__ = ["BackgroundLoad", "busy_notes"]

_MAX_LOAD_PER_CORE = 0.5
"""Load average per core at the start of a run above which reports carry a note."""

_MAX_BACKGROUND_LOAD = 0.05
"""Background load during a run, as a fraction of the machine's CPU time, above which reports carry a note."""


class BackgroundLoad:
    """Measures the CPU time of other processes from its creation until `fraction` is called."""

    def __init__(self) -> None:
        self._begin = monotonic()
        self._machine_s, self._process_s = _machine_cpu_s(), _process_cpu_s()

    def fraction(self) -> float:
        """Return the fraction of the machine's CPU time that other processes took; call before the workers end."""
        available_s = (monotonic() - self._begin) * (os.cpu_count() or 1)
        others_s = (_machine_cpu_s() - self._machine_s) - (_process_cpu_s() - self._process_s)
        return max(0.0, others_s) / max(available_s, 1e-9)


def _machine_cpu_s() -> float:
    """Return the CPU seconds of the whole machine since it started, time stolen by other guests included."""
    import psutil

    times = psutil.cpu_times()._asdict()
    # The kernel counts a guest's time in `user` too.
    return sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))


def _process_cpu_s() -> float:
    """Return the CPU seconds of this process, of the children it has waited for, and of those that run."""
    import psutil

    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child_times = child.cpu_times()
            total += child_times.user + child_times.system
    return total


def busy_notes(conditions: Conditions, background_load: float | None) -> list[str]:
    """Return notes on load from other processes that may have distorted a run.

    Args:
        conditions: conditions of the run; a note is due if the load average was high when it began.
        background_load: `BackgroundLoad.fraction` over the run, `None` if it was not measured.
    """
    notes = []
    load, cores = conditions.load_average, conditions.machine["cores"]
    if load is not None and load[0] > _MAX_LOAD_PER_CORE * cores:
        notes.append(
            f"The machine was busy when the run began (load average {load[0]:.2f} on {cores} cores): "
            "trust the speed-ups more than the times."
        )
    if background_load is not None and background_load > _MAX_BACKGROUND_LOAD:
        notes.append(
            f"Other processes kept {background_load:.0%} of the machine's processors busy during the run: the times "
            "are those of a noisy machine."
        )
    return notes
