"""Which batches a packed graph takes, and that its session opens when one comes."""

import threading
from typing import Any

import numpy as np
import pytest

from bert_runtime import BundleError
from bert_runtime.packed import PackedBeside, takes_packed
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch


def batch(*lengths: int, left: bool = False) -> Batch:
    mask = (np.arange(max(lengths))[None, :] < np.array(lengths)[:, None]).astype(np.int64)
    mask = mask[:, ::-1] if left else mask
    return Batch(np.ones_like(mask), mask, np.zeros_like(mask))


class FakeSession:
    """Answers with its name, and counts."""

    def __init__(self, name: float) -> None:
        self.threads, self.place, self.name, self.runs = 1, "cuda:0", name, 0

    def run(self, batch: Batch) -> FloatArray:
        self.runs += 1
        return np.full((len(batch.input_ids), 1), self.name, dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "packed"),
    [
        (batch(128, *[10] * 31), True),
        (batch(*[128] * 32), False),
        (batch(128, *[120] * 31), False),
        (batch(128, *[10] * 6), False),  # small enough for a CUDA graph
        (batch(128, *[10] * 31, left=True), False),
    ],
    ids=["mixed", "full", "nearly full", "small", "left-padded"],
)
def test_batches_with_much_padding_at_their_end_are_packed(given: Batch, packed: bool) -> None:
    assert takes_packed(given) is packed
    padded, other = FakeSession(1.0), FakeSession(2.0)
    opened: list[FakeSession] = []

    def open_packed() -> Any:
        opened.append(other)
        return other

    session = PackedBeside(padded, open_packed)  # type: ignore[arg-type] # has what is used
    assert (session.threads, session.place) == (1, "cuda:0")
    for _ in range(2):
        assert session.run(given).tolist() == [[2.0 if packed else 1.0]] * len(given.input_ids)
    assert (padded.runs, other.runs, len(opened)) == ((0, 2, 1) if packed else (2, 0, 0))


def test_the_packed_session_is_opened_once() -> None:
    other, opened = FakeSession(2.0), []
    entered = threading.Barrier(4)

    def open_packed() -> Any:
        opened.append(1)
        return other

    session = PackedBeside(FakeSession(1.0), open_packed)  # type: ignore[arg-type] # has what is used

    def call() -> None:
        entered.wait(timeout=30)
        session.run(batch(128, *[10] * 31))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (len(opened), other.runs) == (1, 4)


def test_a_packed_graph_that_is_gone_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> Any:
        raise BundleError("model.fp16.packed.onnx: the manifest names this file, and it is missing")

    padded = FakeSession(1.0)
    session = PackedBeside(padded, gone)  # type: ignore[arg-type] # has what is used
    for _ in range(2):
        assert session.run(batch(128, *[10] * 31)).tolist() == [[1.0]] * 32
    assert [record.getMessage() for record in caplog.records] == [
        "model.fp16.packed.onnx: the manifest names this file, and it is missing; going on with padding"
    ]
