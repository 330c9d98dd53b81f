"""A bundle that is replaced on disk while it is served."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bert_export import export
from bert_serve.errors import ServeError
from bert_serve.serving import served_model
from bert_serve.serving.engine import Engine

from .conftest import StartClient, running, server_settings, wait_until


def embed(client: TestClient, text: str = "hello there") -> list[float]:
    response = client.post("/v1/embeddings", json={"model": "toy", "input": [text]})
    assert response.status_code == 200, response.text
    return [round(value, 3) for value in response.json()["data"][0]["embedding"]]


@pytest.fixture
def bundle(tmp_path: Path, embedding_bundle: Path) -> Path:
    return Path(shutil.copytree(embedding_bundle, tmp_path / "toy"))


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory, embedding_checkpoint: Path) -> Path:
    """The toy embedding checkpoint with its token embeddings negated: other answers from the same format."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(embedding_checkpoint, tmp_path_factory.mktemp("other") / "checkpoint"))
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    save_file(tensors | {name: -tensors[name]}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_replaced_bundle_is_served_without_a_lost_request(
    start_client: StartClient, bundle: Path, other_checkpoint: Path
) -> None:
    # The export runs in this process and holds up its threads, on a busy machine for seconds.
    client = start_client({"toy": bundle}, {"max_queue_ms": 60_000}, reload_s=0.05)
    before, stop = embed(client), threading.Event()
    answers: list[list[float]] = []

    def ask() -> None:
        while not stop.is_set():
            answers.append(embed(client))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        export(other_checkpoint, bundle, force=True)
        wait_until(lambda: 'bert_reloads_total{model="toy"} 1.0' in client.get("/metrics").text)
        after = embed(client)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert after != before
    assert {tuple(answer) for answer in answers} == {tuple(before), tuple(after)}


def test_a_damaged_replacement_leaves_the_old_bundle_in_service(start_client: StartClient, bundle: Path) -> None:
    client = start_client({"toy": bundle}, reload_s=0.05)
    before = embed(client)
    text = (bundle / "bundle.json").read_text(encoding="utf-8")
    (bundle / "bundle.json").write_text(text.replace("sentence-embedding", "sentence-embeddin"), encoding="utf-8")
    wait_until(lambda: 'bert_reload_failures_total{model="toy"} 1.0' in client.get("/metrics").text)
    assert embed(client) == before
    assert client.get("/health").status_code == 200


def test_a_replacement_that_arrives_file_by_file_is_served_when_it_is_complete(
    start_client: StartClient, bundle: Path, other_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "_RETRY_S", (0.05, 0.2))
    export(other_checkpoint, new := tmp_path / "new")
    client = start_client({"toy": bundle}, reload_s=0.05)
    before = embed(client)
    weights = [path for path in bundle.iterdir() if path.name != "bundle.json"]
    for path in weights:
        path.unlink()
    shutil.copy(new / "bundle.json", bundle)
    wait_until(lambda: 'bert_reload_failures_total{model="toy"} 1.0' in client.get("/metrics").text)
    assert embed(client) == before
    for path in new.iterdir():
        if path.name != "bundle.json":
            shutil.copy(path, bundle)
    wait_until(lambda: 'bert_reloads_total{model="toy"} 1.0' in client.get("/metrics").text)
    assert embed(client) != before


def test_an_error_of_the_system_ends_neither_the_watch_nor_the_start_in_silence(
    start_client: StartClient, bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(served_model, "_RETRY_S", (0.05, 0.2))
    client = start_client({"toy": bundle}, reload_s=0.05)
    app: Any = client.app
    served = app.state.models["toy"]
    real = served._open

    def fail() -> Engine:
        raise PermissionError("not yours")

    served._open = fail
    (bundle / "bundle.json").touch()
    wait_until(lambda: 'bert_reload_failures_total{model="toy"} 1.0' in client.get("/metrics").text)
    served._open = real
    wait_until(lambda: 'bert_reloads_total{model="toy"} 1.0' in client.get("/metrics").text)
    assert "the old one stays, and it is tried again: not yours" in caplog.text


def test_an_engine_that_was_replaced_ends_after_its_stragglers(
    start_client: StartClient, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "_RETIRE_S", 0.0)
    client = start_client({"toy": bundle}, reload_s=0.05)
    app: Any = client.app
    old: Engine = app.state.models["toy"].engine
    manifest = bundle / "bundle.json"
    manifest.touch()
    wait_until(lambda: app.state.models["toy"].engine is not old)
    with pytest.raises(ServeError, match="being replaced"):
        client.portal.call(_ask_directly, old)  # type: ignore[union-attr] # inside a `with`, it has one


def test_an_engine_that_was_just_replaced_ends_with_the_server(bundle: Path) -> None:
    with running(server_settings({"toy": bundle}, reload_s=0.05)) as client:
        app: Any = client.app
        old: Engine = app.state.models["toy"].engine
        (bundle / "bundle.json").touch()
        wait_until(lambda: app.state.models["toy"].engine is not old)
    with pytest.raises(ServeError, match="being replaced"), old.reserve(["hello"]):
        pass
    assert old.join(0)


async def _ask_directly(engine: Engine) -> None:
    await engine.outputs(await engine.encode(["hello"]))
