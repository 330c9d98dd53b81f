"""A queue of requests, bounded in tokens, from which work is taken in turns.

    put ──▶ [ job A: ■■■□□□□ ][ job B: □ ][ job C: □□ ] ──▶ take: some sequences of A, B, C, then A again

A job is one request: its sequences in order, and how far it has come. A long request gives `turn_tokens` before it goes
to the end of the queue, so that a short one never waits for all of it (round robin).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition

from tokenizers import Encoding

from bert_runtime.numerics import FloatArray
from bert_serve.errors import QueueFullError, QueueTimeoutError

__all__ = ["Job", "Reservation", "TokenQueue"]

_MAX_SHARE = 0.5
"""Share of the tokens that may wait which one job counts as at most, so that a long one does not refuse all others
until most of it is done. A judgement."""

_WAIT_MARGIN = 0.8
"""Share of the longest wait that a job may be expected to wait: the throughput, from which that is computed, varies. A
judgement."""


class Job:
    """One request's sequences, in the queue or being computed.

    Args:
        sequences: the tokenized sequences.
        deadline_s: when it must have started, on the clock of `time.perf_counter`.
        finish: called once by the worker, when all outputs are there or `error` is.
    """

    __slots__ = (
        "deadline_s", "error", "finish", "num_left", "num_waiting_tokens",
        "outputs", "queued_s", "sequences", "started_s", "taken", "turn_left",
    )  # fmt: skip

    def __init__(self, sequences: Sequence[Encoding], deadline_s: float, finish: Callable[["Job"], None]) -> None:
        self.sequences = sequences
        self.deadline_s = deadline_s
        self.finish = finish
        self.outputs: list[FloatArray | None] = [None] * len(sequences)
        """The raw output of each sequence, as far as computed."""
        self.taken = 0
        """Sequences that the worker has taken."""
        self.num_waiting_tokens = sum(map(len, sequences))
        """Tokens of those that it has not taken."""
        self.turn_left = 0
        """Tokens that it may still give in its turn."""
        self.num_left = len(sequences)
        """Sequences without an output."""
        self.error: Exception | None = None
        self.queued_s = time.perf_counter()
        self.started_s = 0.0


class Reservation:
    """Room in the queue for a job whose texts are being tokenized.

    Args:
        num_tokens: about how many tokens it will have.
    """

    __slots__ = ("num_tokens",)

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens


class TokenQueue:
    """Jobs of many threads for one worker.

    Args:
        max_tokens: tokens that may wait; of one job at most half as many count.
        take_tokens: about how many tokens are taken at a time.
        turn_tokens: tokens that a job gives before the next job's turn.
        max_wait_s: how long a job may wait until its start.
        report: told how many tokens wait, each time that they may have changed.
    """

    def __init__(
        self,
        max_tokens: int,
        take_tokens: int,
        turn_tokens: int,
        max_wait_s: float,
        report: Callable[[int], object] = lambda num_tokens: None,
    ) -> None:
        self.take_tokens = take_tokens
        """About how many tokens are taken at a time while as many wait."""
        self._max_tokens = max_tokens
        self._turn_tokens = turn_tokens
        self._max_wait_s = max_wait_s
        self._report = report
        self._jobs: deque[Job] = deque()
        self._changed = Condition()
        self._closed = False
        self._counted = 0
        """Tokens that wait, of each job as many as count."""
        self._first_turns = 0
        """Tokens that are taken before a new job has its first turn: at most one turn of each job."""
        self.num_tokens = 0
        """Tokens that wait."""
        self.tokens_per_s = 0.0
        """Measured throughput of the worker with full takes; 0 before it is known."""

    @property
    def has_jobs(self) -> bool:
        """Whether there is work to take; room that is only reserved is none yet."""
        return bool(self._jobs)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of the queue, and then report how many tokens wait."""
        with self._changed:
            try:
                yield
            finally:
                self._report(self.num_tokens)

    @contextmanager
    def reserve(self, num_tokens: int) -> Iterator[Reservation]:
        """Reserve room for a job until it is put, or the block ends: at once, before it costs its tokenization.

        Args:
            num_tokens: about how many tokens the job will have.

        Raises:
            QueueFullError: so much is waiting that there is no room, or the job would not start in time.
        """
        with self._changing():
            if self._closed:
                raise QueueFullError("the model is being replaced; try again")
            self._check_room(num_tokens)
            self._check_wait()
            reservation = Reservation(num_tokens)
            self._count(reservation, 1)
        try:
            yield reservation
        finally:
            with self._changing():
                self._count(reservation, -1)

    def put(self, job: Job, reservation: Reservation) -> None:
        """Add a job in place of its reservation; raise `QueueFullError` if there is no room for what it has more."""
        with self._changing():
            self._count(reservation, -1)
            reservation.num_tokens = 0
            if self._closed:
                raise QueueFullError("the model is being replaced; try again")
            self._check_room(job.num_waiting_tokens)
            self._change(0, job.num_waiting_tokens)
            self._append(job)
            self._changed.notify()

    def _count(self, reservation: Reservation, sign: int) -> None:
        self._change(reservation.num_tokens if sign < 0 else 0, reservation.num_tokens if sign > 0 else 0)
        self._first_turns += sign * min(reservation.num_tokens, self._turn_tokens)

    def _change(self, before: int, after: int) -> None:
        """Count that a job had some tokens waiting, and has others now."""
        self.num_tokens += after - before
        self._counted += self._counting(after) - self._counting(before)

    def _counting(self, num_tokens: int) -> int:
        """Return as how many tokens those of one job count."""
        return min(num_tokens, max(1, int(_MAX_SHARE * self._max_tokens)))

    def _check_room(self, num_tokens: int) -> None:
        if self._counted and self._counted + self._counting(num_tokens) > self._max_tokens:
            raise QueueFullError(
                f"expected at most {self._max_tokens:,} waiting tokens, found {self.num_tokens:,} and this "
                f"request's {num_tokens:,}; try again later",
                self._seconds_of(self.num_tokens),
            )

    def _check_wait(self) -> None:
        """Raise `QueueFullError` if a job that is added now would not be started, and its first turn done, in time."""
        num_takes = self._first_turns // self.take_tokens  # before the one that the job's first turn is in
        wait_s = self._seconds_of(num_takes * self.take_tokens)
        if num_takes and wait_s + self._seconds_of(self.take_tokens) > _WAIT_MARGIN * self._max_wait_s:
            raise QueueFullError(
                f"the request would wait {wait_s * 1e3:.0f} ms until its start; expected at most "
                f"{self._max_wait_s * 1e3:.0f} ms until its first results; try again later",
                wait_s,
            )

    def _append(self, job: Job) -> None:
        """Add a job at the front if its turn is not over, and else at the end."""
        if job.turn_left > 0:
            self._jobs.appendleft(job)
        else:
            job.turn_left = self._turn_tokens
            self._jobs.append(job)
        self._first_turns += min(job.num_waiting_tokens, job.turn_left)

    def _seconds_of(self, num_tokens: int) -> float:
        return num_tokens / self.tokens_per_s if self.tokens_per_s else 0.0

    def take(self) -> list[tuple[Job, range]] | None:
        """Wait for work, and return sequences of one job or several: for each the job and the indices.

        Returns:
            About `take_tokens`, at least one sequence; `None` once the queue is closed and empty.
        """
        taken: list[tuple[Job, range]] = []
        room = self.take_tokens
        with self._changing():
            while not self._jobs and not self._closed:
                self._changed.wait()
            if not self._jobs:
                return None
            while self._jobs and room > 0:
                job = self._jobs.popleft()
                self._first_turns -= min(job.num_waiting_tokens, job.turn_left)
                if (indices := self._turn(job, room)) is not None:
                    taken.append((job, indices))
                    room -= sum(len(job.sequences[index]) for index in indices)
        return taken

    def _turn(self, job: Job, max_tokens: int) -> range | None:
        """Return the indices of a job's next sequences, and put it back if there are more; `None` if it is dropped."""
        now = time.perf_counter()
        if not job.taken and now > job.deadline_s:
            job.error = QueueTimeoutError(
                f"the request waited {(now - job.queued_s) * 1e3:.0f} ms; expected a start within "
                f"{self._max_wait_s * 1e3:.0f} ms; try again later"
            )
        if job.error is not None:
            self._change(job.num_waiting_tokens, 0)
            job.finish(job)
            return None
        first, room = job.taken, min(max_tokens, job.turn_left)
        job.started_s = job.started_s or now
        while job.taken < len(job.sequences) and (room > 0 or job.taken == first):
            room -= len(job.sequences[job.taken])
            job.taken += 1
        num_tokens = sum(len(job.sequences[index]) for index in range(first, job.taken))
        self._change(job.num_waiting_tokens, job.num_waiting_tokens - num_tokens)
        job.num_waiting_tokens -= num_tokens
        job.turn_left -= num_tokens
        if job.taken < len(job.sequences):
            self._append(job)
        return range(first, job.taken)

    def cancel(self, job: Job) -> None:
        """Drop what waits of a job whose outputs nobody waits for any more, so that its tokens make room at once."""
        with self._changing():
            if job in self._jobs:
                self._jobs.remove(job)
                self._first_turns -= min(job.num_waiting_tokens, job.turn_left)
                self._change(job.num_waiting_tokens, 0)

    def close(self) -> None:
        """Accept no more jobs; those that wait are still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
