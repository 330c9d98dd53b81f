"""Which form of a graph a batch takes, and that its session opens when one comes."""

import threading
from typing import Any

import numpy as np
import pytest

from bert_runtime import BundleError
from bert_runtime.errors import CudaUnavailableError, ForkedSessionError
from bert_runtime.gpu.padding_router import PaddingRouter, choose_padding
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch


def batch(*lengths: int, left: bool = False) -> Batch:
    mask = (np.arange(max(lengths))[None, :] < np.array(lengths)[:, None]).astype(np.int64)
    mask = mask[:, ::-1] if left else mask
    return Batch(np.ones_like(mask), mask, np.zeros_like(mask))


class FakeSession:
    """Answers with its name, and counts."""

    def __init__(self, name: float) -> None:
        self.threads, self.device_name, self.name, self.runs, self.forked = 1, "cuda:0", name, 0, False

    def check_process(self) -> None:
        if self.forked:
            raise ForkedSessionError("in the child")

    def run(self, batch: Batch) -> FloatArray:
        self.runs += 1
        return np.full((len(batch.input_ids), 1), self.name, dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (batch(128, *[10] * 31), "packed"),
        (batch(*[128] * 32), "unmasked"),
        (batch(128, *[120] * 31), "masked"),
        (batch(128, *[10] * 6), "masked"),  # small enough for a CUDA graph
        (batch(*[128] * 8), "masked"),
        (batch(128, *[10] * 31, left=True), "masked"),
    ],
    ids=["mixed", "full", "nearly full", "small", "small and full", "left-padded"],
)
def test_large_batches_take_the_form_made_for_their_padding(given: Batch, form: str) -> None:
    assert choose_padding(given) == form
    sessions = {name: FakeSession(number) for number, name in enumerate(("masked", "unmasked", "packed"))}
    opened: list[str] = []

    def opener(name: str) -> Any:
        def open_it() -> Any:
            opened.append(name)
            return sessions[name]

        return open_it

    others = {name: opener(name) for name in ("unmasked", "packed")}
    session = PaddingRouter(sessions["masked"], others)  # type: ignore[arg-type] # has what is used
    assert (session.threads, session.device_name) == (1, "cuda:0")
    for _ in range(2):
        assert session.run(given).tolist() == [[sessions[form].name]] * len(given.input_ids)
    assert {name: each.runs for name, each in sessions.items() if each.runs} == {form: 2}
    assert opened == ([] if form == "masked" else [form])


def test_a_form_that_is_not_there_is_run_masked() -> None:
    masked, packed = FakeSession(1.0), FakeSession(2.0)
    session = PaddingRouter(masked, {"packed": lambda: packed})  # type: ignore[arg-type, dict-item] # has what is used
    session.run(batch(*[128] * 32))
    assert (masked.runs, packed.runs) == (1, 0)


def test_the_packed_session_is_opened_once() -> None:
    other, opened = FakeSession(2.0), []
    entered = threading.Barrier(4)

    def open_packed() -> Any:
        opened.append(1)
        return other

    session = PaddingRouter(FakeSession(1.0), {"packed": open_packed})  # type: ignore[arg-type] # has what is used

    def call() -> None:
        entered.wait(timeout=30)
        session.run(batch(128, *[10] * 31))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (len(opened), other.runs) == (1, 4)


def test_nothing_is_opened_after_a_fork() -> None:
    masked = FakeSession(1.0)
    masked.forked = True
    session = PaddingRouter(masked, {"packed": lambda: pytest.fail("opened")})  # type: ignore[arg-type] # has what is used
    with pytest.raises(ForkedSessionError):
        session.run(batch(128, *[10] * 31))


@pytest.mark.parametrize("kind", [BundleError, CudaUnavailableError])
def test_a_packed_graph_that_is_gone_is_warned_of_once(caplog: pytest.LogCaptureFixture, kind: type[Exception]) -> None:
    def gone() -> Any:
        raise kind("model.fp16.packed.onnx: the manifest names this file, and it is missing")

    padded = FakeSession(1.0)
    session = PaddingRouter(padded, {"packed": gone})  # type: ignore[arg-type] # has what is used
    for _ in range(2):
        assert session.run(batch(128, *[10] * 31)).tolist() == [[1.0]] * 32
    assert [record.getMessage() for record in caplog.records] == [
        "model.fp16.packed.onnx: the manifest names this file, and it is missing; going on with the masked graph"
    ]
