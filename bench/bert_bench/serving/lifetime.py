"""The life of a server process: its start, its memory, and whether two processes serve more than one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bert_bench.serving.fleet import ModelFolders, RunningServer, start_server
from bert_bench.serving.load import Plan, run_load
from bert_bench.serving.overload import MemorySamples
from bert_bench.serving.peer_throughput import LOADS, requests_of
from bert_bench.serving.server_spec import our_server
from bert_bench.serving.wire_formats import Request

__all__ = ["measure_memory", "measure_processes", "measure_starts"]

_WARM_UP = 10
"""Share (one in so many) of the requests sent before memory growth is counted: they meet the largest shapes."""


def measure_starts(models: ModelFolders, cache: Path, starts: int) -> dict[str, Any]:
    """Start our server several times; return the seconds from its start to the first answer."""
    seconds = []
    for _ in range(starts):
        with start_server(our_server(), models, cache, print) as server:
            seconds.append(round(server.first_answer_s, 3))
    return {"median": round(median(seconds), 3), "all": seconds}


def mixed_requests(server: RunningServer, texts: Sequence[str]) -> list[Request]:
    """Return requests of one to 32 texts, most of them short, some of a dozen sentences."""
    generator = np.random.default_rng(0)
    requests = []
    for _ in range(500):
        count = int(generator.choice((1, 1, 1, 1, 1, 2, 4, 8, 32)))
        joined = [" ".join(generator.choice(texts, int(generator.choice((1, 1, 1, 2, 4, 12))))) for _ in range(count)]
        requests.append(server.spec.wire_format.request(joined))
    return requests


def measure_memory(
    server: RunningServer, texts: Sequence[str], requests: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Send mixed requests from 16 callers; return the server's resident memory before, between and after."""
    mixed = mixed_requests(server, texts)
    at_start, statuses, after_warm_up = _resident_mb(server), dict[str, int](), 0.0
    with MemorySamples(server.process) as memory:
        for count in (requests // _WARM_UP, requests - requests // _WARM_UP):
            plan = Plan(ports=[server.process.port], requests=mixed, callers=16, seconds=300, max_requests=count)
            for status, number in run_load(plan).statuses().items():
                statuses[status] = statuses.get(status, 0) + number
            after_warm_up = after_warm_up or _resident_mb(server)
    at_end = _resident_mb(server)
    result = {
        "requests": sum(statuses.values()),
        "statuses": statuses,
        "resident_mb": {"first_answer": at_start, "after_a_tenth": after_warm_up, "end": at_end},
        "most_mb": max(memory.megabytes),
        "growth_after_a_tenth": round(at_end / after_warm_up - 1, 4),
    }
    progress(f"memory: {result}")
    return result


def _resident_mb(server: RunningServer) -> float:
    return round(server.process.resident_bytes() / 1e6, 1)


def measure_processes(
    models: ModelFolders,
    texts: Sequence[str],
    cache: Path,
    *,
    seconds: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compare one process of two threads with two processes of one thread each, between which callers are split.

    Returns:
        By number of processes and load, requests per second as the median over interleaved rounds, and the memory.
    """
    layouts = {1: our_server(), 2: our_server("int8", "--threads", "1")}
    found: dict[str, dict[str, list[float]]] = {str(count): {load.name: [] for load in LOADS[1:]} for count in layouts}
    memory = {}
    with ExitStack() as stack:
        servers = {
            count: [stack.enter_context(start_server(spec, models, cache, print)) for _ in range(count)]
            for count, spec in layouts.items()
        }
        for _ in range(rounds):
            for count, group in servers.items():
                ports = [server.process.port for server in group]
                for load in LOADS[1:]:
                    requests = requests_of(texts, load.texts, group[0].spec.wire_format)
                    plan = Plan(ports=ports, requests=requests, callers=load.callers, seconds=seconds)
                    found[str(count)][load.name].append(round(run_load(plan).per_second(1.0), 2))
                memory[str(count)] = round(sum(map(_resident_mb, group)), 1)
        progress(f"processes: {found}")
    return {
        count: {"requests_per_s": {name: median(values) for name, values in loads.items()}, "rounds": loads,
                "resident_mb": memory[count]}
        for count, loads in found.items()
    }  # fmt: skip
