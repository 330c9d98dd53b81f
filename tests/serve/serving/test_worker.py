"""The worker: what it joins, and what a failure reaches."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_serve.serving.token_queue import Job, TokenQueue
from bert_serve.serving.worker import Worker


class Runner:
    """Computes the length of each sequence; fails on those of 13 tokens; waits for `free` first."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.sizes: list[int] = []

    def run_encodings(self, encodings: Sequence[Any]) -> list[FloatArray]:
        self.free.wait(10)
        self.sizes.append(len(encodings))
        if any(len(encoding) == 13 for encoding in encodings):
            raise BundleError("thirteen")
        return [np.array([len(encoding)], dtype=np.float32) for encoding in encodings]


def put(waiting: TokenQueue, job: Job) -> None:
    with waiting.reserve(job.num_waiting_tokens) as reservation:
        waiting.put(job, reservation)


def run(*requests: Sequence[int]) -> tuple[list[Job], Runner]:
    """Run requests of sequences with these numbers of tokens; all but the first wait while that one is computed."""
    runner, waiting, done = Runner(), TokenQueue(10_000, 20_000, 10_000, 10.0), threading.Semaphore(0)
    jobs = [
        Job([range(n) for n in lengths], time.perf_counter() + 10, lambda job: done.release())  # type: ignore[misc]
        for lengths in requests
    ]
    worker = Worker(runner, waiting, lambda count: None)
    for job in jobs:
        put(waiting, job)
        while job is jobs[0] and waiting.num_tokens:
            time.sleep(0.001)
    runner.free.set()
    for _ in jobs:
        assert done.acquire(timeout=10)
    waiting.close()
    worker.join(10)
    return jobs, runner


def test_requests_that_arrive_meanwhile_are_joined() -> None:
    jobs, runner = run([5], [6, 7], [8])
    assert runner.sizes == [1, 3]
    assert [[float(array[0]) for array in job.outputs if array is not None] for job in jobs] == [[5], [6, 7], [8]]


def test_a_failure_reaches_only_the_request_that_causes_it() -> None:
    jobs, _ = run([5], [6, 13], [8], [9])
    assert [str(job.error) for job in jobs] == ["None", "thirteen", "None", "None"]
    assert [job.outputs[0] for job in (jobs[2], jobs[3])] == [8, 9]


def throughput(take_tokens: int, *, idle_s: float = 0.0) -> float:
    """Return the throughput that is known after a request of 50 tokens, which comes once its room was reserved."""
    runner, waiting, done = Runner(), TokenQueue(10_000, take_tokens, 10_000, 10.0), threading.Event()
    runner.free.set()
    with waiting.reserve(50) as reservation:
        worker = Worker(runner, waiting, lambda count: None)
        time.sleep(idle_s)
        waiting.put(Job([range(50)], time.perf_counter() + 10, lambda job: done.set()), reservation)  # type: ignore[list-item]
    assert done.wait(10)
    waiting.close()
    worker.join(10)
    return waiting.tokens_per_s


def test_the_throughput_is_measured() -> None:
    assert throughput(take_tokens=50) > 50


def test_a_take_that_is_not_full_says_nothing_about_the_throughput() -> None:
    """It lasts as long as the model's latency, however many tokens could have been computed beside its own."""
    assert throughput(take_tokens=51) == 0


def test_time_without_work_does_not_count_while_room_is_reserved() -> None:
    assert throughput(take_tokens=50, idle_s=0.5) > 50 / 0.4
