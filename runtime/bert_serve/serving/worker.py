"""The thread that runs a model on the joined sequences of many requests."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Protocol

from tokenizers import Encoding

from bert_runtime.numerics import FloatArray
from bert_serve.serving.token_queue import Job, TokenQueue

__all__ = ["EncodingRunner", "Worker"]

_log = logging.getLogger("bert_serve")

_SMOOTHING = 0.2
"""Weight of the newest measurement in the throughput. A judgement."""


class EncodingRunner(Protocol):
    """The part of a `bert_runtime.Model` that the worker uses."""

    def run_encodings(self, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """Return the raw output of each tokenized sequence, run in batches of similar length."""


class Worker:
    """Takes sequences from a queue as soon as there are any, and runs those that wait together.

    There is no waiting window: requests gather while the model runs, so the busier the server, the larger the batches.

    Args:
        model: the model.
        queue: where the work comes from.
        joined: told how many sequences run together, each time.
    """

    def __init__(self, model: EncodingRunner, queue: TokenQueue, joined: Callable[[int], object]) -> None:
        self._model = model
        self._queue = queue
        self._joined = joined
        self.num_failures = 0
        """Requests on which the model failed since it last did not."""
        self._thread = Thread(target=self._work, name="bert-serve-worker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        end = time.perf_counter()
        while True:
            was_waiting = self._queue.has_jobs
            if (taken := self._queue.take()) is None:
                return
            if taken:
                start = end if was_waiting else time.perf_counter()  # what passes between two runs counts, too
                self._run(taken)
                end = time.perf_counter()
                num_tokens = sum(len(job.sequences[index]) for job, indices in taken for index in indices)
                if num_tokens >= self._queue.take_tokens:  # fewer tell how long they take, not how many it could be
                    self._measure(num_tokens, end - start)

    def _run(self, taken: list[tuple[Job, range]]) -> None:
        """Compute the outputs of some sequences, and finish the jobs that have all of theirs."""
        sequences = [job.sequences[index] for job, indices in taken for index in indices]
        try:
            outputs = iter(self._model.run_encodings(sequences))
        except Exception as error:
            self._run_alone(taken, error)
            return
        self.num_failures = 0
        self._joined(len(sequences))
        for job, indices in taken:
            for index in indices:
                job.outputs[index] = next(outputs)
            job.num_left -= len(indices)
            if not job.num_left:
                job.finish(job)

    def _run_alone(self, taken: list[tuple[Job, range]], error: Exception) -> None:
        """Run each job's sequences on their own after a failure, so that it fails only the job that causes it."""
        if len(taken) > 1:
            for part in taken:
                self._run([part])
            return
        job = taken[0][0]
        self.num_failures += 1
        _log.error("the model failed on a request of %d sequences: %s", len(job.sequences), error)
        if job.error is None:
            waiting, job.error = job.taken < len(job.sequences), error
            if not waiting:  # otherwise the queue drops the rest, and finishes the job
                job.finish(job)

    def _measure(self, num_tokens: int, seconds: float) -> None:
        """Update the throughput by which the queue tells how long a request would wait."""
        found, known = num_tokens / max(seconds, 1e-6), self._queue.tokens_per_s
        self._queue.tokens_per_s = found if not known else known + _SMOOTHING * (found - known)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the queue is closed and all its work is done; return whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
