"""The server's processes: uvicorn around the application, once or several times."""

import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from bert_runtime import DeploymentError
from bert_runtime.machine import available_cores
from bert_serve.http.app import create_app
from bert_serve.logs import configure_logs
from bert_serve.settings import ServerSettings

__all__ = ["run_server"]

_log = logging.getLogger("bert_serve")

_KEEP_ALIVE_S = 75
"""Seconds for which an idle connection stays open: longer than the 60 s of usual load balancers, which would otherwise
send a request into a connection that is being closed."""

_START_S = 60
"""Seconds that a worker has to load its models before it takes the place of another one, after SIGHUP. A judgement."""

_CONNECT_S = 1.0
"""Seconds for a connection to a Unix socket: a server whose queue of connections is full listens, too. A judgement."""


def run_server(
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    uds: Path | None,
    drain_s: float,
    workers: int = 1,
    log_level: str = "info",
) -> int:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that are in progress.

    Args:
        settings: what to serve, and to whom.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        uds: path of a Unix socket to listen on instead.
        drain_s: seconds that requests in progress have to end after the signal.
        workers: processes that answer, each with its share of the cores and a queue of its own.
        log_level: least severe lines of the log.

    Returns:
        The exit code: 0 after a signal, 1 where a bundle could not be loaded or the address is taken.

    Raises:
        DeploymentError: there cannot be a socket at `uds`.
    """
    if uds is not None:
        _check_socket_path(uds)
    options = {
        "host": host,
        "port": port,
        "uds": None if uds is None else str(uds),
        "loop": "uvloop" if sys.platform != "win32" else "asyncio",
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,  # the middleware's line has the request's id
        "server_header": False,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": round(drain_s),
        "timeout_worker_healthcheck": _START_S,
    }
    configure_logs(log_level)
    if not settings.api_keys and uds is None and not _is_loopback(host):
        _log.warning("no API key is set: whoever reaches %s can use the models", host)
    try:
        if workers == 1:
            return _run_alone(settings, options)
        return _run_workers(_share_cores(settings, workers), options, workers, log_level)
    except SystemExit:  # the address is taken; the log says so
        return 1


def _is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_socket_path(path: Path) -> None:
    """Raise `DeploymentError` where a Unix socket cannot be made; one that an earlier server left is replaced."""
    if not path.parent.is_dir():
        raise DeploymentError(
            f"{path}: expected the path of a Unix socket, found no folder {path.parent}; make it first"
        )
    if path.exists() and not path.is_socket():
        raise DeploymentError(f"{path}: expected a Unix socket or no file, found another file; choose another path")
    if path.is_socket() and _is_listening(path):
        raise DeploymentError(f"{path}: another server listens there; end it, or choose another path")


def _run_alone(settings: ServerSettings, options: dict[str, Any]) -> int:
    """Serve in this process; it answers probes while the models are being loaded."""
    failed = False

    def stop() -> None:
        nonlocal failed
        failed = server.should_exit = True

    server = uvicorn.Server(uvicorn.Config(create_app(settings, stop), **options))

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True  # before uvicorn has its own handlers; it also raises the signal that ended it again

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with _bound(server.config) if server.config.uds else nullcontext() as shared:
        server.run(sockets=[shared] if shared else None)
    return 1 if failed else 0


def _run_workers(settings: ServerSettings, options: dict[str, Any], workers: int, log_level: str) -> int:
    """Serve in several processes, which share the socket; uvicorn starts those anew that die.

    A worker accepts connections once its models are loaded, so that none meets one that is not ready.
    """
    with TemporaryDirectory(prefix="bert-serve-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # there, workers add up their metrics
        make_app = partial(_worker_app, settings, log_level)
        config = uvicorn.Config(make_app, factory=True, workers=workers, **options)
        with _bound(config) as shared:
            supervisor = _Supervisor(config, sockets=[shared])
            supervisor.run()
    return 1 if any(process.exitcode not in (0, -signal.SIGTERM) for process in supervisor.processes) else 0


class _Supervisor(Multiprocess):
    """Workers that share a socket, which is closed before they finish their requests: new clients are refused.

    Those that end are replaced, but not those that are slow to answer uvicorn's pings: a worker that loads a large
    model or tokenizes a long text may hold the GIL for longer than uvicorn waits, which waits for each in turn.
    """

    def terminate_all(self) -> None:
        for shared in self.sockets:
            shared.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set() or process.process.is_alive():
                continue
            process.join()
            if process.exitcode == STARTUP_FAILURE:  # it would fail again
                _log.error("process %s could not start", process.pid)
                self.should_exit.set()
                return
            _log.warning("process %s ended; another takes its place", process.pid)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()


@contextmanager
def _bound(config: uvicorn.Config) -> Iterator[socket.socket]:
    """Bind the server's socket; a Unix socket takes the place of one that was left, and is removed afterwards."""
    path = Path(config.uds) if config.uds else None
    if path and path.is_socket() and not _is_listening(path):
        path.unlink(missing_ok=True)
    with config.bind_socket() as shared:
        made = path and path.stat()
        try:
            yield shared
        finally:
            with suppress(FileNotFoundError):
                if path and made and _identity(path.stat()) == _identity(made):  # and not a later server's
                    path.unlink()


def _identity(found: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from a later one, which may have the same inode."""
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_listening(path: Path) -> bool:
    """Return whether a server accepts connections at a Unix socket, or may do so for another user."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(str(path))
        except OSError as error:
            return not isinstance(error, ConnectionRefusedError)
        return True


def _worker_app(settings: ServerSettings, log_level: str) -> FastAPI:
    """Return a worker's application."""
    configure_logs(log_level)
    return create_app(settings, wait_for_models=True)


def _share_cores(settings: ServerSettings, workers: int) -> ServerSettings:
    """Give each worker its share of the cores, unless the settings name a number of threads."""
    load_options = dict(settings.engine.load_options)
    if load_options.get("threads") is None:
        load_options["threads"] = max(1, available_cores() // workers)
    return replace(settings, engine=replace(settings.engine, load_options=load_options))
