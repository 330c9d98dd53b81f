"""Several runs at once, each on few threads: of many inputs, and of callers that come at the same time.

One run on many threads waits for the slowest of them at every operator. Runs that share nothing wait for nobody, which
is worth 5 to 20 % on two cores and more on many; but a run that is alone gains nothing from it.
"""

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING

from bert_runtime.session import Session
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["SideBySide"]


class SideBySide:
    """A session of its own for runs side by side, opened when it is first needed, since it holds the weights again.

    Safe to call from many threads.
    """

    def __init__(self, open_session: Callable[[], Session], runs: int) -> None:
        self.runs = runs
        """How many batches run at the same time."""
        self._open = open_session
        self._lock = Lock()
        self._session: Session | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._callers = 0

    def run_many(self, batches: Iterable[Callable[[], Batch]]) -> Iterator[FloatArray]:
        """Raw outputs of each batch, in order; a batch is made by the thread that runs it."""
        session = self._opened()
        with self._lock:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor  # 10 ms that one text does not need

                self._pool = ThreadPoolExecutor(self.runs, "bert-runtime")
        session.check_process()  # after a fork, the pool would wait for threads that are not there
        return self._pool.map(lambda make: session.run(make()), batches)

    def run_one(self, batch: Batch, alone: Session) -> FloatArray:
        """Raw outputs of a batch: in `alone`, the session for a run that has the machine to itself, if this one has."""
        with self._lock:
            self._callers += 1
            others = self._callers > 1
        try:
            return (self._opened() if others else alone).run(batch)
        finally:
            with self._lock:
                self._callers -= 1

    def _opened(self) -> Session:
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session
