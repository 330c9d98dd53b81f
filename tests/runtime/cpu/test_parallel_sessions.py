"""Parallel batches: same results and order as one batch at a time, in a session that is opened on first use."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import InputError, load
from bert_runtime.batching.batch_runner import run_batches
from bert_runtime.cpu.session import Session
from bert_runtime.inputs import as_text_input
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import stack_single_window
from bert_runtime.tokenization import Batch, pad

TEXTS = [" ".join(["hello there"] * (1 + number * 7 % 23)) for number in range(60)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("inter_threads", [2, 3, 8])
def test_results_and_order_are_those_of_one_batch_at_a_time(
    classifier_bundle: Path, precision: str, inter_threads: int
) -> None:
    options: dict[str, Any] = {"precision": precision, "threads": inter_threads, "max_batch_tokens": 64}
    plain = load(classifier_bundle, inter_threads=1, **options)
    assert plain.parallel_sessions is None
    model = load(classifier_bundle, inter_threads=inter_threads, **options)
    found, expected = (stack_single_window(loaded.outputs(TEXTS)) for loaded in (model, plain))
    assert np.abs(found - expected).max() <= 1e-5
    assert [result.label for result in model(TEXTS)] == [model(text).label for text in TEXTS]


@pytest.mark.parametrize("batch_size", [1, 2, 7])
@pytest.mark.parametrize("inter_threads", [1, 2])
def test_token_ids_are_divided_into_batches_like_texts(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, inter_threads: int, batch_size: int
) -> None:
    model = load(classifier_bundle, precision="fp32", threads=2, inter_threads=inter_threads, max_batch_tokens=24)
    encodings = [windows[0] for windows in model.tokenizer.encode([as_text_input("hello there " * 3)] * batch_size)]
    batch = pad([*encodings[1:], model.tokenizer.encode([as_text_input("bye")])[0][0]], model.tokenizer.pad_token_id)
    whole = model.session.run(batch)
    sizes: list[int] = []
    run = Session.run

    def counted(self: Session, batch: Batch) -> FloatArray:
        sizes.append(len(batch.input_ids))
        return run(self, batch)

    monkeypatch.setattr(Session, "run", counted)
    assert np.abs(model.run(batch) - whole).max() <= 1e-5
    assert sum(sizes) == batch_size
    assert max(sizes) * batch.input_ids.shape[1] <= 24


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
def test_arrays_that_are_not_a_batch_are_refused(
    classifier_bundle: Path, changes: dict[str, Any], message: str
) -> None:
    batch = Batch(_IDS, np.ones_like(_IDS), np.zeros_like(_IDS))._replace(**changes)
    with pytest.raises(InputError, match=message):
        load(classifier_bundle, threads=1).run(batch)


def test_the_single_threaded_session_is_opened_for_many_inputs_only(
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


def test_a_call_takes_one_thread_while_others_run(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    run = Session.run

    def block(self: Session, batch: Any) -> Any:
        ran.append(self.threads)
        if batch.input_ids.shape[1] > 3:  # longer than the second caller's
            entered.set()
            assert leave.wait(30)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", block)
    model = load(classifier_bundle, threads=2, max_batch_tokens=256)
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


@pytest.mark.parametrize(("count", "threads"), [(2, [2]), (60, [1])])
def test_few_tokens_are_one_batch_on_all_threads(
    count: int, threads: list[int], classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run, model = Session.run, load(classifier_bundle, threads=2)
    model.whole_batch_tokens = 200

    def record(self: Session, batch: Any) -> Any:
        ran.append(self.threads)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", record)
    expected = [model(text).label for text in TEXTS[:count]]
    ran.clear()
    assert [result.label for result in model(TEXTS[:count])] == expected
    assert sorted({*ran}) == threads
    assert (len(ran) == 1) == (count == 2)


@pytest.mark.parametrize(("pads_outputs", "num_batches"), [(False, 1), (True, 2)])
def test_padding_counts_where_outputs_have_it(pads_outputs: bool, num_batches: int) -> None:
    class Runner:
        def run(self, batch: Any) -> Any:
            return batch

    runner: Any = Runner()
    lengths = [100, 10, 10]
    found = list(run_batches(lengths, list, runner, None, 200, 150, pads_outputs=pads_outputs))
    assert len(found) == num_batches
    assert sorted(index for indices, _ in found for index in indices) == [0, 1, 2]
    assert len(list(run_batches([30, 10, 10], list, runner, None, 60, 150, pads_outputs=pads_outputs))) == 1


def test_too_few_batches_run_one_at_a_time_on_all_threads(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = Session.run

    def record(self: Session, batch: Any) -> Any:
        ran.append(self.threads)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", record)
    model = load(classifier_bundle, threads=8)
    model(["hello there " * 30] * 2)
    assert ran == [8]
    ran.clear()
    model(["hello there " * 30] * 8)
    assert ran == [1] * 8


def test_a_bundle_that_was_replaced_is_not_opened_again(
    classifier_bundle: Path, copy_bundle: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = copy_bundle(classifier_bundle, lambda manifest: None)
    model = load(bundle, threads=2)
    expected = [result.label for result in model(TEXTS[:1] * 2)]
    for variant in ("fp32", "int8"):
        path = bundle / f"model.{variant}.onnx"
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    for _ in range(2):
        assert [result.label for result in model(TEXTS)][:1] == expected[:1]
    assert [record.getMessage() for record in caplog.records if "parallel batches" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert "expected sha256" in caplog.text


def test_callers_do_not_wait_while_another_opens_the_session(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_thread_that_outlives_the_main_thread_gets_results(classifier_bundle: Path) -> None:
    command = [sys.executable, "-c", _LATE, str(classifier_bundle)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (found.stdout.strip(), found.stderr) == ("50", "")


def test_an_error_in_a_parallel_batch_is_raised(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Session.run

    def failing(self: Session, batch: Any) -> Any:
        if batch.input_ids.shape[1] < 10:  # the last batch, since the longest run first
            raise InputError("a batch that fails")
        return run(self, batch)

    model = load(classifier_bundle, threads=2, max_batch_tokens=64)
    monkeypatch.setattr(Session, "run", failing)
    with pytest.raises(InputError, match="a batch that fails"):
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
def test_a_forked_child_is_refused_and_does_not_hang(classifier_bundle: Path, state: str) -> None:
    command = [sys.executable, "-c", _FORK, str(classifier_bundle), state]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "2"
