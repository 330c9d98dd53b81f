"""A worker process as its parent sees it: start, call, time out, end."""

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
"""Time limit of one request, after which the worker is killed. The longest, a workload of long texts on a large model
in PyTorch, takes a minute or two."""

_GRACE_S = 5.0
"""Time limit for a process that has closed its pipe to end and leave an exit status."""


class WorkerProcess:
    """A process that runs one engine. Use it as a context manager: leaving the block kills the process.

    Every failure is a `WorkerError` with one line of reason; a dead or unresponsive process never blocks the caller.

    Args:
        environment: the virtual environment to run in; by default this process's.
        timeout_s: time limit of one request in seconds.

    Raises:
        WorkerError: the process cannot be started.
    """

    def __init__(self, environment: Environment | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._timed_out = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        python = sys.executable if environment is None else str(environment.python)
        variables = None if environment is None else {**os.environ, **environment.variables()}
        # -P: a file in the user's working directory must not shadow a module.
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
        """The process id."""
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `bert_bench.workers.service.Service` in the process.

        Args:
            method: the method's name.
            arguments: its arguments, pickled.

        Returns:
            The method's result.

        Raises:
            WorkerError: the method failed, the process died, or the time limit passed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = Timer(self._timeout_s, self._kill_after_timeout)
        watchdog.daemon = True
        watchdog.start()
        try:
            pickle.dump((method, arguments), self._process.stdin)
            self._process.stdin.flush()
            succeeded, value = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerError(self._exit_reason()) from None
        finally:
            watchdog.cancel()
        if not succeeded:
            raise WorkerError(value)
        return value

    def _kill_after_timeout(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _exit_reason(self) -> str:
        if self._timed_out:
            return f"did not respond within {self._timeout_s:.0f} s"
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
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            try:
                if stream is not None:
                    stream.close()
            except BrokenPipeError:  # the dead process never read the request
                pass
