"""Servers that the tests talk to: inside the process, or a real one on a loopback port."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from bert_runtime import TASKS
from bert_serve.http.app import create_app
from bert_serve.settings import EngineSettings, ServerSettings

from ..task_bundles import TaskBundles

StartClient = Callable[..., TestClient]
StartServer = Callable[..., str]


def server_settings(bundles: dict[str, Path], engine: dict[str, Any] | None = None, **settings: Any) -> ServerSettings:
    """Return settings for some bundles: one thread each, and what a test changes."""
    options = {"load_options": {"threads": 1}} | (engine or {})
    return ServerSettings(bundles=bundles, engine=EngineSettings(**options), **settings)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition; fail where it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def running(settings: ServerSettings) -> Iterator[TestClient]:
    """Run a server inside the process, and give its client once all models are ready."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        yield client


@pytest.fixture
def start_client() -> Iterator[StartClient]:
    """A function that starts an application inside the process: `start_client({"name": bundle}, engine={…}, …)`."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda bundles, engine=None, **settings: stack.enter_context(
            running(server_settings(bundles, engine, **settings))
        )


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """A function that starts a real server on a loopback port and returns its address: `http://127.0.0.1:PORT`."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(bundles: dict[str, Path], engine: dict[str, Any] | None = None, **settings: Any) -> str:
        app = create_app(server_settings(bundles, engine, **settings))
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        wait_until(lambda: server.started and app.state.models.ready)
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def embedding_client(embedding_bundle: Path) -> Iterator[TestClient]:
    """A client of a server that serves the toy embedding bundle as `toy`."""
    with running(server_settings({"toy": embedding_bundle})) as client:
        yield client


@pytest.fixture(scope="session")
def classifier_client(classifier_bundle: Path) -> Iterator[TestClient]:
    """A client of a server that serves the toy classifier as `toy`."""
    with running(server_settings({"toy": classifier_bundle})) as client:
        yield client


@pytest.fixture(scope="session")
def tasks_client(task_bundles: TaskBundles) -> Iterator[TestClient]:
    """A client of a server of a bundle of every task, under its name, and of `reranker`."""
    with running(server_settings({name: task_bundles[name] for name in (*TASKS, "reranker")})) as client:
        yield client
