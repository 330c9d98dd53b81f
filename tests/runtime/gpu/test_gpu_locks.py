"""Locks of GPUs: a capture waits for batches on every GPU, and they wait for it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from bert_runtime.gpu import gpu_locks
from bert_runtime.gpu.gpu_locks import capture_lock, gpu_lock


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_locks, "_locks", {})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def hold(index: int, entered: Event, leave: Event) -> None:
    with gpu_lock(index):
        entered.set()
        leave.wait(10)


def test_a_capture_waits_for_batches_on_other_gpus(pool: ThreadPoolExecutor) -> None:
    entered, leave, captured = Event(), Event(), Event()

    def capture() -> None:
        with capture_lock():
            captured.set()

    batch = pool.submit(hold, 1, entered, leave)
    assert entered.wait(10)
    capturing = pool.submit(capture)
    assert not captured.wait(0.1)
    leave.set()
    batch.result(10)
    capturing.result(10)
    assert captured.is_set()


@pytest.mark.parametrize("index", [0, 1])
def test_batches_wait_for_a_capture(pool: ThreadPoolExecutor, index: int) -> None:
    """Also those on a GPU that was not used before."""
    with gpu_lock(0):
        pass
    entered, leave = Event(), Event()
    with capture_lock():
        batch = pool.submit(hold, index, entered, leave)
        assert not entered.wait(0.1)
    assert entered.wait(10)
    leave.set()
    batch.result(10)


def test_gpus_run_batches_at_the_same_time(pool: ThreadPoolExecutor) -> None:
    leave = Event()
    entered = [Event(), Event()]
    batches = [pool.submit(hold, index, entered[index], leave) for index in range(2)]
    assert all(event.wait(10) for event in entered)
    leave.set()
    for batch in batches:
        batch.result(10)
