"""Several batches in parallel on the CPU, one thread each.

A batch on many threads waits for the slowest thread at every operator. Batches on one thread each wait for nobody,
which was worth about 15 % for many short texts on two cores (`bert-export tune` measures it). Too few batches, however,
leave threads idle; then one batch after another runs on all threads.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from bert_runtime.errors import BundleError
from bert_runtime.fork_guard import THREADS_LOST, ForkGuard
from bert_runtime.numerics import FloatArray
from bert_runtime.runner import Runner
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["ParallelSessions"]

_log = logging.getLogger("bert_runtime")


class ParallelSessions:
    """Two sessions for one graph: one with all threads, and one with a single thread that runs batches in parallel.

    The single-threaded session is opened on first use: without native kernels, or where weights are links, it holds a
    second copy of the weights. If it cannot be opened, that is logged once and every batch runs on all threads.

    Safe to call from many threads, but not after a fork.

    Args:
        all_threads: the session for a batch that runs alone.
        open_single_thread: opens the session for parallel batches; called once.
        inter_threads: batches that run at the same time, one thread each, like CTranslate2's `inter_threads` and
            OpenVINO's `num_streams`.
    """

    def __init__(self, all_threads: Runner, open_single_thread: Callable[[], Runner], inter_threads: int) -> None:
        self.inter_threads = inter_threads
        """Batches that run at the same time."""
        self._all_threads = all_threads
        self._open_single_thread = open_single_thread
        self._opening = Lock()
        self._counting = Lock()
        self._single_thread: Runner | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._failed = False
        self._num_running = 0
        """Batches in progress."""
        self._fork_guard = ForkGuard(THREADS_LOST)

    def fills_threads(self, num_batches: int) -> bool:
        """Return whether so many parallel batches keep the threads busier than one batch on all of them would."""
        return 2 * num_batches > self.inter_threads

    def run_many(self, batches: Sequence[Callable[[], Batch]]) -> Iterator[FloatArray]:
        """Yield the raw outputs of each batch, in order.

        Args:
            batches: functions that build a batch each; the thread that runs a batch builds it.
        """
        self._fork_guard.check()
        session = self._open(wait=True)
        if session is None:
            yield from (self._all_threads.run(make()) for make in batches)
            return
        self._add_running(self.inter_threads)
        try:
            try:
                if self._pool is None:
                    from concurrent.futures import ThreadPoolExecutor  # 10 ms that one text does not need

                    self._pool = ThreadPoolExecutor(self.inter_threads, "bert-runtime")
                arrays = self._pool.map(lambda make: session.run(make()), batches)
            except RuntimeError:  # the interpreter is shutting down and starts no more threads
                arrays = (self._all_threads.run(make()) for make in batches)
            yield from arrays
        finally:
            self._add_running(-self.inter_threads)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of one batch, computed on all threads, or on one while enough others run."""
        self._fork_guard.check()
        num_running = self._add_running(1)
        try:
            parallel = num_running > 1 and self.fills_threads(num_running)
            session = self._open(wait=False) if parallel else None
            return (self._all_threads if session is None else session).run(batch)
        finally:
            self._add_running(-1)

    def _add_running(self, count: int) -> int:
        """Add `count` to the number of batches in progress and return it."""
        with self._counting:
            self._num_running += count
            return self._num_running

    def _open(self, *, wait: bool) -> Runner | None:
        """Return the single-threaded session, opening it on first use.

        Return `None` where it cannot be opened, or where another thread is opening it and `wait` is false.
        """
        if self._single_thread is None and not self._failed and self._opening.acquire(blocking=wait):
            try:
                if self._single_thread is None and not self._failed:
                    self._single_thread = self._open_single_thread()
            except BundleError as error:
                self._failed = True
                _log.warning("%s; continuing without parallel batches", error)
            finally:
                self._opening.release()
        return self._single_thread
