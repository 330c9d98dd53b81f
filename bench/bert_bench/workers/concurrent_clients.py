"""Load from concurrent clients: several threads that call one engine at the same time."""

from collections.abc import Callable, Sequence
from itertools import count
from threading import Barrier, Thread
from time import perf_counter
from typing import Any

from bert_runtime.tasks import TextInput

__all__ = ["time_concurrent_calls"]


def time_concurrent_calls(
    predict: Callable[[TextInput], Any], texts: Sequence[TextInput], clients: int, duration_s: float
) -> tuple[list[float], float]:
    """Call `predict` from several threads, each with one text after another, until the time is over.

    Clients take the next text from a shared counter, so together they read `texts` in order, again and again.

    Args:
        predict: function of one text.
        texts: texts to predict, at least one.
        clients: number of threads.
        duration_s: seconds after which no call begins.

    Returns:
        Latencies of all calls in milliseconds, grouped by client, and the seconds from the start to the end of the last
        call.

    Raises:
        BaseException: the first error of any client; the others stop.
    """
    start = Barrier(clients + 1)
    text_numbers = count()  # next() is atomic
    samples_ms: list[list[float]] = [[] for _ in range(clients)]
    errors: list[BaseException] = []
    deadline = 0.0

    def client(samples: list[float]) -> None:
        start.wait()
        try:
            while perf_counter() < deadline and not errors:
                text = texts[next(text_numbers) % len(texts)]
                begin = perf_counter()
                predict(text)
                samples.append((perf_counter() - begin) * 1e3)
        except BaseException as error:  # a panic in the tokenizer's Rust code is not an Exception
            errors.append(error)

    threads = [Thread(target=client, args=(samples,), daemon=True) for samples in samples_ms]
    for thread in threads:
        thread.start()
    begin = perf_counter()
    deadline = begin + duration_s
    start.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [sample for samples in samples_ms for sample in samples], perf_counter() - begin
