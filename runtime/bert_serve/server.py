"""The server process: uvicorn around the application."""

import signal
import sys
from pathlib import Path

import uvicorn

from bert_serve.http.app import create_app
from bert_serve.settings import ServerSettings

__all__ = ["run_server"]

_KEEP_ALIVE_S = 75
"""Seconds for which an idle connection stays open: longer than the 60 s of usual load balancers, which would otherwise
send a request into a connection that is being closed."""


def run_server(settings: ServerSettings, *, host: str, port: int, uds: Path | None, drain_s: float) -> int:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that are in progress.

    Args:
        settings: what to serve, and to whom.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        uds: path of a Unix socket to listen on instead.
        drain_s: seconds that requests in progress have to end after the signal.

    Returns:
        The exit code: 0 after a signal, 1 where a bundle could not be loaded or the address is taken.
    """
    failed = False

    def stop() -> None:
        nonlocal failed
        failed = server.should_exit = True

    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings, stop),
            host=host,
            port=port,
            uds=None if uds is None else str(uds),
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # the middleware's line has the request's id
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=round(drain_s),
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)  # uvicorn raises the signal that ended it once more
    try:
        server.run()
    except SystemExit:  # the address is taken; the log says so
        return 1
    return 1 if failed else 0
