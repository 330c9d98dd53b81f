"""Concurrent clients share the texts, stop in time, and raise errors."""

from threading import get_ident
from time import sleep

import pytest

from bert_bench.workers.concurrent_clients import time_concurrent_calls
from bert_runtime.tasks import TextInput

TEXTS = [TextInput(str(i)) for i in range(3)]


def test_every_client_calls_and_every_text_is_read() -> None:
    threads, read = set(), []

    def predict(text: TextInput) -> None:
        threads.add(get_ident())
        read.append(text.text)
        sleep(0.002)

    samples, seconds = time_concurrent_calls(predict, TEXTS, 3, 0.1)
    assert len(threads) == 3
    assert {"0", "1", "2"} == set(read)
    assert len(samples) == len(read)
    assert min(samples) >= 2
    assert 0.1 <= seconds < 2


def test_error_of_one_client_stops_all() -> None:
    def predict(text: TextInput) -> None:
        raise RuntimeError("Already borrowed")

    with pytest.raises(RuntimeError, match="Already borrowed"):
        time_concurrent_calls(predict, TEXTS, 4, 30.0)
