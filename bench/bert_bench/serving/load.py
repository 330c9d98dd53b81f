"""Load on a server by locust, and what the callers saw."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert_bench.errors import BenchError
from bert_bench.serving.wire_formats import Request

__all__ = ["Answers", "Plan", "run_load"]

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_GRACE_S = 60
"""Time limit of locust's start and end, besides the run itself."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Load that callers send. Field names are JSON keys."""

    ports: Sequence[int]
    """Ports on the loopback interface; callers are dealt out to them in turn."""
    requests: Sequence[Request]
    """Each caller goes through them in order, again and again."""
    callers: int
    seconds: int
    """Duration, from the first caller's start."""
    rate_per_caller: float | None = None
    """Requests per second of each caller; `None`: the next one follows the answer."""
    max_requests: int | None = None
    """Requests after which the run ends, of all callers together."""
    spread: bool = True
    """Whether callers start at different requests."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers to the requests, in the order of their arrival."""

    requests: Sequence[Request]
    index: npt.NDArray[np.int64]
    """Index of each in `requests`."""
    start_s: npt.NDArray[np.float64]
    """Seconds since the epoch."""
    latency_ms: npt.NDArray[np.float64]
    status: npt.NDArray[np.int64]
    """HTTP status; 0 if there was no answer."""
    client_cpu_s: float
    """Processor seconds of locust, its start included."""

    @cached_property
    def succeeded(self) -> npt.NDArray[np.bool_]:
        """Whether each was answered with 200."""
        return np.asarray(self.status == 200)

    @cached_property
    def end_s(self) -> npt.NDArray[np.float64]:
        """When each answer was there, in seconds since the epoch."""
        return self.start_s + self.latency_ms / 1e3

    def texts(self) -> int:
        """Return the number of texts that were answered."""
        counts = np.array([request.texts for request in self.requests])
        return int(counts[self.index[self.succeeded]].sum())

    def named(self, name: str) -> npt.NDArray[np.float64]:
        """Return the latencies in ms of the successful requests with a name."""
        chosen = np.array([request.name == name for request in self.requests])[self.index] & self.succeeded
        return self.latency_ms[chosen]

    def per_second(self, skip_s: float = 0.0) -> float:
        """Return the successful requests per second, without those that ended in the first seconds.

        The last answer ends the window, so that requests cut off by the run's end do not count as missing.
        """
        first = self.start_s.min() + skip_s
        ends = self.end_s[self.succeeded & (self.end_s >= first)]
        return float(ends.size / (ends.max() - first)) if ends.size > 1 else 0.0

    def statuses(self) -> dict[str, int]:
        """Return how many answers had each status."""
        values, counts = np.unique(self.status, return_counts=True)
        return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def run_load(plan: Plan) -> Answers:
    """Run locust in a process of its own.

    Raises:
        BenchError: locust failed, or no request was answered.
    """
    with tempfile.TemporaryDirectory(prefix="bert-bench-locust-") as name:
        folder = Path(name)
        output, plan_file = folder / "answers.json", folder / "plan.json"
        urls = [f"http://127.0.0.1:{port}" for port in plan.ports]
        plan_file.write_text(json.dumps({**asdict(plan), "urls": urls, "output": str(output)}), encoding="utf-8")
        command = [
            sys.executable, "-P", "-m", "locust", "--locustfile", str(_LOCUSTFILE), "--headless",
            "--only-summary",
            "--users", str(plan.callers), "--spawn-rate", str(plan.callers), "--run-time", f"{plan.seconds}s",
            "--exit-code-on-error", "0", "--loglevel", "ERROR",
        ]  # fmt: skip
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        try:
            done = subprocess.run(
                command, env={**variables, "BERT_BENCH_PLAN": str(plan_file)}, cwd=folder, capture_output=True,
                text=True, timeout=plan.seconds + _GRACE_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"locust did not run to its end: {error}") from None
        if done.returncode or not output.is_file():
            raise BenchError(f"locust failed with exit status {done.returncode}: {done.stderr.strip()[-500:]}")
        found = json.loads(output.read_text(encoding="utf-8"))
    if not found["answers"]:
        raise BenchError(f"locust sent no request: {done.stderr.strip()[-500:]}")
    index, start_s, latency_ms, status = zip(*found["answers"], strict=True)
    return Answers(
        requests=plan.requests, index=np.array(index), start_s=np.array(start_s), latency_ms=np.array(latency_ms),
        status=np.array(status), client_cpu_s=found["cpu_s"],
    )  # fmt: skip
