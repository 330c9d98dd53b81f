"""Requests per second of all servers, in rounds that are interleaved between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bert_bench.serving.fleet import Fleet, RunningServer
from bert_bench.serving.load import Answers, Plan, run_load
from bert_bench.serving.server_process import send
from bert_bench.serving.wire_formats import Request, WireFormat
from bert_bench.timing_statistics import rotated
from bert_runtime.numerics import FloatArray
from bert_runtime.similarity import cosine

__all__ = ["LOADS", "Load", "agreement", "closed_loop", "measure_fleet", "requests_of", "summarize_rounds"]

_WARM_UP_S = 1.0
"""Seconds at the beginning of a round: connections are opened, and shapes met for the first time. Throughput counts
requests that end later, latencies those that begin later."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A closed loop: each caller sends its next request once the last one is answered."""

    texts: int
    """Texts per request."""
    callers: int

    @property
    def name(self) -> str:
        """The key in results."""
        return f"{self.texts}x{self.callers}"


LOADS = (Load(texts=1, callers=1), Load(texts=1, callers=16), Load(texts=32, callers=4))


def requests_of(texts: Sequence[str], size: int, wire_format: WireFormat) -> list[Request]:
    """Return requests that embed all texts, `size` at a time."""
    return [wire_format.request(texts[start : start + size]) for start in range(0, len(texts) - size + 1, size)]


def agreement(server: RunningServer, texts: Sequence[str], reference: FloatArray) -> dict[str, float]:
    """Return the cosine similarity of a server's embeddings with `reference`, float32 [N, H]: mean and minimum."""
    status, answer = send(server.process.port, server.spec.wire_format.request(texts))
    if status != 200:
        return {}
    found = cosine(server.spec.wire_format.embeddings(answer), reference).astype(np.float64)
    return {"mean": round(float(found.mean()), 6), "min": round(float(found.min()), 6)}


def closed_loop(server: RunningServer, load: Load, texts: Sequence[str], seconds: int) -> tuple[Answers, float]:
    """Put a closed loop on a server; return the answers, and the server's processor seconds meanwhile."""
    requests = requests_of(texts, load.texts, server.spec.wire_format)
    plan = Plan(ports=[server.process.port], requests=requests, callers=load.callers, seconds=seconds)
    begin = server.process.cpu_seconds()
    answers = run_load(plan)
    return answers, server.process.cpu_seconds() - begin


def summarize_rounds(rounds: Sequence[tuple[Answers, float]]) -> dict[str, Any]:
    """Return medians over rounds of `closed_loop`, latencies pooled over them, and how many requests failed.

    Processor time is that of whole rounds, warm-up included.
    """
    per_second = [answers.per_second(_WARM_UP_S) for answers, _ in rounds]
    latencies = np.concatenate([_warm_latencies_ms(answers) for answers, _ in rounds])
    texts = sum(answers.texts() for answers, _ in rounds)
    if not texts:
        return {"failed": sum(answers.status.size for answers, _ in rounds), "requests_per_s": 0.0}
    p50, p99 = np.percentile(latencies, (50, 99))
    return {
        "requests_per_s": round(median(per_second), 2),
        "rounds": [round(value, 2) for value in per_second],
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "server_cpu_ms_per_text": round(sum(cpu_s for _, cpu_s in rounds) / texts * 1e3, 4),
        "client_cpu_s_per_s": round(
            sum(answers.client_cpu_s for answers, _ in rounds)
            / sum(float(np.ptp(answers.end_s)) or 1.0 for answers, _ in rounds),
            3,
        ),
        "failed": int(sum((~answers.succeeded).sum() for answers, _ in rounds)),
    }


def _warm_latencies_ms(answers: Answers) -> FloatArray:
    """Return the latencies of the successful requests that began after the warm-up; of all in a round that short."""
    warm = answers.succeeded & (answers.start_s >= answers.start_s.min() + _WARM_UP_S)
    return answers.latency_ms[warm if warm.any() else answers.succeeded]


def measure_fleet(
    fleet: Fleet,
    texts: Sequence[str],
    reference: FloatArray,
    *,
    seconds: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Measure every server of a fleet under every load.

    Args:
        fleet: the servers.
        texts: texts of the requests.
        reference: embeddings of the first texts, to compare the servers' with.
        seconds: duration of each load in each round.
        rounds: rounds; each starts with another server.
        progress: called with a line for each server and round.

    Returns:
        Per server, what `summarize_rounds` returns for each load, its agreement with the reference, its start and its
        memory.
    """
    samples: Mapping[tuple[str, str], list[tuple[Answers, float]]]
    samples = {(name, load.name): [] for name in fleet.servers for load in LOADS}
    similarity = {}
    for turn in range(rounds):
        for name in rotated(list(fleet.servers), turn):
            with fleet.only(name) as server:
                similarity[name] = agreement(server, texts[: len(reference)], reference)
                for load in LOADS:
                    samples[name, load.name].append(closed_loop(server, load, texts, seconds))
            found = {load.name: round(samples[name, load.name][-1][0].per_second(_WARM_UP_S), 1) for load in LOADS}
            progress(f"round {turn + 1}: {name}: requests per second {found}")
    return {
        name: {
            "first_answer_s": round(server.first_answer_s, 3),
            "resident_mb": round(server.process.resident_bytes() / 1e6, 1),
            "cosine_with_fp32": similarity[name],
            "loads": {load.name: summarize_rounds(samples[name, load.name]) for load in LOADS},
        }
        for name, server in fleet.servers.items()
    }
