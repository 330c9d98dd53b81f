"""Where and when numbers were measured: without that, they mean nothing to the next reader."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from bert_runtime.machine import describe, installed_versions

__all__ = ["BackgroundLoad", "Conditions", "arguments", "busy_notes", "current_conditions"]

_DISTRIBUTIONS = ("bert-export", "onnxruntime", "onnxruntime-gpu", "torch", "numpy", "tokenizers")

_BUSY_LOAD_PER_CORE = 0.5
"""Load average above which other processes are worth a note."""

_BUSY_SHARE = 0.05
"""Share of the machine's processors that others may take during a run before it is worth a note."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The machine, the software and the moment of a run."""

    machine: Mapping[str, Any]

    versions: Mapping[str, str]
    """Installed distributions that take part."""

    threads: int
    """Threads of every engine."""

    load_average: tuple[float, float, float] | None
    """Of the machine before the run, over 1, 5 and 15 minutes."""

    started_at: str
    """ISO 8601, UTC."""

    argv: tuple[str, ...]
    """The command, with places as `arguments` has them."""


def current_conditions(threads: int) -> Conditions:
    """The conditions of a run that starts now."""
    return Conditions(
        machine=describe(),
        versions=installed_versions(_DISTRIBUTIONS),
        threads=threads,
        load_average=os.getloadavg() if hasattr(os, "getloadavg") else None,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=(Path(sys.argv[0]).name, *arguments()),
    )


def arguments() -> tuple[str, ...]:
    """The command's arguments, absolute paths among them seen from the working folder: they mean nothing elsewhere."""
    return tuple(os.path.relpath(each) if Path(each).is_absolute() else each for each in sys.argv[1:])


class BackgroundLoad:
    """How busy processes that are not ours keep the machine, from now until `share` is asked for."""

    def __init__(self) -> None:
        self._begin = monotonic()
        self._machine, self._ours = _busy_s(), _our_s()

    def share(self) -> float:
        """Share of the machine's processors that others took; ask before our own workers have ended."""
        processor_s = (monotonic() - self._begin) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._machine) - (_our_s() - self._ours)
        return max(0.0, others_s) / max(processor_s, 1e-9)


def _busy_s() -> float:
    """Seconds that the machine's processors have been busy since it started, time given to other guests included."""
    import psutil

    times = psutil.cpu_times()._asdict()
    # The kernel counts a guest's time in `user` too.
    return sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))


def _our_s() -> float:
    """Processor seconds of this process, of the children it has waited for, and of those that run."""
    import psutil

    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def busy_notes(conditions: Conditions, others_share: float | None) -> list[str]:
    """What other processes did to a run, in words; nothing where that was little."""
    notes = []
    load, cores = conditions.load_average, conditions.machine["cores"]
    if load is not None and load[0] > _BUSY_LOAD_PER_CORE * cores:
        notes.append(
            f"The machine was busy when the run began (load average {load[0]:.2f} on {cores} cores): "
            "trust the speed-ups more than the times."
        )
    if others_share is not None and others_share > _BUSY_SHARE:
        notes.append(
            f"Other processes kept {others_share:.0%} of the machine's processors busy during the run: these times are "
            "those of a noisy machine."
        )
    return notes
