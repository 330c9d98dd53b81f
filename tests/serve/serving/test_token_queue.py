"""The queue of requests: turns, bounds, deadlines."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from bert_serve.errors import QueueFullError, QueueTimeoutError
from bert_serve.serving.token_queue import Job, TokenQueue


def job(*lengths: int, wait_s: float = 10.0) -> Job:
    """Return a job of sequences with these numbers of tokens."""
    sequences: Any = [range(length) for length in lengths]
    return Job(sequences, time.perf_counter() + wait_s, finished.append)


finished: list[Job] = []


@pytest.fixture(autouse=True)
def _no_finished_jobs() -> None:
    finished.clear()


def queue(max_tokens: int = 1000, take_tokens: int = 40, max_wait_s: float = 10.0) -> TokenQueue:
    return TokenQueue(max_tokens, take_tokens, 20, max_wait_s)


def put(waiting: TokenQueue, request: Job) -> None:
    """Reserve room for a job and put it there, as for texts that are tokenized at once."""
    with waiting.reserve(request.num_waiting_tokens) as reservation:
        waiting.put(request, reservation)


def taken(found: Sequence[tuple[Job, range]] | None, jobs: Sequence[Job]) -> list[tuple[int, list[int]]]:
    """Return what was taken as indices of jobs and of their sequences."""
    assert found is not None
    return [(jobs.index(job), list(indices)) for job, indices in found]


def test_all_waiting_requests_are_taken_together() -> None:
    jobs, waiting = [job(5), job(5, 5), job(5)], queue()
    for request in jobs:
        put(waiting, request)
    assert taken(waiting.take(), jobs) == [(0, [0]), (1, [0, 1]), (2, [0])]
    assert waiting.num_tokens == 0


def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    jobs, waiting = [job(*[10] * 9), job(10)], queue()
    for request in jobs:
        put(waiting, request)
    assert taken(waiting.take(), jobs) == [(0, [0, 1]), (1, [0]), (0, [2])]
    assert taken(waiting.take(), jobs) == [(0, [3]), (0, [4, 5]), (0, [6])]


def test_a_sequence_longer_than_a_turn_is_taken_alone() -> None:
    jobs, waiting = [job(500, 500)], queue()
    put(waiting, jobs[0])
    assert taken(waiting.take(), jobs) == [(0, [0])]
    assert waiting.num_tokens == 500


def test_more_tokens_than_the_bound_are_refused() -> None:
    waiting = queue(max_tokens=100)
    for tokens in (40, 40):
        put(waiting, job(tokens))
    with pytest.raises(QueueFullError, match="expected at most 100 waiting tokens, found 80 and this request's 21"):
        put(waiting, job(21))


def test_a_long_request_leaves_room_for_others() -> None:
    jobs, waiting = [job(*[10] * 100), job(30), job(20)], queue(max_tokens=100, take_tokens=10)
    for request in jobs:  # the first counts as 50
        put(waiting, request)
    assert waiting.num_tokens == 1050
    with pytest.raises(QueueFullError, match="found 1,050 and this request's 1"):
        put(waiting, job(1))
    waiting.cancel(jobs[1])
    put(waiting, job(30))
    while waiting.num_tokens:
        waiting.take()
    put(waiting, job(50))  # as much as before there was a long one
    put(waiting, job(50))


def test_a_request_that_would_start_too_late_is_refused_at_once() -> None:
    waiting = queue(max_tokens=10_000, max_wait_s=1.0)
    waiting.tokens_per_s = 10.0
    for request in (job(10), job(*[10] * 50), job(*[10] * 50)):  # 10 tokens and two turns of 20 come before the next
        put(waiting, request)
    with pytest.raises(QueueFullError, match="would wait 4000 ms until its start; expected at most 1000 ms") as caught:
        put(waiting, job(1))
    assert caught.value.retry_after_s == pytest.approx(4.0)


def test_a_request_that_fits_into_the_next_run_is_never_refused() -> None:
    """Whatever the measured throughput, which the first run of a busy machine understates."""
    waiting = queue(max_wait_s=1.0)
    waiting.tokens_per_s = 0.1
    for request in (job(10), job(10), job(10)):
        put(waiting, request)


def test_a_request_that_waited_too_long_fails_and_others_do_not() -> None:
    jobs, waiting = [job(5, wait_s=-1), job(5)], queue()
    for request in jobs:
        put(waiting, request)
    assert taken(waiting.take(), jobs) == [(1, [0])]
    assert finished == [jobs[0]]
    assert isinstance(jobs[0].error, QueueTimeoutError)


def test_work_of_a_client_that_has_gone_is_dropped() -> None:
    jobs, waiting = [job(*[10] * 9), job(10)], queue()
    put(waiting, jobs[0])
    waiting.take()
    put(waiting, jobs[1])
    waiting.cancel(jobs[0])
    assert waiting.num_tokens == 10  # at once, before the worker takes more
    assert taken(waiting.take(), jobs) == [(1, [0])]
    assert waiting.num_tokens == 0


def test_a_closed_queue_gives_what_waits_and_takes_no_more() -> None:
    waiting = queue()
    put(waiting, job(5))
    waiting.close()
    with pytest.raises(QueueFullError, match="being replaced"):
        put(waiting, job(5))
    assert waiting.take()
    assert waiting.take() is None


def test_a_job_that_a_take_has_no_room_for_goes_on_with_the_next_take() -> None:
    jobs, waiting = [job(10), job(10), job(5), job(*[5] * 4), job(10)], queue()
    for request in jobs:
        put(waiting, request)
    waiting.take()
    assert taken(waiting.take(), jobs) == [(3, [3]), (4, [0])]


def test_texts_that_are_being_tokenized_count_as_waiting() -> None:
    waiting = queue(max_tokens=100)
    full = pytest.raises(QueueFullError, match="found 90 and this request's 20")
    with waiting.reserve(45), waiting.reserve(45), full:
        put(waiting, job(20))
    assert waiting.num_tokens == 0
    put(waiting, job(20))


def test_a_job_with_a_reservation_is_not_refused_for_those_that_came_later() -> None:
    waiting = queue(max_tokens=10_000, max_wait_s=1.0)
    waiting.tokens_per_s = 80.0
    with waiting.reserve(20) as first, waiting.reserve(20):
        with pytest.raises(QueueFullError, match="would wait"), waiting.reserve(20):
            pass
        request = job(20)
        waiting.put(request, first)
        assert waiting.num_tokens == 40
    assert waiting.num_tokens == 20
    assert taken(waiting.take(), [request]) == [(0, [0])]


def test_a_job_with_far_more_tokens_than_its_reservation_needs_room() -> None:
    waiting = queue(max_tokens=100)
    put(waiting, job(30))
    put(waiting, job(30))
    with waiting.reserve(10) as reservation, pytest.raises(QueueFullError, match="found 60 and this request's 60"):
        waiting.put(job(60), reservation)
    assert waiting.num_tokens == 60
