"""Conditions of a measurement: machine, software versions, threads, load, date and command."""

import os
import subprocess
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

    commit: str | None = None
    """Commit of this project's sources, with `-dirty` if they were changed; `None` outside a git checkout."""


def current_conditions(threads: int) -> Conditions:
    """Return the conditions of a run that starts now with so many threads per engine."""
    return Conditions(
        machine=describe(),
        versions=installed_versions(_DISTRIBUTIONS),
        threads=threads,
        load_average=os.getloadavg() if hasattr(os, "getloadavg") else None,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=(Path(sys.argv[0]).name, *arguments()),
        commit=_source_commit(),
    )


def _source_commit() -> str | None:
    """Return the commit of the checkout that this module lies in, `None` if it lies in none."""
    folder = Path(__file__).parent
    describe_commit = ("git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")
    # An environment below another project's checkout holds untracked copies of these sources.
    for command in (("git", "ls-files", "--error-unmatch", Path(__file__).name), describe_commit):
        try:
            found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        if found.returncode:
            return None
    return found.stdout.strip()


def arguments() -> tuple[str, ...]:
    """Return the command's arguments, absolute paths made relative: they mean nothing on other machines."""
    return tuple(os.path.relpath(argument) if Path(argument).is_absolute() else argument for argument in sys.argv[1:])
