"""The server as a process: sockets, signals, exit codes, memory."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from httpx2 import Client, ConnectError, HTTPTransport

from bert_runtime import DeploymentError
from bert_serve.metrics import _forget_dead_workers
from bert_serve.server import _bound, _is_listening, run_server

from .conftest import server_settings, wait_until

Start = Callable[..., tuple[subprocess.Popen[str], str]]

_COMMAND = [sys.executable, "-c", "from bert_export.cli.serve import serve; serve()"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts `serve` with some arguments on a free port; returns the process and its address.

    The log of the first is `tmp_path / "0.log"`.
    """
    processes: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [*_COMMAND, *map(str, arguments), "--port", str(port), "--threads", "1"]
        with (tmp_path / f"{len(processes)}.log").open("w") as log:
            process = subprocess.Popen(command, stderr=log, text=True)
        processes.append(process)
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or ready(address))
        return process, address

    yield start_one
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def ready(address: str) -> bool:
    try:
        with Client() as client:
            return client.get(f"{address}/health").status_code == 200
    except ConnectError:
        return False


def embed(client: Client, address: str, texts: list[str]) -> Any:
    response = client.post(f"{address}/v1/embeddings", json={"model": "toy", "input": texts}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_sigterm_finishes_the_requests_in_progress_and_takes_no_more(start: Start, embedding_bundle: Path) -> None:
    process, address = start(embedding_bundle, "--max-texts", "100000")
    answers: list[Any] = []
    texts = ["hello there, how do you do this morning?"] * 20_000

    def ask() -> None:
        with Client() as client:
            answers.append(embed(client, address, texts))

    thread = threading.Thread(target=ask)
    thread.start()
    with Client() as client:
        wait_until(lambda: 'bert_queue_tokens{model="embedding"} 0.0' not in client.get(f"{address}/metrics").text)
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert len(answers[0]) == len(texts)
    assert process.wait(30) == 0
    assert not ready(address)


def test_a_request_that_exceeds_the_drain_is_told_to_try_again(
    start: Start, embedding_bundle: Path, tmp_path: Path
) -> None:
    process, address = start(embedding_bundle, "--max-texts", "100000", "--drain-s", "0", "--max-queue-ms", "60000")
    responses: list[Any] = []
    body = {"inputs": ["hello there, how do you do this morning?"] * 100_000}

    def ask() -> None:
        with Client() as client:
            responses.append(client.post(f"{address}/embed", json=body, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    with Client() as client:
        wait_until(lambda: 'bert_queue_tokens{model="embedding"} 0.0' not in client.get(f"{address}/metrics").text)
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert (responses[0].status_code, responses[0].headers["retry-after"]) == (503, "1")
    assert responses[0].json() == {"error": "the server is ending; try again", "error_type": "Unhealthy"}
    assert process.wait(30) == 0
    assert "Traceback" not in (tmp_path / "0.log").read_text(encoding="utf-8")


def test_logs_are_json_without_texts(start: Start, embedding_bundle: Path, tmp_path: Path) -> None:
    process, address = start(embedding_bundle)
    with Client() as client:
        embed(client, address, ["a secret"])
        client.post(f"{address}/v1/embeddings", json={"model": "toy", "input": [["a secret"]]})
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    lines = (tmp_path / "0.log").read_text(encoding="utf-8").splitlines()
    requests = [line for line in map(json.loads, lines) if line.get("route") == "/v1/embeddings"]
    assert requests[0]["status"] == 200
    assert all(line["request_id"] and line["milliseconds"] > 0 for line in requests)
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_unix_socket_serves_and_is_removed(workers: int, embedding_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [*_COMMAND, str(embedding_bundle), "--uds", str(path), "--workers", str(workers), "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: path.exists() and _is_listening(path))
        with Client(transport=HTTPTransport(uds=str(path))) as client:
            wait_until(lambda: client.get("http://server/health").status_code == 200)
            assert len(embed(client, "http://server", ["hello"])) == 1
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert not path.exists()


def test_a_socket_of_another_server_is_not_taken_away(embedding_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _bound(uvicorn.Config("app", uds=str(path))) as bound:
        bound.listen()
        with pytest.raises(DeploymentError, match=f"{re.escape(str(path))}: another server listens there; end it"):
            run_server(server_settings({"toy": embedding_bundle}), host="127.0.0.1", port=0, uds=path, drain_s=1)
        assert path.is_socket()


def test_workers_take_the_place_of_a_unix_socket_that_was_left_and_of_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with _bound(uvicorn.Config("app", uds=str(path))) as bound:
        assert not _is_listening(path)
        bound.listen()
        assert _is_listening(path)


def test_workers_that_end_do_not_remove_a_later_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _bound(uvicorn.Config("app", uds=str(path))) as ended, socket.socket(socket.AF_UNIX) as later:
        ended.close()
        path.unlink()
        later.bind(str(path))
    assert path.is_socket()


def test_gauges_of_workers_that_were_killed_are_forgotten(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"gauge_livesum_{ended.pid}.db", f"gauge_livesum_{os.getpid()}.db", f"counter_{ended.pid}.db"]
    for name in names:
        (tmp_path / name).touch()
    _forget_dead_workers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])


@pytest.mark.parametrize(("name", "found"), [("none/s", "found no folder"), ("file", "found another file")])
def test_a_socket_that_cannot_be_made_is_refused_with_its_path(
    name: str, found: str, embedding_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / name
    with pytest.raises(DeploymentError, match=f"{re.escape(str(path))}: expected .* {found}"):
        run_server(server_settings({"toy": embedding_bundle}), host="127.0.0.1", port=0, uds=path, drain_s=1)


def test_a_taken_port_is_an_error_in_one_line(start: Start, embedding_bundle: Path) -> None:
    _, address = start(embedding_bundle)
    command = [*_COMMAND, str(embedding_bundle), "--port", address.rpartition(":")[2]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_workers_share_a_port_and_add_up_their_metrics(start: Start, embedding_bundle: Path) -> None:
    process, address = start(embedding_bundle, "--workers", "2")
    for _ in range(20):
        with Client() as client:
            embed(client, address, ["hello"])
    with Client() as client:
        metrics = client.get(f"{address}/metrics").text
    assert 'bert_requests_total{route="/v1/embeddings",status="200"} 20.0' in metrics
    assert 'bert_texts_total{model="embedding"} 20.0' in metrics
    assert 'bert_queue_tokens{model="embedding"} 0.0' in metrics
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of a server's workers, in the order of their start."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_ends_is_replaced_and_one_that_stalls_is_not(start: Start, embedding_bundle: Path) -> None:
    """As one whose long text or large model takes the GIL for longer than uvicorn's pings wait."""
    process, address = start(embedding_bundle, "--workers", "2")
    stalled, killed = workers_of(process)
    os.kill(stalled, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    try:
        wait_until(lambda: set(workers_of(process)) - {stalled, killed} != set())
        wait_until(lambda: ready(address))
        assert stalled in workers_of(process)
    finally:
        os.kill(stalled, signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [
        ("127.0.0.1", (), False), ("127.0.0.2", (), False), ("::1", (), False), ("localhost", (), False),
        ("0.0.0.0", ("one",), False), ("0.0.0.0", (), True), ("::", (), True), ("server", (), True),
    ],
)  # fmt: skip
def test_an_open_server_that_others_can_reach_is_a_warning(
    host: str,
    keys: tuple[str, ...],
    warns: bool,
    embedding_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("bert_serve.server._run_alone", lambda settings, options: 0)
    monkeypatch.setattr("bert_serve.server.configure_logs", lambda level: None)
    settings = server_settings({"toy": embedding_bundle}, api_keys=keys)
    run_server(settings, host=host, port=0, uds=None, drain_s=1)
    assert ("no API key is set" in caplog.text) is warns


def test_workers_that_cannot_load_a_bundle_end_the_server(start: Start, embedding_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(embedding_bundle, tmp_path / "damaged"))
    (bundle / "tokenizer.json").write_text("{}", encoding="utf-8")
    process, _ = start(bundle, "--workers", "2")
    assert process.wait(30) == 1
    log = (tmp_path / "0.log").read_text(encoding="utf-8")
    assert "model 'damaged' cannot be loaded" in log


@pytest.mark.slow
def test_a_rolling_restart_loses_no_request(start: Start, embedding_bundle: Path) -> None:
    """As behind a Service: a server is taken out of the rotation, then told to stop, while its requests go on."""
    servers = [start(embedding_bundle), start(embedding_bundle)]
    rotation, stop, failures = [address for _, address in servers], threading.Event(), []
    answered = [0]

    def ask() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            try:
                with Client() as client:
                    embed(client, rotation[count % len(rotation)], ["hello"] * 8)
                answered[0] += 1
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for process, address in servers:
            seen = answered[0]
            wait_until(lambda seen=seen: answered[0] > seen + 20)  # type: ignore[misc]
            rotation.append(start(embedding_bundle)[1])
            rotation.remove(address)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert answered[0] > 40


def test_threads_stay_few_under_many_callers(start: Start, embedding_bundle: Path) -> None:
    process, address = start(embedding_bundle)

    def ask() -> None:
        with Client() as client:
            for _ in range(2):
                embed(client, address, ["hello there " * 400] * 4)  # long enough to be tokenized in a thread

    callers = [threading.Thread(target=ask) for _ in range(32)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 48
