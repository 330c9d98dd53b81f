"""Prompts and number formats of embeddings in every wire format that has them."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from bert_runtime import Model, load

from .conftest import running, server_settings

TEXTS = ["where is my card?", "hello"]


@pytest.fixture(scope="module")
def client(prompted_bundle: Path) -> Iterator[TestClient]:
    with running(server_settings({"toy": prompted_bundle})) as client:
        yield client


@pytest.fixture(scope="module")
def model(prompted_bundle: Path) -> Model:
    return load(prompted_bundle, threads=1)


def post(client: TestClient, route: str, **body: Any) -> Any:
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", [None, "query"])
def test_prompts(name: str | None, client: TestClient, model: Model) -> None:
    expected = model.encode(TEXTS, prompt_name=name)
    fields = {} if name is None else {"prompt_name": name}
    answer = post(client, "/v1/embeddings", input=TEXTS, **fields)
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], expected, atol=1e-5)
    np.testing.assert_allclose(post(client, "/embed", inputs=TEXTS, **fields), expected, atol=1e-5)
    np.testing.assert_allclose(post(client, "/", inputs=TEXTS, parameters=fields), expected, atol=1e-5)
    body = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = post(client, "/similarity", inputs=body, parameters=fields)
    np.testing.assert_allclose(found, [expected[0] @ expected[1]], atol=1e-5)
    prefix = "" if name is None else "question "  # as in TEI, /tokenize adds the prompt that is named
    plain = [[token["text"] for token in tokens] for tokens in post(client, "/tokenize", inputs=[prefix + TEXTS[0]])]
    shown = post(client, "/tokenize", inputs=[TEXTS[0]], **fields)
    assert [[token["text"] for token in tokens] for tokens in shown] == plain


def test_number_formats(client: TestClient, model: Model) -> None:
    for output_dtype in ("int8", "ubinary"):
        expected = model.encode(TEXTS, precision=output_dtype)  # type: ignore[arg-type]
        answer = post(client, "/v1/embeddings", input=TEXTS, output_dtype=output_dtype)
        found = np.array([item["embedding"] for item in answer["data"]])
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= (0 if output_dtype == "ubinary" else 1)
        body = {"input": TEXTS, "output_dtype": output_dtype, "encoding_format": "base64"}
        packed = [base64.b64decode(item["embedding"]) for item in post(client, "/v1/embeddings", **body)["data"]]
        assert np.stack([np.frombuffer(value, expected.dtype) for value in packed]).tolist() == found.tolist()
    parameters = {"embedding_precision": "ubinary", "dimensions": 16}
    assert np.array(post(client, "/", inputs=TEXTS, parameters=parameters)).shape == (2, 2)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/embed", {"inputs": TEXTS, "prompt_name": "passage"}),
        ("/v1/embeddings", {"input": TEXTS, "prompt_name": "passage"}),
        ("/", {"inputs": TEXTS, "parameters": {"prompt_name": "passage"}}),
        ("/tokenize", {"inputs": TEXTS, "prompt_name": "passage"}),
    ],
)
def test_unknown_prompts_are_refused(route: str, body: dict[str, Any], client: TestClient) -> None:
    answer = client.post(route, json=body)
    assert answer.status_code in (400, 422)
    assert "expected a prompt_name of one of query, document, found 'passage'" in answer.text


@pytest.mark.parametrize("ids", [[2, 5, 3], [[2, 5, 3], [2, 3]]])
def test_prompts_are_for_texts(ids: Any, client: TestClient) -> None:
    for route, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
        assert client.post(route, json={field: ids}).status_code == 200
        answer = client.post(route, json={field: ids, "prompt_name": "query"})
        assert answer.status_code == 422
        assert "prompt_name: expected texts, in front of which a prompt is put, found token ids" in answer.text


def test_prompts_are_for_embeddings(classifier_client: TestClient) -> None:
    answer = classifier_client.post("/predict", json={"inputs": "hello", "prompt_name": "query"})
    assert answer.status_code == 422
    assert "prompt_name: expected none, since model 'toy' gives no embeddings" in answer.text
