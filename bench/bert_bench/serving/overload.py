"""A server at twice its capacity: what is answered, how fast, what is refused, and what is left afterwards."""

import time
from collections.abc import Callable, Sequence
from math import ceil
from threading import Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_bench.serving.fleet import RunningServer
from bert_bench.serving.load import Answers, Plan, run_load
from bert_bench.serving.peer_throughput import Load, closed_loop, requests_of
from bert_bench.serving.server_process import ServerProcess, send

__all__ = ["MemorySamples", "measure_overload"]

_TEXTS = 32
"""Texts per request. With fewer, two cores cannot both serve and send twice what is served."""

_CAPACITY_CALLERS = 8
_OVERLOAD = 2.0
_RAMP_S = 5.0
"""Seconds until the queue is full, which do not count."""

_SPARE_S = 0.5
"""Room in a caller's period beyond the longest wait, so that no caller falls behind."""

_RECOVERY_LIMIT_S = 10.0
_PROBE_S = 0.02
_SAMPLE_S = 1.0


class MemorySamples:
    """Resident memory of a server, sampled each second in a thread while the block runs, in MB."""

    def __init__(self, process: ServerProcess) -> None:
        self.megabytes: list[float] = []
        self._process = process
        self._done = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while True:
            self.megabytes.append(round(self._process.resident_bytes() / 1e6, 1))
            if self._done.wait(_SAMPLE_S):
                return

    def __enter__(self) -> "MemorySamples":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def measure_overload(
    server: RunningServer,
    texts: Sequence[str],
    *,
    seconds: int,
    max_queue_ms: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure the capacity in a closed loop, then send twice as much in an open one.

    Args:
        server: the server.
        texts: texts of the requests.
        seconds: duration of the overload.
        max_queue_ms: the server's longest wait.
        progress: called with a line for each step.
    """
    calm_s = max(2, min(10, seconds // 4))
    unloaded, _ = closed_loop(server, Load(texts=_TEXTS, callers=1), texts, calm_s)
    busy, _ = closed_loop(server, Load(texts=_TEXTS, callers=_CAPACITY_CALLERS), texts, calm_s)
    capacity = busy.per_second(1.0)
    unloaded_p50, unloaded_p99 = _percentiles(unloaded.latency_ms[unloaded.succeeded])
    progress(f"capacity {capacity:.1f} requests of {_TEXTS} texts per second; unloaded p99 {unloaded_p99:.1f} ms")
    period_s = max_queue_ms / 1e3 + 2 * unloaded_p99 / 1e3 + _SPARE_S
    callers = ceil(_OVERLOAD * capacity * period_s)
    plan = Plan(
        ports=[server.process.port], requests=requests_of(texts, _TEXTS, server.spec.wire_format), callers=callers,
        seconds=seconds, rate_per_caller=_OVERLOAD * capacity / callers,
    )  # fmt: skip
    with MemorySamples(server.process) as memory:
        answers = run_load(plan)
    recovery_s = _recovery_s(server, texts, float(answers.start_s.max()), 2 * unloaded_p99)
    result = {
        "texts_per_request": _TEXTS,
        "max_queue_ms": max_queue_ms,
        "seconds": seconds,
        "callers": callers,
        "capacity_per_s": round(capacity, 2),
        "unloaded_p50_ms": round(unloaded_p50, 2),
        "unloaded_p99_ms": round(unloaded_p99, 2),
        **_overload_figures(answers, capacity),
        "recovery_s": recovery_s,
        "resident_mb": memory.megabytes,
    }
    progress(f"overload: { {key: value for key, value in result.items() if key != 'resident_mb'} }")
    return result


def _overload_figures(answers: Answers, capacity: float) -> dict[str, Any]:
    """Return rates and latencies after the ramp."""
    counted = answers.start_s > answers.start_s.min() + _RAMP_S
    window_s = float(np.ptp(answers.start_s[counted])) if counted.any() else 0.0
    admitted = answers.latency_ms[counted & answers.succeeded]
    refused = answers.latency_ms[counted & (answers.status == 429)]
    goodput = answers.per_second(_RAMP_S)
    admitted_p50, admitted_p99 = _percentiles(admitted)
    return {
        "offered_per_s": round(int(counted.sum()) / window_s, 2) if window_s else 0.0,
        "goodput_per_s": round(goodput, 2),
        "goodput_of_capacity": round(goodput / capacity, 3),
        "statuses": answers.statuses(),
        "admitted_p50_ms": round(admitted_p50, 1),
        "admitted_p99_ms": round(admitted_p99, 1),
        "refused_p50_ms": round(_percentiles(refused)[0], 1),
        "refused_p99_ms": round(_percentiles(refused)[1], 1),
        "client_cpu_s_per_s": round(answers.client_cpu_s / float(np.ptp(answers.end_s)), 3),
    }


def _percentiles(milliseconds: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return p50 and p99; zeros where there is no sample."""
    if not milliseconds.size:
        return 0.0, 0.0
    p50, p99 = np.percentile(milliseconds, (50, 99))
    return float(p50), float(p99)


def _recovery_s(server: RunningServer, texts: Sequence[str], end_s: float, limit_ms: float) -> float | None:
    """Return the seconds from the end of the overload to an answer within `limit_ms`; `None` if there is none."""
    request = server.spec.wire_format.request(texts[:_TEXTS])
    while time.time() < end_s + _RECOVERY_LIMIT_S:
        start = time.time()
        status, _ = send(server.process.port, request)
        if status == 200 and (time.time() - start) * 1e3 <= limit_ms:
            return round(time.time() - end_s, 3)
        time.sleep(_PROBE_S)
    return None
