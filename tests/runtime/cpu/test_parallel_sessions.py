"""Runs side by side: the answers and the order of one run after the other, in a session that opens when it must."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import InputError, load
from bert_runtime.cpu.session import Session
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import stack_single_window
from bert_runtime.tokenization import Batch, as_text_input, pad

TEXTS = [" ".join(["hello there"] * (1 + number * 7 % 23)) for number in range(60)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("runs", [2, 3, 8])
def test_answers_and_order_stay(classifier_bundle: Path, precision: str, runs: int) -> None:
    options: dict[str, Any] = {"precision": precision, "threads": runs, "max_batch_tokens": 64}
    plain = load(classifier_bundle, inter_threads=1, **options)
    assert plain.parallel_sessions is None
    model = load(classifier_bundle, inter_threads=runs, **options)
    found, expected = (stack_single_window(each.outputs(TEXTS)) for each in (model, plain))
    assert np.abs(found - expected).max() <= 1e-5
    assert [each.label for each in model(TEXTS)] == [model(text).label for text in TEXTS]


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("runs", [1, 2])
def test_token_ids_at_hand_are_divided_like_texts(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, runs: int, rows: int
) -> None:
    model = load(classifier_bundle, precision="fp32", threads=2, inter_threads=runs, max_batch_tokens=24)
    encodings = [windows[0] for windows in model.tokenizer.encode([as_text_input("hello there " * 3)] * rows)]
    batch = pad([*encodings[1:], model.tokenizer.encode([as_text_input("bye")])[0][0]], model.tokenizer.pad_token_id)
    whole = model.session.run(batch)
    ran: list[int] = []
    run = Session.run

    def counted(self: Session, batch: Batch) -> FloatArray:
        ran.append(len(batch.input_ids))
        return run(self, batch)

    monkeypatch.setattr(Session, "run", counted)
    assert np.abs(model.run(batch) - whole).max() <= 1e-5
    assert sum(ran) == rows
    assert max(ran) * batch.input_ids.shape[1] <= 24


_IDS = np.array([[2, 7, 3]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"input_ids": np.zeros((0, 4), dtype=np.int64)},
            r"expected input_ids to be a non-empty int64 array \[batch, tokens\], found int64 \[0, 4\]",
        ),
        ({"input_ids": [[2, 7, 3]]}, r"expected input_ids to be a non-empty int64 array \[batch, tokens\], found list"),
        ({"input_ids": _IDS[0]}, r"found int64 \[3\]"),
        ({"input_ids": _IDS.astype(np.int32)}, r"found int32 \[1, 3\]"),
        ({"attention_mask": np.ones((1, 1), dtype=np.int64)}, r"the shape of input_ids, \[1, 3\], found \[1, 1\]"),
        ({"attention_mask": 2 * _IDS}, "attention_mask must lie in 0 to 1, found 14"),
        ({"input_ids": _IDS - 100}, "input_ids must lie in 0 to [0-9]+, found -98"),
        ({"token_type_ids": _IDS}, "token_type_ids must lie in 0 to 1, found 7"),
    ],
)
def test_arrays_that_are_no_batch_are_refused(classifier_bundle: Path, changes: dict[str, Any], message: str) -> None:
    batch = Batch(_IDS, np.ones_like(_IDS), np.zeros_like(_IDS))._replace(**changes)
    with pytest.raises(InputError, match=message):
        load(classifier_bundle, threads=1).run(batch)


def test_a_second_session_is_opened_for_many_inputs_alone(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    make = Session.__init__

    def counted(self: Session, *arguments: Any, **options: Any) -> None:
        opened.append(arguments[2])
        make(self, *arguments, **options)

    monkeypatch.setattr(Session, "__init__", counted)
    model = load(classifier_bundle, threads=3)
    assert model([]) == []
    model("hello")
    model(["hello", "bye"])
    assert opened == [3]
    callers = [threading.Thread(target=model, args=(TEXTS,)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    model(TEXTS)
    assert opened == [3, 1]


def test_a_call_that_is_not_alone_takes_one_thread(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    run = Session.run

    def held(self: Session, batch: Any) -> Any:
        ran.append(self.threads)
        if batch.input_ids.shape[1] > 3:  # longer than the second caller's
            entered.set()
            assert leave.wait(30)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", held)
    model = load(classifier_bundle, threads=2)
    for first, alone in (("hello there my card", 2), (["hello there my card"] * 40, 1)):
        ran.clear()
        entered.clear()
        leave.clear()
        caller = threading.Thread(target=model, args=(first,))
        caller.start()
        assert entered.wait(30)
        expected = model("bye").label
        leave.set()
        caller.join()
        assert model("bye").label == expected
        assert ran[-1] == 2
        assert ran.count(2) == alone


def test_few_runs_on_many_threads_are_not_side_by_side(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = Session.run

    def noted(self: Session, batch: Any) -> Any:
        ran.append(self.threads)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", noted)
    model = load(classifier_bundle, threads=8)
    model(["hello there " * 30] * 2)
    assert ran == [8]
    ran.clear()
    model(["hello there " * 30] * 8)
    assert ran == [1] * 8


def test_a_bundle_that_was_replaced_is_not_mixed_in(
    classifier_bundle: Path, copy_bundle: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: None)
    model = load(bundle, threads=2)
    expected = [each.label for each in model(TEXTS[:1] * 2)]
    for variant in ("fp32", "int8"):
        path = bundle / f"model.{variant}.onnx"
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    for _ in range(2):
        assert [each.label for each in model(TEXTS)][:1] == expected[:1]
    assert [record.getMessage() for record in caplog.records if "parallel batches" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert "expected sha256" in caplog.text


def test_callers_do_not_wait_for_the_session_to_open(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, open_now = threading.Event(), threading.Event()
    model = load(classifier_bundle, threads=2)
    make = Session.__init__

    def slow(self: Session, *arguments: Any, **options: Any) -> None:
        opening.set()
        assert open_now.wait(30)
        make(self, *arguments, **options)

    monkeypatch.setattr(Session, "__init__", slow)
    caller = threading.Thread(target=model, args=(TEXTS,))
    caller.start()
    assert opening.wait(30)
    assert model("hello").label
    open_now.set()
    caller.join()


_LATE = """
import sys, threading, time
from bert_runtime import load
model = load(sys.argv[1], threads=2)
texts = ["hello there " * (n % 20 + 1) for n in range(50)]
def late():
    threading.main_thread().join()
    time.sleep(0.3)
    print(len(model(texts)))
threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_program_is_answered(classifier_bundle: Path) -> None:
    command = [sys.executable, "-c", _LATE, str(classifier_bundle)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (found.stdout.strip(), found.stderr) == ("50", "")


def test_an_error_in_one_of_the_runs_is_raised(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Session.run

    def failing(self: Session, batch: Any) -> Any:
        if batch.input_ids.shape[1] < 10:  # the last of them, since the longest run first
            raise InputError("a run that fails")
        return run(self, batch)

    model = load(classifier_bundle, threads=2, max_batch_tokens=64)
    monkeypatch.setattr(Session, "run", failing)
    with pytest.raises(InputError, match="a run that fails"):
        model(TEXTS)
    monkeypatch.undo()
    assert len(model(TEXTS)) == len(TEXTS)


_FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from bert_runtime import load
from bert_runtime.errors import ForkedSessionError
model = load(sys.argv[1], threads=2)
texts = ["hello there " * (n % 20 + 1) for n in range(50)]
if sys.argv[2] == "opened":
    model(texts)
if sys.argv[2] == "opening":  # as it is while another thread opens the session
    model.parallel_sessions._opening.acquire()
    model.parallel_sessions._counting.acquire()
child = os.fork()
if child == 0:
    refused = 0
    for inputs in (texts, "hello"):
        try:
            model(inputs)
        except ForkedSessionError:
            refused += 1
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("state", ["fresh", "opening", "opened"])
def test_a_forked_child_is_refused_and_does_not_wait_for_ever(classifier_bundle: Path, state: str) -> None:
    command = [sys.executable, "-c", _FORK, str(classifier_bundle), state]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "2"
