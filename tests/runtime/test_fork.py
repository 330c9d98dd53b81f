"""Processes that are forked after a model was loaded: they refuse to run it, and end."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

_FORK = """
import ctypes, gc, os, sys
from bert_runtime import load
from bert_runtime.errors import ForkedSessionError

bundle, state = sys.argv[1:]
model = load(bundle, threads=2)
if state == "after running":
    model(["hello"] * 64)
child = os.fork()
if child == 0:
    if state == "refused":
        try:
            model("hello")
        except ForkedSessionError:
            pass
    if state == "collected":
        del model
        gc.collect()
    if state == "loads its own":
        del model
        assert load(bundle, threads=2)("hello").label
    ctypes.CDLL(None).printf(b"buffered by C")
    sys.exit(7)
sys.exit(0 if os.waitpid(child, 0)[1] == 7 << 8 else 1)
"""


@pytest.mark.parametrize("state", ["unused", "after running", "refused", "collected", "loads its own"])
def test_forked_child_exits_with_its_own_status(classifier_bundle: Path, state: str) -> None:
    command = [sys.executable, "-c", _FORK, str(classifier_bundle), state]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout) == (0, "buffered by C"), finished.stderr


_APP = """
from bert_runtime import load
from bert_runtime.errors import ForkedSessionError

model = load({bundle!r}, threads=2)
own = []


def app(environ, start_response):
    try:
        if environ["PATH_INFO"] == "/preloaded":
            answer = model("hello").label
        else:
            own.extend([load({bundle!r}, threads=2)] if not own else [])
            answer = own[0]("hello").label
    except ForkedSessionError as error:
        answer = str(error)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]
"""


@pytest.fixture
def preloaded_server(classifier_bundle: Path, tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    pytest.importorskip("gunicorn")
    (tmp_path / "app.py").write_text(_APP.format(bundle=str(classifier_bundle)), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", address, "app:app"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        yield f"http://{address}", server
        server.kill()


def get(url: str) -> str:
    """Return the body of a page, waiting until the server listens."""
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return str(response.read().decode())
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def test_gunicorn_preload_refuses_and_stops(preloaded_server: tuple[str, "subprocess.Popen[str]"]) -> None:
    url, server = preloaded_server
    assert "call bert_runtime.load in each worker" in get(f"{url}/preloaded")
    assert get(f"{url}/own") in ("greeting", "farewell", "question")
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=20) == 0
    assert server.stderr is not None
    assert "SIGKILL" not in server.stderr.read()
