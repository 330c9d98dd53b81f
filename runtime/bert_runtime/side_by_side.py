"""Many batches at once: several runs side by side, each on few threads.

One run on many threads waits for the slowest of them at every operator. Runs that share nothing wait for nobody, which
is worth 5 to 20 % on two cores and more on many; but a single batch gains nothing from it.
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
        self._opened: tuple[Session, ThreadPoolExecutor] | None = None

    def run(self, batches: Iterable[Callable[[], Batch]]) -> Iterator[FloatArray]:
        """Raw outputs of each batch, in order; a batch is made by the thread that runs it."""
        with self._lock:
            if self._opened is None:
                from concurrent.futures import ThreadPoolExecutor  # 10 ms that one text does not need

                self._opened = self._open(), ThreadPoolExecutor(self.runs, "bert-runtime")
        session, pool = self._opened
        session.check_process()  # after a fork, the pool would wait for threads that are not there
        return pool.map(lambda make: session.run(make()), batches)
