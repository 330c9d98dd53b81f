"""Programs that would end the test's own process if a kernel fails, run in another one."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from .hostile_graphs import hostile_graphs

_FOLDER = Path(__file__).parent


def run_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_seconds: float = 600
) -> "subprocess.CompletedProcess[str]":
    """Run a command with further environment variables."""
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=timeout_seconds)


def run_program(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a Python program of this folder."""
    return run_child([sys.executable, "-W", "ignore", str(_FOLDER / name), *arguments], environment)


def outcomes_of_hostile_graphs(library: Path, environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the error of each hostile graph that a kernel library runs, or `None` where it runs.

    Fails the test where the process does not come to an end.
    """
    result = run_program("run_hostile_graphs.py", str(library), environment=environment)
    outcomes = dict(map(json.loads, result.stdout.splitlines()))
    if result.returncode:
        last = [*outcomes][-1:]
        pytest.fail(f"exit status {result.returncode} in the graph after {last}: {result.stderr[-8000:]}")
    return outcomes


def unexpected_outcomes(outcomes: Mapping[str, str | None]) -> dict[str, tuple[str | None, str | None]]:
    """Return the graphs that ended otherwise than expected: (expected, found)."""
    expected = {name: graph.error for name, graph in hostile_graphs().items()}
    return {
        name: (expected[name], found)
        for name, found in outcomes.items()
        if (found is None) != (expected[name] is None) or (expected[name] or "") not in (found or "")
    }
