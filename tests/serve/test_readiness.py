"""Health that says ready only when the models are, and an end that waits for the last batch."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tokenizers import Encoding

from bert_runtime import Model
from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_serve.http.app import create_app
from bert_serve.serving import served_model

from .conftest import server_settings, wait_until


def test_a_server_is_alive_before_it_is_ready(embedding_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    open_engine = served_model.open_engine

    def load_slowly(*arguments: Any) -> Any:
        free.wait(10)
        return open_engine(*arguments)

    monkeypatch.setattr(served_model, "open_engine", load_slowly)
    with TestClient(create_app(server_settings({"toy": embedding_bundle}))) as client:
        assert client.get("/live").status_code == 200
        for response in (client.get("/health"), client.post("/v1/embeddings", json={"model": "toy", "input": "a"})):
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert "being loaded" in response.text
        free.set()
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/embeddings", json={"model": "toy", "input": "a"}).status_code == 200


def test_a_bundle_that_fails_its_self_test_is_never_ready(
    embedding_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise BundleError("self-test INT8 failed: max abs difference 3")

    monkeypatch.setattr(served_model, "open_engine", fail)
    failed = threading.Event()
    with TestClient(create_app(server_settings({"toy": embedding_bundle}), failed.set)) as client:
        assert failed.wait(10)
        assert client.get("/health").status_code == 503


def test_the_last_batch_ends_before_the_application(embedding_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of a request that was given up: a thread in native code must not outlive Python."""
    ran: list[str] = []
    compute = Model.run_encodings

    def slow(model: Model, encodings: Sequence[Encoding]) -> list[FloatArray]:
        ran.append("begun")
        time.sleep(0.3)
        ran.append("ended")
        return compute(model, encodings)

    app = create_app(server_settings({"embedding": embedding_bundle}), wait_for_models=True)

    async def give_up() -> None:
        async with app.router.lifespan_context(app):
            monkeypatch.setattr(Model, "run_encodings", slow)
            request = asyncio.create_task(app.state.models["embedding"].engine.run(["hello there"]))
            while not ran:
                await asyncio.sleep(0.01)
            request.cancel()

    asyncio.run(give_up())
    assert ran == ["begun", "ended"]
