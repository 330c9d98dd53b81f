"""Several runs at once, each on one thread: of many inputs, and of callers that come at the same time.

One run on many threads waits for the slowest of them at every operator. Runs that share nothing wait for nobody, which
was worth about 15 % for many short texts on two cores; but runs that are too few for the threads leave some idle.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from bert_runtime.cpu.session import Session
from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["ParallelSessions"]

_log = logging.getLogger("bert_runtime")


class ParallelSessions:
    """Two sessions: one for a run that is alone, and one of a single thread for runs side by side.

    The second is opened when it is first needed, since without our own kernels, or where weights are links, it holds
    them again. Where it cannot be opened any more, that is warned of once, and everything runs in the first. Safe to
    call from many threads.
    """

    def __init__(self, alone: Session, open_another: Callable[[], Session], runs: int) -> None:
        self.runs = runs
        """How many batches run at the same time."""
        self._alone = alone
        self._open = open_another
        self._opening = Lock()
        self._counting = Lock()
        self._session: Session | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._failed = False
        self._busy = 0
        """Runs that go on."""

    def fills(self, runs: int) -> bool:
        """Whether so many runs keep the threads busier than one run on all of them would."""
        return 2 * runs > self.runs

    def run_many(self, batches: Sequence[Callable[[], Batch]]) -> Iterator[FloatArray]:
        """Raw outputs of each batch, in order; a batch is made by the thread that runs it."""
        self._alone.check_process()  # locks and threads do not survive a fork
        session = self._opened(wait=True)
        if session is None:
            yield from (self._alone.run(make()) for make in batches)
            return
        self._count(self.runs)
        try:
            try:
                if self._pool is None:
                    from concurrent.futures import ThreadPoolExecutor  # 10 ms that one text does not need

                    self._pool = ThreadPoolExecutor(self.runs, "bert-runtime")
                arrays = self._pool.map(lambda make: session.run(make()), batches)
            except RuntimeError:  # the interpreter shuts down, and starts no threads any more
                arrays = (self._alone.run(make()) for make in batches)
            yield from arrays
        finally:
            self._count(-self.runs)

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs of a batch: in the session for a run that is alone, unless enough others go on."""
        self._alone.check_process()
        busy = self._count(1)
        try:
            session = self._opened(wait=False) if busy > 1 and self.fills(busy) else None
            return (self._alone if session is None else session).run(batch)
        finally:
            self._count(-1)

    def _count(self, runs: int) -> int:
        """Runs that go on, with so many more."""
        with self._counting:
            self._busy += runs
            return self._busy

    def _opened(self, *, wait: bool) -> Session | None:
        """The session, opened by whoever needs it first; `None` where it cannot be, or another opens it now."""
        if self._session is None and not self._failed and self._opening.acquire(blocking=wait):
            try:
                if self._session is None and not self._failed:
                    self._session = self._open()
            except BundleError as error:
                self._failed = True
                _log.warning("%s; going on without runs side by side", error)
            finally:
                self._opening.release()
        return self._session
