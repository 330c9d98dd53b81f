"""OpenAI's format, with its own client on a loopback port, and its bodies as literal JSON."""

import base64
import json
from pathlib import Path

import numpy as np
import openai
import pytest
from fastapi.testclient import TestClient

from bert_runtime import load
from bert_serve.errors import QueueFullError
from bert_serve.serving.token_queue import TokenQueue

from .conftest import StartServer

TEXTS = ["i lost my card", "hello", ""]


def openai_client(url: str, key: str = "none") -> openai.OpenAI:
    """Return OpenAI's client for a server of ours, without its retries."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30)


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])  # the client's default is base64
def test_embeddings_are_those_of_the_runtime(
    encoding_format: str | None, embedding_bundle: Path, start_server: StartServer
) -> None:
    client = openai_client(start_server({"toy": embedding_bundle}))
    options = {} if encoding_format is None else {"encoding_format": encoding_format}
    answer = client.embeddings.create(model="any", input=TEXTS, **options)
    vectors = [item.embedding for item in answer.data]
    if encoding_format == "base64":
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    model = load(embedding_bundle, threads=1)
    np.testing.assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.model == "toy"
    num_tokens = sum(len(item.windows[0]) for item in model.tokenize(TEXTS))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)


def test_one_text_token_ids_and_fewer_dimensions(embedding_bundle: Path, start_server: StartServer) -> None:
    client = openai_client(start_server({"toy": embedding_bundle}))
    model = load(embedding_bundle, threads=1)
    ids = [item.windows[0].ids for item in model.tokenize(TEXTS)]
    for value, texts in ((TEXTS[0], TEXTS[:1]), (ids[0], TEXTS[:1]), (ids, TEXTS)):
        answer = client.embeddings.create(model="toy", input=value, dimensions=8)
        np.testing.assert_allclose(
            [item.embedding for item in answer.data], model.encode(texts, dimensions=8), atol=1e-5
        )


def test_models_are_listed(embedding_bundle: Path, classifier_bundle: Path, start_server: StartServer) -> None:
    client = openai_client(start_server({"team/toy": embedding_bundle, "intents": classifier_bundle}))
    assert [model.id for model in client.models.list()] == ["team/toy", "intents"]
    found = client.models.retrieve("team/toy")
    assert (found.id, found.object) == ("team/toy", "model")
    assert found.created == int((embedding_bundle / "bundle.json").stat().st_mtime)
    with pytest.raises(openai.NotFoundError, match="team/toy, intents") as caught:
        client.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"


def test_failures_are_the_clients_exceptions(
    embedding_bundle: Path, classifier_bundle: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = openai_client(start_server({"toy": embedding_bundle, "intents": classifier_bundle}, api_keys=("k",)), "k")
    with pytest.raises(openai.NotFoundError, match="expected one of the models toy, intents, found 'gpt'"):
        client.embeddings.create(model="gpt", input="hello")
    with pytest.raises(openai.BadRequestError, match="at least one text"):
        client.embeddings.create(model="toy", input=[])
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions must lie in 1 to 32"):
        client.embeddings.create(model="toy", input="hello", dimensions=33)
    with pytest.raises(openai.APIStatusError, match="'intents' does text-classification") as caught:
        client.embeddings.create(model="intents", input="hello")
    assert caught.value.status_code == 424
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").embeddings.create(model="toy", input="hello")

    def refuse(queue: object, job: object) -> None:
        raise QueueFullError("too much is waiting", 3)

    monkeypatch.setattr(TokenQueue, "reserve", refuse)
    with pytest.raises(openai.RateLimitError, match="too much is waiting") as limited:
        client.embeddings.create(model="toy", input="hello")
    assert limited.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("value", "status", "message"),
    [
        ([[2, 3], [2, 9999, 3]], 422, "input 1: expected token ids of this model's vocabulary, 0 to "),
        ([2, -1, 3], 422, "found -1; send texts, or the ids that /tokenize gives"),
        ([[2, 3], []], 422, "input 1: expected token ids, found none"),
        ([[2, 5, 3], [5, 6]], 422, "input 1: expected token ids with this model's special tokens, 2 first, found 5"),
        ([2, 5, 6], 422, "3 last, found 6: are they of another tokenizer? send texts (in LangChain, "),
        ([2] * 65, 413, "input 0: expected at most 64 tokens, found 65"),
        (["a", 1], 422, "input.texts.1: Input should be a valid string"),
        ([1, "a"], 422, "input.ids.1: Input should be a valid integer"),
        ([True], 422, "input.ids.0: Input should be a valid integer"),
        (None, 422, "input: expected a text, a list of texts, a list of token ids, or a list of lists of them"),
        ({"text": "a"}, 422, "input: expected a text"),
        ([2**70], 422, "input 0: expected token ids"),
        (["a"] * 1025, 422, "expected at most 1024 texts, found 1025"),
    ],
)
def test_an_input_that_cannot_be_embedded_is_named(
    value: object, status: int, message: str, embedding_client: TestClient
) -> None:
    response = embedding_client.post("/v1/embeddings", json={"input": value})
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_literal_request_has_the_documented_answer(embedding_client: TestClient) -> None:
    request = b'{"input": "hello", "model": "toy", "encoding_format": "float", "user": "u-1"}'
    response = embedding_client.post("/v1/embeddings", content=request, headers={"Content-Type": "application/json"})
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert list(body) == ["object", "data", "model", "usage"]
    vector = body["data"][0].pop("embedding")
    assert len(vector) == 32
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0}],
        "model": "toy",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


def test_what_is_no_json_is_an_error_of_the_format(embedding_client: TestClient) -> None:
    for content in (b"{", b"[]", b'{"input": "\xff"}', b'{"input": "\\ud800"}'):
        response = embedding_client.post(
            "/v1/embeddings", content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code in (400, 422), response.text
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_the_openapi_document_has_schemas_and_an_example(embedding_client: TestClient) -> None:
    document = embedding_client.get("/openapi.json").json()
    operation = document["paths"]["/v1/embeddings"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert schema["examples"]
    assert {"input", "encoding_format", "dimensions"} <= set(schema["properties"])
    assert "HTTPValidationError" not in json.dumps(operation)


def test_null_is_the_default(embedding_client: TestClient) -> None:
    """Some clients name every option that they know."""
    options = {"encoding_format": None, "output_dtype": None, "dimensions": None, "prompt_name": None, "user": None}
    answers = [embedding_client.post("/v1/embeddings", json={"input": "hello", **x}) for x in ({}, options)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
