"""Many callers of one engine at the same time."""

from collections.abc import Callable, Sequence
from itertools import count
from threading import Barrier, Thread
from time import perf_counter
from typing import Any

from bert_runtime.tasks import TextInput

__all__ = ["time_concurrent_calls"]


def time_concurrent_calls(
    answer: Callable[[TextInput], Any], texts: Sequence[TextInput], callers: int, seconds: float
) -> tuple[list[float], float]:
    """Each of `callers` threads asks for one text after another until the time is over.

    Returns the milliseconds of every call and the seconds from the first to the last; raises the first error of any
    caller. Which text comes next is shared, so the callers read the same mix.
    """
    start = Barrier(callers + 1)
    numbers = count()  # one step of it is atomic
    taken: list[list[float]] = [[] for _ in range(callers)]
    errors: list[BaseException] = []
    deadline = 0.0

    def caller(samples: list[float]) -> None:
        start.wait()
        try:
            while perf_counter() < deadline and not errors:
                text = texts[next(numbers) % len(texts)]
                begin = perf_counter()
                answer(text)
                samples.append((perf_counter() - begin) * 1e3)
        except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
            errors.append(error)

    threads = [Thread(target=caller, args=(samples,), daemon=True) for samples in taken]
    for thread in threads:
        thread.start()
    begin = perf_counter()
    deadline = begin + seconds
    start.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [each for samples in taken for each in samples], perf_counter() - begin
