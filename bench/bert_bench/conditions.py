"""Conditions of a measurement: machine, software versions, threads, load, date and command."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bert_runtime.machine import describe, installed_versions

__all__ = ["Conditions", "arguments", "current_conditions"]

_DISTRIBUTIONS = ("bert-export", "onnxruntime", "onnxruntime-gpu", "torch", "numpy", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions of a benchmark run. Field names are JSON keys of results."""

    machine: Mapping[str, Any]
    """CPU, cores and more, see `bert_runtime.machine.describe`."""

    versions: Mapping[str, str]
    """Versions of the installed distributions that matter."""

    threads: int
    """Threads of every engine."""

    load_average: tuple[float, float, float] | None
    """Load average of the machine before the run, over 1, 5 and 15 minutes; `None` where the system has none."""

    started_at: str
    """ISO 8601, UTC."""

    argv: tuple[str, ...]
    """The command, with paths as in `arguments`."""


def current_conditions(threads: int) -> Conditions:
    """Return the conditions of a run that starts now with so many threads per engine."""
    return Conditions(
        machine=describe(),
        versions=installed_versions(_DISTRIBUTIONS),
        threads=threads,
        load_average=os.getloadavg() if hasattr(os, "getloadavg") else None,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=(Path(sys.argv[0]).name, *arguments()),
    )


def arguments() -> tuple[str, ...]:
    """Return the command's arguments, absolute paths made relative: they mean nothing on other machines."""
    return tuple(os.path.relpath(argument) if Path(argument).is_absolute() else argument for argument in sys.argv[1:])
