"""Limits of what a request may ask for, and of what all requests hold."""

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from bert_serve.http.middleware import BodyLimit

_LIMITS = "bert_serve.serving.request_limits"


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("/v1/embeddings", {"input": ["a", *range(1000)]}, "input.texts.1: Input should be a valid string"),
        ("/embed", {"inputs": [2, *"abc" * 99]}, "inputs.ids.1: Input should be a valid integer"),
        ("/embed", {"inputs": [[2, 3], *[["a", "b"]] * 99]}, "inputs.ids of several.1.0: Input should be a valid"),
        ("/v1/rerank", {"query": "a", "documents": [{}] * 99}, "documents.0.str: Input should be a valid string"),
        ("/v2/models/toy/infer", {"inputs": [1] * 99}, "inputs.0: Input should be an object"),
    ],
)
def test_the_first_wrong_item_ends_the_validation(
    route: str, body: Any, message: str, embedding_client: TestClient
) -> None:
    response = embedding_client.post(route, json=body)
    assert response.status_code == 422
    assert message in response.text
    assert ".2" not in response.text


def test_a_long_text_without_words_is_refused(embedding_client: TestClient) -> None:
    refused = embedding_client.post("/embed", json={"inputs": ["hello", "a" * 300_001]})
    assert refused.status_code == 413
    assert "input 1: expected a text whose 300,000 characters that truncation keeps have" in refused.json()["error"]
    assert embedding_client.post("/embed", json={"inputs": "my card " * 50_000}).status_code == 200
    assert embedding_client.post("/embed", json={"inputs": "my card " * 99 + "a" * 300_001}).status_code == 200


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/predict?model=text-classification", {"inputs": ["my card " * 99 + "a" * 300_001, "hello"]}),
        ("/rerank?model=reranker", {"query": "hello", "texts": ["a" * 1_000_001]}),
    ],
)
def test_long_texts_without_words_are_refused_in_pairs(route: str, body: Any, tasks_client: TestClient) -> None:
    assert tasks_client.post(route, json=body).status_code in (413, 422)


def test_documents_without_words_are_cut_where_a_request_says_how_much_is_read(tasks_client: TestClient) -> None:
    body = {"model": "reranker", "query": "hello", "documents": ["a" * 400_000, "my card"], "max_tokens_per_doc": 10**9}
    assert len(tasks_client.post("/v1/rerank", json=body).json()["results"]) == 2


def test_outputs_in_progress_have_a_limit_together(
    embedding_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Any = embedding_client.app
    limits = app.state.models["toy"].engine.limits
    monkeypatch.setattr(f"{_LIMITS}._MAX_HELD_BYTES", 1000)
    with limits.holding(900):
        response = embedding_client.post("/embed", json={"inputs": "hello"})
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert embedding_client.post("/embed", json={"inputs": "hello"}).status_code == 200


def test_token_vectors_have_a_limit_of_their_own(tasks_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{_LIMITS}._MAX_VECTOR_BYTES", 1)
    assert tasks_client.post("/embed_all?model=feature-extraction", json={"inputs": "hello"}).status_code == 413
    assert tasks_client.post("/embed?model=sentence-embedding", json={"inputs": "hello"}).status_code == 200


@pytest.mark.parametrize(
    ("task", "inputs", "parameters", "found"),
    [
        ("fill-mask", "my [MASK] is [MASK]", {"top_k": 9}, 18),
        ("fill-mask", "my [MASK]", {"top_k": 1, "targets": ["card"] * 10}, 11),
        ("question-answering", {"question": "where?", "context": "in town"}, {"n_best": 11}, 11),
        ("question-answering", {"question": "where?", "context": "in town"}, {"top_k": 1}, 20),
    ],
)
def test_candidates_have_a_limit_where_a_request_names_their_number(
    task: str, inputs: Any, parameters: Any, found: int, tasks_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{_LIMITS}._MAX_CANDIDATES", 10)
    response = tasks_client.post(f"/models/{task}", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 413
    assert f"expected at most 10 candidates to be weighed, found {found};" in response.json()["error"]
    assert tasks_client.post(f"/models/{task}", json={"inputs": inputs}).status_code == 200


def test_a_body_that_stalls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that do not come are not waited for; a client that has sent all of them may wait for its answer."""
    monkeypatch.setattr("bert_serve.http.middleware._STALLED_S", 0.01)

    async def ask(*messages: Any) -> None:
        sent = iter(messages)

        async def receive() -> Any:
            if (message := next(sent, None)) is None:
                await asyncio.sleep(0.1)
                return {"type": "http.disconnect"}
            return message

        async def read_all(scope: Any, receive: Any, send: Any) -> None:
            for _ in range(len(messages) + 1):
                await receive()

        await BodyLimit(read_all, 1000)({"type": "http", "headers": []}, receive, receive)  # type: ignore[arg-type]

    asyncio.run(ask({"type": "http.request", "body": b"{}"}))
    with pytest.raises(HTTPException, match="expected bytes of the body") as caught:
        asyncio.run(ask({"type": "http.request", "body": b"{", "more_body": True}))
    assert caught.value.status_code == 408
