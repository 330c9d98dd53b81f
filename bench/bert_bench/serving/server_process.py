"""A server in a process of its own: started, asked, measured and ended."""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bert_bench.errors import BenchError
from bert_bench.serving.wire_formats import Request

__all__ = ["ServerProcess", "free_port", "send"]

_HOST = "127.0.0.1"
_POLL_S = 0.005
_GRACE_S = 10.0
"""Time limit for a server to end after SIGTERM."""

_REASON_LINES = 12
"""Lines of the log in which the reason of a failure is looked for."""

_DROPPED_VARIABLES = ("PYTHONPATH", "OMP_NUM_THREADS")
"""Environment variables that would give a peer our modules, or fewer threads than a user's."""


def free_port() -> int:
    """Return a loopback port that is free now, with two free ones after it for servers that need three."""
    while True:
        with socket.socket() as first:
            first.bind((_HOST, 0))
            port: int = first.getsockname()[1]
            try:
                for offset in (1, 2):
                    with socket.socket() as following:
                        following.bind((_HOST, port + offset))
            except OSError:
                continue
            return port


def send(port: int, request: Request, timeout_s: float = 60.0) -> tuple[int, bytes]:
    """Send one request over a new connection.

    Returns:
        The HTTP status and the body.

    Raises:
        OSError: no connection, or no answer in time.
        http.client.HTTPException: the answer is not HTTP.
    """
    connection = http.client.HTTPConnection(_HOST, port, timeout=timeout_s)
    try:
        body = request.body.encode() or None
        connection.request(request.method, request.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class ServerProcess:
    """A running server. Use it as a context manager: leaving the block ends the process and its children.

    Args:
        argv: the command line.
        port: the port that it listens on.
        variables: environment variables besides this process's.
        cwd: working directory; `None`: an empty folder.
        keep_pythonpath: whether this process's modules are importable there.

    Raises:
        BenchError: the process cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        port: int,
        variables: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        keep_pythonpath: bool = False,
    ) -> None:
        self.argv = list(argv)
        self.port = port
        dropped = set(_DROPPED_VARIABLES) - ({"PYTHONPATH"} if keep_pythonpath else set())
        inherited = {key: value for key, value in os.environ.items() if key not in dropped}
        self._folder = tempfile.TemporaryDirectory(prefix="bert-bench-server-")
        self._log = Path(self._folder.name) / "log"
        # A server that wants a hub fails at once, and none finds what another one has cached.
        hub = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": self._folder.name}
        # A session of its own: the whole process group is ended together.
        self._started_s = time.perf_counter()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**inherited, **hub, **(variables or {})}, cwd=cwd or self._folder.name, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._folder.cleanup()
            raise BenchError(f"{Path(self.argv[0]).name} cannot be started: {error}") from None

    def wait_for_answer(self, request: Request, timeout_s: float = 180.0) -> float:
        """Send the request until it is answered with 200.

        Returns:
            Seconds from the start of the process to the answer.

        Raises:
            BenchError: the process ended or did not answer in time; the message ends with its last words.
        """
        status: object = "no connection"
        while time.perf_counter() - self._started_s < timeout_s:
            if self._process.poll() is not None:
                raise BenchError(f"ended with exit status {self._process.returncode}: {self.last_words()}")
            try:
                status, _ = send(self.port, request, timeout_s)
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            if status == 200:
                return time.perf_counter() - self._started_s
            time.sleep(_POLL_S)
        raise BenchError(f"did not answer within {timeout_s:.0f} s ({status}): {self.last_words()}")

    def last_words(self) -> str:
        """Return the log's last line that names an error, or else its last line."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines[-_REASON_LINES:] if "Error" in line]
        return (errors or lines or ["no output"])[-1]

    def cpu_seconds(self) -> float:
        """Return the processor seconds, user and system, of the process and its children so far."""
        return sum(times.user + times.system for times in (item.cpu_times() for item in self._processes()))

    def resident_bytes(self) -> int:
        """Return the resident set size of the process and its children."""
        return sum(item.memory_info().rss for item in self._processes())

    def _processes(self) -> list[psutil.Process]:
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children; nothing if they have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the process and its children."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self.signal(signal.SIGKILL)  # children may be left although the process has ended
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
