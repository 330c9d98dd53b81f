"""Every failure of a worker process is a `WorkerError` with one line of reason."""

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


def test_request_runs_in_another_process_that_ends_with_the_block(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        worker.call("open", spec(classifier_bundle))
        outputs = worker.call("raw_outputs", [TextInput("hello"), TextInput("lost my card")])
        assert [[array.shape for array in arrays] for arrays in outputs] == [[(3,)], [(3,)]]
        assert worker.pid != os.getpid()
    assert not psutil.pid_exists(worker.pid)


def test_bert_error_arrives_as_its_message_and_the_worker_continues(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        with pytest.raises(WorkerError, match=r"^the bundle has no variant 'fp64'; it has fp32, int8$"):
            worker.call("open", spec(classifier_bundle, "fp64"))
        assert worker.call("open", spec(classifier_bundle)) > 0


def test_other_error_arrives_as_the_last_line_of_its_traceback() -> None:
    with (
        WorkerProcess() as worker,
        pytest.raises(WorkerError, match=r"^AssertionError: expected `open` to be called first$"),
    ):
        worker.call("raw_outputs", [TextInput("hello")])


def test_killed_worker_is_reported(classifier_bundle: Path) -> None:
    with WorkerProcess() as worker:
        worker.call("open", spec(classifier_bundle))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^its process was killed by SIGKILL$"):
            worker.call("predict", TextInput("hello"))
        with pytest.raises(WorkerError, match="SIGKILL"):
            worker.call("predict", TextInput("hello"))


def test_unresponsive_worker_times_out() -> None:
    with WorkerProcess(timeout_s=0.01) as worker, pytest.raises(WorkerError, match="did not respond within"):
        worker.call("raw_outputs", [TextInput("hello")])
