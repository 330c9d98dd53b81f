"""Load during a benchmark: the CPU time that it takes itself, and notes on that of other processes."""

import os
from contextlib import suppress

from bert_bench.conditions import Conditions

__all__ = ["busy_notes", "process_tree_cpu_s"]

_MAX_LOAD_PER_CORE = 0.5
"""Load average per core at the start of a run above which reports carry a note."""


def process_tree_cpu_s() -> float:
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
    from bert_export.background_load import MAX_BACKGROUND_LOAD  # a worker imports this module without bert_export

    notes = []
    load, cores = conditions.load_average, conditions.machine["cores"]
    if load is not None and load[0] > _MAX_LOAD_PER_CORE * cores:
        notes.append(
            f"The machine was busy when the run began (load average {load[0]:.2f} on {cores} cores): "
            "trust the speed-ups more than the times."
        )
    if background_load is not None and background_load > MAX_BACKGROUND_LOAD:
        notes.append(
            f"Other processes kept {background_load:.0%} of the machine's processors busy during the run: the times "
            "are those of a noisy machine."
        )
    return notes
