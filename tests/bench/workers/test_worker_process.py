"""Whatever happens to a worker, its parent gets one line that says so, and goes on."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from bert_bench import WorkerError
from bert_bench.engines import BundleSpec
from bert_bench.workers.worker_process import WorkerProcess
from bert_runtime.tasks import TextInput


def spec(bundle: Path, precision: str = "fp32") -> BundleSpec:
    return BundleSpec(bundle=bundle, variant=precision, threads=1, max_batch_tokens=1024)


def test_a_request_runs_in_another_process_which_ends_with_the_block(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        worker.call("open", spec(classifier_bundle))
        rows = worker.call("rows", [TextInput("hello"), TextInput("lost my card")])
        assert [[row.shape for row in each] for each in rows] == [[(3,)], [(3,)]]
        assert worker.pid != os.getpid()
    assert not psutil.pid_exists(worker.pid)


def test_an_error_of_ours_arrives_as_its_message_and_the_worker_lives_on(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        with pytest.raises(WorkerError, match=r"^the bundle has no variant 'fp64'; it has fp32, int8$"):
            worker.call("open", spec(classifier_bundle, "fp64"))
        assert worker.call("open", spec(classifier_bundle)) > 0


def test_any_other_error_arrives_as_the_last_line_of_its_traceback() -> None:
    with WorkerProcess() as worker, pytest.raises(WorkerError, match=r"^AssertionError: asked before `open`$"):
        worker.call("rows", [TextInput("hello")])


def test_a_killed_worker_is_noticed(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        worker.call("open", spec(classifier_bundle))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^its process was killed by SIGKILL$"):
            worker.call("answer", TextInput("hello"))
        with pytest.raises(WorkerError, match="SIGKILL"):
            worker.call("answer", TextInput("hello"))


def test_a_worker_that_does_not_answer_is_given_up() -> None:
    with WorkerProcess(timeout_s=0.01) as worker, pytest.raises(WorkerError, match="gave no answer within"):
        worker.call("rows", [TextInput("hello")])
