"""The router on a GPU: which padding mode a batch runs in, and when that mode's session is opened."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from bert_runtime import BundleError, CudaUnavailableError, ForkedSessionError
from bert_runtime.gpu.padding_router import PaddingRouter, choose_padding
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch


def batch(*lengths: int, left: bool = False) -> Batch:
    mask = (np.arange(max(lengths))[None, :] < np.array(lengths)[:, None]).astype(np.int64)
    mask = mask[:, ::-1] if left else mask
    return Batch(np.ones_like(mask), mask, np.zeros_like(mask))


class FakeSession:
    """Outputs its number, and counts its batches."""

    threads = 1
    device_name = "cuda:0"

    def __init__(self, number: float) -> None:
        self.number, self.num_batches = number, 0

    def run(self, batch: Batch) -> FloatArray:
        self.num_batches += 1
        return np.full((len(batch.input_ids), 1), self.number, dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "padding"),
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
def test_large_batches_run_in_the_padding_mode_that_fits_them(given: Batch, padding: str) -> None:
    assert choose_padding(given) == padding
    sessions = {name: FakeSession(number) for number, name in enumerate(("masked", "unmasked", "packed"))}
    opened: list[str] = []

    def opener(name: str) -> Callable[[], FakeSession]:
        def open_session() -> FakeSession:
            opened.append(name)
            return sessions[name]

        return open_session

    router = PaddingRouter(sessions["masked"], {name: opener(name) for name in ("unmasked", "packed")})
    assert (router.threads, router.device_name) == (1, "cuda:0")
    for _ in range(2):
        assert router.run(given).tolist() == [[sessions[padding].number]] * len(given.input_ids)
    assert {name: s.num_batches for name, s in sessions.items() if s.num_batches} == {padding: 2}
    assert opened == ([] if padding == "masked" else [padding])


def test_padding_modes_that_the_bundle_lacks_run_masked() -> None:
    masked, packed = FakeSession(1.0), FakeSession(2.0)
    router = PaddingRouter(masked, {"packed": lambda: packed})
    router.run(batch(*[128] * 32))
    assert (masked.num_batches, packed.num_batches) == (1, 0)


def test_the_packed_session_is_opened_once() -> None:
    packed, opened = FakeSession(2.0), []
    entered = threading.Barrier(4)

    def open_packed() -> FakeSession:
        opened.append(1)
        return packed

    router = PaddingRouter(FakeSession(1.0), {"packed": open_packed})

    def call() -> None:
        entered.wait(timeout=30)
        router.run(batch(128, *[10] * 31))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (len(opened), packed.num_batches) == (1, 4)


def test_a_forked_child_opens_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    router = PaddingRouter(FakeSession(1.0), {"packed": lambda: pytest.fail("opened")})
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ForkedSessionError, match="CUDA does not survive that"):
        router.run(batch(128, *[10] * 31))


@pytest.mark.parametrize("kind", [BundleError, CudaUnavailableError])
def test_a_packed_graph_that_cannot_be_opened_is_logged_once(
    caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def missing() -> FakeSession:
        raise kind("model.fp16.packed.onnx: the manifest names this file, and it is missing")

    router = PaddingRouter(FakeSession(1.0), {"packed": missing})
    for _ in range(2):
        assert router.run(batch(128, *[10] * 31)).tolist() == [[1.0]] * 32
    assert [record.getMessage() for record in caplog.records] == [
        "model.fp16.packed.onnx: the manifest names this file, and it is missing; continuing with the masked graph"
    ]
