"""The server process: uvicorn around the application."""

import sys
from pathlib import Path

import uvicorn

from bert_serve.http.app import create_app
from bert_serve.settings import ServerSettings

__all__ = ["run_server"]


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
            timeout_graceful_shutdown=round(drain_s),
        )
    )
    server.run()
    return 0 if server.started and not failed else 1
