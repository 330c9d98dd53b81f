"""A soak: threads that call one model with texts of every kind for minutes, and leave nothing behind."""

import gc
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import InputError, Model, load

SECONDS = float(os.environ.get("BERT_EXPORT_SOAK_SECONDS", "300"))
THREADS = 8
TOLERANCE = 1e-4
"""Of scores, between a text alone and in a batch of others."""
MAX_GROWTH_MIB = 32.0
"""Of resident memory after the warm-up."""

_ODD = (
    "",
    " ",
    "\n\n",
    "\0",
    "a\u0301" * 40,
    "🙂" * 30,
    "\u202e abc",
    "中文字" * 20,
    "x" * 3000,
    "hello " * 2000,
    "\ufffd\u200b",
)


def _texts() -> list[str]:
    """Return 200 texts, from short to far beyond the maximum length, odd ones among them."""
    numbers = random.Random(0)
    words = ("hello", "there", "bye", "card", "where", "is", "my", "question", "the", "of", "12", "3.5", "!", "?")
    return [*_ODD, *(" ".join(numbers.choices(words, k=numbers.choice((1, 5, 20, 100)))) for _ in range(189))]


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _same(found: Any, expected: Any) -> bool:
    return found.label == expected.label and abs(found.score - expected.score) <= TOLERANCE


def _call(
    model: Model, texts: list[str], expected: list[Any], stop: threading.Event, seed: int, wrong: list[str]
) -> None:
    """Call the model in every way until `stop` is set, and note answers that differ from the first ones."""
    numbers = random.Random(seed)
    while not stop.is_set():
        chosen = [numbers.randrange(len(texts)) for _ in range(numbers.choice((1, 1, 2, 7, 40)))]
        inputs = [texts[i] for i in chosen]
        way = numbers.randrange(3)
        if way == 0:
            found = [model(text) for text in inputs]
        elif way == 1:
            found = model(inputs)
        else:
            found = list(model.stream(iter(inputs)))
        wrong += [texts[i][:40] for i, answer in zip(chosen, found, strict=True) if not _same(answer, expected[i])]
        with pytest.raises(InputError):
            model([*inputs, "\ud800"])


def _soak(model: Model, texts: list[str], expected: list[Any], seconds: float) -> list[str]:
    """Call the model from `THREADS` threads, and return what went wrong."""
    stop, wrong = threading.Event(), list[str]()

    def guarded(seed: int) -> None:
        try:
            _call(model, texts, expected, stop, seed, wrong)
        except BaseException as error:  # a thread's error would be lost
            wrong.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not wrong:
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 120)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory and open files from /proc")
@pytest.mark.parametrize("precision", ["int8"])
def test_minutes_of_calls_change_no_answer_and_leak_nothing(classifier_bundle: Path, precision: str) -> None:
    """The duration in seconds is `BERT_EXPORT_SOAK_SECONDS`, five minutes by default."""
    texts = _texts()
    model = load(classifier_bundle, precision=precision)
    expected = [model(text) for text in texts]
    assert not _soak(model, texts, expected, min(20.0, SECONDS / 4))  # the allocator's arenas fill
    gc.collect()
    before = _resident_mib(), threading.active_count(), _open_files()
    assert not _soak(model, texts, expected, SECONDS)
    gc.collect()
    growth_mib = _resident_mib() - before[0]
    assert growth_mib < MAX_GROWTH_MIB, f"{growth_mib:.1f} MiB"
    assert (threading.active_count(), _open_files()) == before[1:]
