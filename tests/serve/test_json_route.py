"""Routes that read JSON bodies: what they accept, what they refuse, and that the OpenAPI document still has them."""

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import Response

from bert_serve.http.json_route import JSONRoute


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"])
def test_json_is_accepted_by_its_media_type(media_type: str, embedding_client: TestClient) -> None:
    headers = {"Content-Type": media_type}
    assert embedding_client.post("/embed", content=b'{"inputs": "hello"}', headers=headers).status_code == 200


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded", "json"])
def test_what_a_foreign_page_could_send_is_refused(media_type: str, embedding_client: TestClient) -> None:
    response = embedding_client.post("/embed", content=b'{"inputs": "hello"}', headers={"Content-Type": media_type})
    assert response.status_code == 415
    assert "expected the header Content-Type: application/json" in response.json()["error"]


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'"hello"', b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}'])
def test_a_body_that_is_no_such_json_is_an_error_of_the_format(content: bytes, embedding_client: TestClient) -> None:
    response = embedding_client.post("/embed", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error_type"] == "Validation"


@pytest.mark.parametrize("path", ["/", "/models/toy", "/models/toy/pipeline/feature-extraction", "/v1/rerank"])
def test_all_routes_refuse_what_is_no_json_alike(path: str, embedding_client: TestClient) -> None:
    content = b'{"inputs": "hello", "query": "hello", "documents": ["hello"]}'
    assert embedding_client.post(path, content=content, headers={"Content-Type": "text/plain"}).status_code == 415
    for content in (
        b'{"inputs": "\xff"}',
        b'{"a": ' + b"[" * 9999 + b"]" * 9999 + b"}",
        b'{"inputs": "a", "\\ud800": 1}',
    ):
        response = embedding_client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert (response.status_code, list(response.json())) == (422, ["message" if "rerank" in path else "error"])


def test_parameters_of_the_path_are_passed_and_documented(embedding_client: TestClient) -> None:
    answer = embedding_client.post("/models/toy/pipeline/feature-extraction", json={"inputs": "hello"})
    assert answer.status_code == 200
    operation = embedding_client.get("/openapi.json").json()["paths"]["/models/{name}/pipeline/{task}"]["post"]
    assert {(found["name"], found["in"]) for found in operation["parameters"]} == {("name", "path"), ("task", "path")}


def test_a_message_names_the_field_and_not_what_was_found(embedding_client: TestClient) -> None:
    response = embedding_client.post("/embed", json={"inputs": ["hello", {"secret": "s3cr3t"}]})
    assert response.json()["error"] == "inputs.texts.1: Input should be a valid string"


def test_a_message_names_a_text_of_an_object_and_not_its_neighbours(embedding_client: TestClient) -> None:
    response = embedding_client.post("/", json={"inputs": ["hello", {"text": "s3cr3t", "text_pair": 5}]})
    assert response.json()["error"] == "inputs: item 1: text_pair: expected a text, found int"


def test_the_document_has_bodies_and_parameters(embedding_client: TestClient) -> None:
    operation = embedding_client.get("/openapi.json").json()["paths"]["/embed"]["post"]
    assert operation["requestBody"]["required"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["model"]
    assert operation["tags"] == ["TEI"]


def test_an_endpoint_with_other_parameters_is_a_mistake_of_the_programmer() -> None:
    router = APIRouter(route_class=JSONRoute)

    async def endpoint(body: dict[str, str], other: str, request: Request) -> Response:
        return Response()

    with pytest.raises(TypeError, match=r"expected an endpoint of body, request and .*, found body, other, request"):
        router.post("/x")(endpoint)
