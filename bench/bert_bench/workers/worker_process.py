"""The parent's end of a worker process."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from threading import Timer
from types import TracebackType
from typing import Any, Self

from bert_bench.errors import WorkerError
from bert_bench.workers.environments import Environment

__all__ = ["WorkerProcess"]

_TIMEOUT_S = 600.0
"""How long one request may take before its worker is killed. The longest, a workload of long texts on a large model
in PyTorch, takes a minute or two."""

_GRACE_S = 5.0
"""How long a process that has closed its pipe may take to end and so say how."""


class WorkerProcess:
    """A process that runs one engine, in an environment of its own if one is given.

    Use it as a context manager: leaving kills the process.

    Every failure is a `WorkerError` with one line that says why; a dead or silent process never blocks the caller.
    """

    def __init__(self, environment: Environment | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._timed_out = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        python = sys.executable if environment is None else str(environment.python)
        variables = None if environment is None else {**os.environ, **environment.variables()}
        # -P: a file of the user's working directory must not shadow a module.
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "bert_bench.workers.service"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=variables,
            )  # fmt: skip
        except OSError as error:
            self._stderr.close()
            raise WorkerError(f"its process cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of `bert_bench.workers.service.Service`; raises `WorkerError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = Timer(self._timeout_s, self._give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            pickle.dump((method, arguments), self._process.stdin)
            self._process.stdin.flush()
            succeeded, value = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerError(self._cause_of_death()) from None
        finally:
            watchdog.cancel()
        if not succeeded:
            raise WorkerError(value)
        return value

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _cause_of_death(self) -> str:
        if self._timed_out:
            return f"gave no answer within {self._timeout_s:.0f} s"
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its process {how}" + (f": {last}" if last else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            try:
                if stream is not None:
                    stream.close()
            except BrokenPipeError:  # a request that the dead process never read
                pass
