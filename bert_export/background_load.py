"""Background load: CPU time that other processes take while latencies are measured."""

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["MAX_BACKGROUND_LOAD", "BackgroundLoad"]

MAX_BACKGROUND_LOAD = 0.05
"""Background load, as a fraction of the machine's CPU time, above which latencies carry a note."""

_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)
"""Idle time and waiting for I/O, among the numbers of the first line."""
_GUEST_FIELDS = 8
"""Numbers from here on are guests' times, which the kernel counts as the user's, too."""


class BackgroundLoad:
    """Measures the CPU time of other processes, from its creation until `fraction` is called.

    Args:
        own_cpu_s: returns the CPU seconds that are not others', by default this process's.
    """

    def __init__(self, own_cpu_s: Callable[[], float] = time.process_time) -> None:
        self._own_cpu_s = own_cpu_s
        self._begin_s, self._own_s, self._machine_s = time.monotonic(), own_cpu_s(), _machine_cpu_s()

    def fraction(self) -> float | None:
        """Return the fraction of the machine's CPU time that other processes took; `None` outside Linux."""
        now_s = _machine_cpu_s()
        if now_s is None or self._machine_s is None:
            return None
        available_s = (time.monotonic() - self._begin_s) * (os.cpu_count() or 1)
        others_s = (now_s - self._machine_s) - (self._own_cpu_s() - self._own_s)
        return min(1.0, max(0.0, others_s) / max(available_s, 1e-9))


def _machine_cpu_s() -> float | None:
    """Return the CPU seconds that the machine has spent since it started; `None` where it does not say."""
    try:
        name, *numbers = _STAT.read_text(encoding="ascii").partition("\n")[0].split()
        ticks = [int(number) for number in numbers[:_GUEST_FIELDS]]
    except (OSError, ValueError):
        return None
    busy = sum(count for index, count in enumerate(ticks) if index not in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
