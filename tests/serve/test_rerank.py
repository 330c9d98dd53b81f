"""Reranking in Cohere's and Jina's format, by literal bodies and by Cohere's client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import pytest
from cohere.core.api_error import ApiError
from fastapi.testclient import TestClient

from bert_runtime import load
from bert_runtime.numerics import sigmoid

from ..task_bundles import TaskBundles
from .conftest import StartClient, StartServer

QUERY = "where is my card"
DOCUMENTS = ["the card is lost", "hello", "your parcel is late", "good morning"]


@pytest.fixture(scope="module")
def expected(task_bundles: TaskBundles) -> list[float]:
    """The relevance of each of `DOCUMENTS`, computed without a server."""
    model = load(task_bundles["reranker"], threads=1)
    return [float(sigmoid(model((QUERY, document)).values)[0]) for document in DOCUMENTS]  # type: ignore[attr-defined]


@pytest.fixture
def client(start_client: StartClient, task_bundles: TaskBundles) -> TestClient:
    return start_client({"reranker": task_bundles["reranker"]})


@pytest.mark.parametrize("version", ["1", "2"])
def test_results_are_sorted_by_relevance(client: TestClient, expected: list[float], version: str) -> None:
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS}
    response = client.post(f"/v{version}/rerank", json=body)
    assert response.status_code == 200
    answer = response.json()
    order = sorted(range(4), key=lambda index: -expected[index])
    assert [result["index"] for result in answer["results"]] == order
    assert [result.keys() for result in answer["results"]] == [{"index", "relevance_score"}] * 4
    found = [result["relevance_score"] for result in answer["results"]]
    assert found == pytest.approx([expected[index] for index in order], abs=1e-6)
    num_tokens = answer["usage"]["total_tokens"]
    assert answer["meta"] == {"api_version": {"version": version}, "tokens": {"input_tokens": num_tokens}}
    assert (answer["model"], len(answer["id"])) == ("reranker", 36)


def test_usage_counts_the_tokens_of_all_pairs(client: TestClient) -> None:
    body = {"query": "my card", "documents": ["hello", "the lost card"]}
    assert client.post("/v1/rerank", json=body).json()["usage"] == {"total_tokens": (2 + 1 + 3) + (2 + 3 + 3)}


def test_objects_with_texts_are_documents_that_can_be_returned(client: TestClient) -> None:
    body = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 2, "return_documents": True}
    results = client.post("/v1/rerank", json=body).json()["results"]
    assert [result["document"] for result in results] == [{"text": DOCUMENTS[result["index"]]} for result in results]
    plain = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, "top_n": 2}).json()["results"]
    assert [result["index"] for result in plain] == [result["index"] for result in results]


def test_max_tokens_per_doc_cuts_the_end_of_documents(client: TestClient) -> None:
    def rerank(documents: list[str], **options: Any) -> dict[str, Any]:
        body = {"query": QUERY, "documents": documents, **options}
        answer: dict[str, Any] = client.post("/v2/rerank", json=body).json()
        return answer

    long, short = ["the card is lost today", "hi"], ["the card", "hi"]
    cut, expected = rerank(long, max_tokens_per_doc=2, return_documents=True), rerank(short)
    assert cut["usage"] == expected["usage"]
    scores = [[result["relevance_score"] for result in answer["results"]] for answer in (cut, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert {result["document"]["text"] for result in cut["results"]} == set(long)  # returned whole


@pytest.mark.parametrize("name", ["reranker", "rerank"])  # which truncates long documents, and which reads windows
def test_documents_are_cut_below_and_above_the_length_of_the_model(
    name: str, start_client: StartClient, task_bundles: TaskBundles
) -> None:
    client = start_client({name: task_bundles[name]})
    num_tokens = load(task_bundles[name]).tokenizer.max_tokens - 1
    for max_tokens in (num_tokens, 3 * num_tokens):
        body = {"query": QUERY, "documents": ["card " * 9 * num_tokens], "max_tokens_per_doc": max_tokens}
        expected = body | {"documents": ["card " * max_tokens]}
        del expected["max_tokens_per_doc"]
        found, wanted = (client.post("/v2/rerank", json=sent).json() for sent in (body, expected))
        assert found["usage"] == wanted["usage"]
        assert found["results"][0]["relevance_score"] == pytest.approx(
            wanted["results"][0]["relevance_score"], abs=1e-6
        )


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_without_a_name_none_of_two_rerankers_is_chosen_nor_a_model_of_another_task(
    path: str, start_client: StartClient, task_bundles: TaskBundles, classifier_bundle: Path
) -> None:
    bundle = task_bundles["rerank"]
    client = start_client({"one": bundle, "two": bundle, "other": classifier_bundle})
    response = client.post(path, json={"query": QUERY, "documents": DOCUMENTS, "texts": DOCUMENTS})
    assert response.status_code == 404
    assert "expected one of the models one, two, other, found no name" in response.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": []}, "documents: List should have at least 1 item after validation, not 0"),
        ({"documents": [{"title": "a"}]}, "documents.0.Document.text: Field required"),
        ({"query": None}, "query: Input should be a valid string"),
        ({"top_n": 0}, "top_n: Input should be greater than or equal to 1"),
        ({"documents": ["a", "b\ud800"]}, "input 1: the text holds a lone surrogate"),
    ],
)
def test_bad_requests_name_the_field(client: TestClient, changes: dict[str, Any], message: str) -> None:
    body = json.dumps({"query": QUERY, "documents": DOCUMENTS} | changes)
    response = client.post("/v1/rerank", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert message in response.json()["message"]


def test_a_model_of_another_task_is_refused(embedding_client: TestClient) -> None:
    response = embedding_client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS})
    assert response.status_code == 424
    assert response.json() == {
        "message": "model 'toy' does sentence-embedding; this route needs a model for rerank or text-classification"
    }


def test_a_classifier_without_one_score_is_refused(classifier_client: TestClient) -> None:
    response = classifier_client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS})
    assert response.status_code == 422
    assert "one score" in response.json()["message"]


@pytest.fixture
def clients(start_server: StartServer, task_bundles: TaskBundles) -> Iterator[tuple[Any, Any]]:
    """Cohere's clients of both versions, for a server with two models."""
    url = start_server({"one": task_bundles["reranker"], "two": task_bundles["reranker"]})
    first, second = (kind(api_key="none", base_url=url) for kind in (cohere.Client, cohere.ClientV2))
    yield first, second
    for client in (first, second):
        client._client_wrapper.httpx_client.httpx_client.close()


def test_coheres_clients_read_the_answers(clients: tuple[Any, Any], expected: list[float]) -> None:
    first, second = clients
    best = max(range(4), key=expected.__getitem__)
    answer = first.rerank(model="one", query=QUERY, documents=DOCUMENTS, top_n=1, return_documents=True)
    assert (answer.results[0].index, answer.results[0].document.text) == (best, DOCUMENTS[best])
    assert answer.meta.api_version.version == "1"
    answer = second.rerank(model="one", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=4096)
    assert answer.results[0].index == best
    assert answer.results[0].relevance_score == pytest.approx(expected[best], abs=1e-6)
    assert answer.meta.tokens.input_tokens > 0
    assert len(second.rerank(model="two", query=QUERY, documents=DOCUMENTS).results) == 4


def test_coheres_client_raises_for_an_unknown_model(clients: tuple[Any, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        clients[1].rerank(model="three", query=QUERY, documents=DOCUMENTS)
    assert caught.value.status_code == 404
    assert caught.value.body == {"message": "expected one of the models one, two, found 'three'"}
