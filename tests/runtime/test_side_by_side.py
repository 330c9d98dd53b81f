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
from bert_runtime.session import Session
from bert_runtime.tasks import sole_rows

TEXTS = [" ".join(["hello there"] * (1 + number * 7 % 23)) for number in range(60)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("runs", [2, 3, 8])
def test_answers_and_order_stay(classifier_bundle: Path, precision: str, runs: int) -> None:
    options: dict[str, Any] = {"precision": precision, "threads": 1, "max_batch_tokens": 64}
    plain = load(classifier_bundle, parallel_runs=1, **options)
    assert plain.side_by_side is None
    model = load(classifier_bundle, parallel_runs=runs, **options)
    found, expected = (sole_rows(each.outputs(TEXTS)) for each in (model, plain))
    assert np.abs(found - expected).max() <= 1e-5
    assert [each.label for each in model(TEXTS)] == [model(text).label for text in TEXTS]


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
        if len(ran) == 1:
            entered.set()
            assert leave.wait(30)
        return run(self, batch)

    monkeypatch.setattr(Session, "run", held)
    model = load(classifier_bundle, threads=2)
    first = threading.Thread(target=model, args=("hello",))
    first.start()
    assert entered.wait(30)
    expected = model("bye").label
    leave.set()
    first.join()
    assert model("bye").label == expected
    assert ran == [2, 1, 2]


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
model(texts)
child = os.fork()
if child == 0:
    try:
        model(texts)
    except ForkedSessionError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_wait_for_ever(classifier_bundle: Path) -> None:
    command = [sys.executable, "-c", _FORK, str(classifier_bundle)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "7"
