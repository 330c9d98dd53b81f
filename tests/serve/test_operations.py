"""Probes, metrics, request ids, keys and limits."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from bert_serve.http.app import create_app
from bert_serve.http.middleware import BodyLimit

from .conftest import StartClient, server_settings, wait_until


def test_health_names_the_models(embedding_client: TestClient) -> None:
    assert embedding_client.get("/health").json() == {"status": "ready", "models": ["toy"]}


def test_metrics_count_requests_by_route_and_status(embedding_client: TestClient) -> None:
    embedding_client.get("/nowhere")
    text = embedding_client.get("/metrics").text
    assert 'bert_requests_total{route="/health",status="200"}' in text
    assert 'bert_requests_total{route="other",status="404"}' in text
    assert 'bert_queue_tokens{model="toy"} 0.0' in text


def test_the_request_id_of_a_client_is_kept_unless_it_could_forge_a_log(embedding_client: TestClient) -> None:
    assert embedding_client.get("/live", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert embedding_client.get("/live", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_without_a_key_only_probes_and_metrics_answer(start_client: StartClient, embedding_bundle: Path) -> None:
    client = start_client({"toy": embedding_bundle}, api_keys=("one", "two"))
    assert client.get("/live").status_code == 200
    assert client.get("/metrics").status_code == 200
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
        response = client.get("/nowhere", headers=headers)
        assert response.status_code == 401
        assert "Authorization: Bearer KEY" in response.json()["error"]["message"]
    assert client.get("/nowhere", headers={"Authorization": "Bearer two"}).status_code == 404
    assert client.post("/", json={"inputs": "hello"}).status_code == 401
    assert client.post("/", json={"inputs": "hello"}, headers={"Authorization": "Bearer two"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/embeddings", "error"), ("/embed", "error"), ("/v1/rerank", "message"), ("/v2/models/toy/infer", "error")],
)
def test_what_is_refused_before_its_route_has_the_format_of_its_route(
    path: str, field: str, start_client: StartClient, embedding_bundle: Path
) -> None:
    client = start_client({"toy": embedding_bundle}, api_keys=("one",), max_body_bytes=100)
    no_key = client.post(path, json={"inputs": "hello"})
    too_large = client.post(path, json={"inputs": "hello" * 100}, headers={"Authorization": "Bearer one"})
    for response, status, text in ((no_key, 401, "Bearer KEY"), (too_large, 413, "100 bytes, found 513")):
        assert response.status_code == status
        message = response.json()[field]
        assert text in (message["message"] if path.startswith("/v1/emb") else message)
    metrics = client.get("/metrics").text
    assert 'bert_rejected_total{reason="http_401"} 1.0' in metrics
    assert 'bert_rejected_total{reason="http_413"} 1.0' in metrics


def test_bodies_in_flight_have_a_limit_together() -> None:
    """Of a hundred requests that send the largest body and wait, those beyond 32 are refused; later ones are not."""

    async def ask_many() -> list[int]:
        answered = asyncio.Event()

        async def read_and_wait(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await answered.wait()

        limit = BodyLimit(read_and_wait, 1000)
        asked = [asyncio.create_task(ask(limit)) for _ in range(100)]
        await asyncio.sleep(0.05)
        answered.set()
        return [*await asyncio.gather(*asked), await ask(limit)]

    async def ask(limit: BodyLimit) -> int:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

        with contextlib.suppress(HTTPException):
            await limit({"type": "http", "headers": []}, receive, receive)  # type: ignore[arg-type]
            return 200
        return 429

    statuses = asyncio.run(ask_many())
    assert (statuses.count(200), statuses.count(429), statuses[-1]) == (33, 68, 200)


def test_what_is_refused_before_its_route_counts_for_its_route(
    start_client: StartClient, embedding_bundle: Path
) -> None:
    client = start_client({"toy": embedding_bundle}, api_keys=("one",))
    client.post("/embed", json={"inputs": "hello"})
    assert 'bert_requests_total{route="/embed",status="401"} 1.0' in client.get("/metrics").text


def test_an_error_of_the_server_has_the_id_that_the_log_has(
    start_client: StartClient, embedding_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = start_client({"toy": embedding_bundle})
    app: Any = client.app
    app.state.models["toy"].engine.encode = None  # calling it fails
    response = client.post("/embed", json={"inputs": "hello"}, headers={"X-Request-Id": "abc-1"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "abc-1")
    assert response.json()["error"] == "the server failed on this request; its log says why"
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.fields == {"request_id": "abc-1"}  # type: ignore[attr-defined]
    assert 'bert_requests_total{route="/embed",status="500"} 1.0' in client.get("/metrics").text


def test_a_client_that_goes_while_it_sends_is_no_failure_of_the_server(
    start_client: StartClient, embedding_bundle: Path
) -> None:
    client = start_client({"toy": embedding_bundle})
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/embed", "raw_path": b"/embed", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")], "app": client.app,
    }  # fmt: skip
    client.portal.call(client.app, scope, receive, send)  # type: ignore[union-attr,arg-type] # inside a `with`
    assert sent[0]["status"] == 499
    assert 'bert_rejected_total{reason="client_gone"} 1.0' in client.get("/metrics").text


def test_no_text_fails_before_room_for_it_is_given_back(start_client: StartClient, embedding_bundle: Path) -> None:
    client = start_client({"toy": embedding_bundle}, {"max_tokens_per_text": 4})
    assert client.post("/embed", json={"inputs": "hello " * 20}).status_code == 413
    assert 'bert_queue_tokens{model="toy"} 0.0' in client.get("/metrics").text


def test_tokens_that_are_computed_do_not_wait(start_client: StartClient, embedding_bundle: Path) -> None:
    client = start_client({"toy": embedding_bundle})
    model = client.app.state.models["toy"].model  # type: ignore[attr-defined] # typed as any ASGI application
    started, go_on, run = threading.Event(), threading.Event(), model.run_encodings

    def run_when_told(encodings: Any) -> Any:
        started.set()
        go_on.wait(30)
        return run(encodings)

    model.run_encodings = run_when_told
    request = threading.Thread(target=client.post, args=("/embed",), kwargs={"json": {"inputs": "hello"}})
    request.start()
    try:
        assert started.wait(30)
        text = client.get("/metrics").text
    finally:
        go_on.set()
        request.join(30)
    assert 'bert_queue_tokens{model="toy"} 0.0' in text


def test_other_origins_may_call_only_where_they_are_named(start_client: StartClient, embedding_bundle: Path) -> None:
    closed = start_client({"toy": embedding_bundle}).get("/live", headers={"Origin": "http://page.test"})
    assert "access-control-allow-origin" not in closed.headers
    client = start_client({"toy": embedding_bundle}, cors_origins=("http://page.test",))
    response = client.get("/live", headers={"Origin": "http://page.test"})
    assert response.headers["access-control-allow-origin"] == "http://page.test"


def test_a_page_can_read_that_the_server_failed(start_client: StartClient, embedding_bundle: Path) -> None:
    client = start_client({"toy": embedding_bundle}, cors_origins=("http://page.test",))
    app: Any = client.app
    app.state.models["toy"].engine.encode = None  # calling it fails
    response = client.post("/embed", json={"inputs": "hello"}, headers={"Origin": "http://page.test"})
    assert response.status_code == 500
    assert response.headers["access-control-allow-origin"] == "http://page.test"


def test_a_body_that_is_no_json_is_refused_with_the_place(embedding_client: TestClient) -> None:
    response = embedding_client.post("/", content=b'{"inputs": ', headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json() == {"error": "Invalid JSON: EOF while parsing a value at line 1 column 11"}


def test_outputs_that_would_fill_the_memory_are_refused(
    embedding_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_serve.serving.request_limits._MAX_OUTPUT_BYTES", 1 << 20)
    assert embedding_client.post("/embed", json={"inputs": ["a"] * 100}).status_code == 200
    monkeypatch.setattr(type(embedding_client.app.state.models["toy"].engine.model), "_vector_bytes", 1 << 20)
    response = embedding_client.post("/embed", json={"inputs": ["a", "b"]})
    assert (response.status_code, response.json()["error_type"]) == (413, "Validation")
    assert response.json()["error"].startswith("expected texts of which the model computes at most 1 MiB of float32")


def test_probes_fail_while_a_model_fails_on_requests_and_on_its_self_test(
    start_client: StartClient, embedding_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_serve.http.app._CHECK_S", 3600)  # the test looks itself
    client = start_client({"toy": embedding_bundle, "other": embedding_bundle}, reload_s=None)
    app: Any = client.app
    served = app.state.models["toy"]
    probes = ("/health", "/live", "/v2/health/ready", "/v2/health/live", "/v2/models/toy/ready")

    def fail(*given: Any) -> Any:
        raise RuntimeError("the GPU is lost")

    def statuses_after_requests(num_requests: int) -> set[int]:
        for _ in range(num_requests):
            client.post("/embed?model=toy", json={"inputs": "hello"})
        client.portal.call(served.check_failures)  # type: ignore[union-attr] # inside a `with`
        return {client.get(path).status_code for path in probes}

    with monkeypatch.context() as patch:
        patch.setattr(served.engine._worker, "_model", Mock(run_encodings=fail))
        assert statuses_after_requests(9) == {200}  # the self-test passes: it was the requests
    for num_requests in (0, 1):  # the self-test, or a request tells that the model works again
        with monkeypatch.context() as patch:
            patch.setattr(served.model, "run_encodings", fail)
            assert statuses_after_requests(2) == {200}
            assert statuses_after_requests(1) == {503}
            assert "model 'toy' fails on requests, and on its self-test" in client.get("/health").text
            assert statuses_after_requests(0) == {503}
            assert client.get("/v2/models/other/ready").status_code == 200
        assert statuses_after_requests(num_requests) == {200}


def test_a_mounted_application_has_its_paths_below_its_own(embedding_bundle: Path) -> None:
    app = create_app(server_settings({"toy": embedding_bundle}, api_keys=("one",)))
    outer = FastAPI(lifespan=lambda outer: app.router.lifespan_context(app))
    outer.mount("/bert", app)
    with TestClient(outer) as client:
        wait_until(lambda: client.get("/bert/health").status_code == 200)  # without a key
        assert client.post("/bert/embed", json={"inputs": "hello"}).json()["error_type"] == "Validation"
        headers = {"Authorization": "Bearer one"}
        assert client.post("/bert/embed", json={"inputs": "hello"}, headers=headers).status_code == 200
        assert client.get("/bert/v2/nowhere", headers=headers).json() == {"error": "Not Found"}


@pytest.mark.parametrize("path", ["/health", "/live", "/v2/health/ready", "/v2/health/live"])
def test_probes_answer_head(path: str, embedding_client: TestClient) -> None:
    response = embedding_client.head(path)
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["/health", "/live"])
def test_probes_take_no_other_method(embedding_client: TestClient, path: str) -> None:
    assert embedding_client.post(path).status_code == 405
