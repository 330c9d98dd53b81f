"""Measure what HTTP adds to a call of the model: latency at one caller, and processor time."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from bert_bench.serving.fleet import RunningServer
from bert_bench.serving.load import Plan, run_load
from bert_bench.serving.peer_throughput import Load, closed_loop
from bert_bench.serving.wire_formats import Request
from bert_bench.timing_statistics import summarize
from bert_runtime.model import Model

__all__ = ["measure_cpu", "measure_latency"]

_EMPTY = Request(name="empty", method="GET", path="/live")
"""A handler of the same server that does nothing, behind the same middleware."""

_WARM_UP_CALLS = 20
_PERCENTILES = ("p50_ms", "p99_ms")
_CPU_LOADS = (Load(texts=1, callers=1), Load(texts=1, callers=16), Load(texts=32, callers=1), Load(texts=32, callers=4))


def measure_latency(
    server: RunningServer, model: Model, texts: Sequence[str], *, seconds: int, rounds: int
) -> dict[str, Any]:
    """Compare the latency of one caller with an empty handler's and with that of the model in this process.

    In every round the caller alternates between the two routes; then the server is paused, and the model is called.

    Returns:
        Milliseconds: `request_p50_ms`, `empty_handler_p50_ms`, `model_p50_ms`, and `added_p50_ms`, the first without
        the other two; and p99 of each.
    """
    requests = [item for text in texts for item in (server.spec.wire_format.request([text]), _EMPTY)]
    samples: dict[str, list[list[float]]] = {"request": [], "empty_handler": [], "model": []}
    for _ in range(rounds):
        server.resume()
        answers = run_load(Plan(ports=[server.process.port], requests=requests, callers=1, seconds=seconds))
        server.pause()
        samples["request"].append(answers.named("embeddings")[_WARM_UP_CALLS:].tolist())
        samples["empty_handler"].append(answers.named("empty")[_WARM_UP_CALLS:].tolist())
        samples["model"].append(_call_ms(model, texts, seconds))
    server.resume()
    timings = {name: summarize(found) for name, found in samples.items()}
    found = {
        f"{name}_{key}": round(getattr(timing, key), 3) for name, timing in timings.items() for key in _PERCENTILES
    }
    added = timings["request"].p50_ms - timings["empty_handler"].p50_ms - timings["model"].p50_ms
    return {**found, "added_p50_ms": round(added, 3)}


def _call_ms(model: Model, texts: Sequence[str], seconds: float) -> list[float]:
    """Return the milliseconds of calls with one text."""
    milliseconds: list[float] = []
    end = time.perf_counter() + seconds
    for text in cycle(texts):
        start = time.perf_counter()
        if start > end:
            break
        model(text)
        milliseconds.append((time.perf_counter() - start) * 1e3)
    return milliseconds[_WARM_UP_CALLS:]


def measure_cpu(
    server: RunningServer,
    model: Model,
    texts: Sequence[str],
    *,
    seconds: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, dict[str, float]]:
    """Compare the server's processor time per text with that of the model in this process.

    Returns:
        Per load, milliseconds per text in the server and in this process, and their ratio.
    """
    found = {}
    for load in _CPU_LOADS:
        in_server, in_process = [], []
        for _ in range(rounds):
            server.resume()
            answers, cpu_s = closed_loop(server, load, texts, seconds)
            server.pause()
            in_server.append(cpu_s / answers.texts() * 1e3)
            in_process.append(_cpu_ms_per_text(model, texts, load.texts, seconds))
        server.resume()
        served, called = float(np.median(in_server)), float(np.median(in_process))
        ratio = float(np.median(np.divide(in_server, in_process)))
        found[load.name] = {
            "server_ms": round(served, 4), "in_process_ms": round(called, 4), "ratio": round(ratio, 3),
        }  # fmt: skip
        progress(f"processor time, {load.name}: {found[load.name]}")
    return found


def _cpu_ms_per_text(model: Model, texts: Sequence[str], size: int, seconds: float) -> float:
    """Return the processor milliseconds per text of calls with `size` texts."""
    batches = [list(texts[start : start + size]) for start in range(0, len(texts) - size + 1, size)]
    model(batches[0])
    calls, begin, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        batch = batches[calls % len(batches)]
        model(batch[0] if size == 1 else batch)
        calls += 1
    return (time.process_time() - begin) / (calls * size) * 1e3
