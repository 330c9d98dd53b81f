"""Where and when numbers were measured: without that, they mean nothing to the next reader."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bert_runtime.machine import describe, installed_versions

__all__ = ["Conditions", "current_conditions"]

_DISTRIBUTIONS = ("bert-export", "onnxruntime", "onnxruntime-gpu", "torch", "numpy", "tokenizers")


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


def current_conditions(threads: int) -> Conditions:
    """The conditions of a run that starts now."""
    return Conditions(
        machine=describe(),
        versions=installed_versions(_DISTRIBUTIONS),
        threads=threads,
        load_average=os.getloadavg() if hasattr(os, "getloadavg") else None,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(sys.argv),
    )
