"""The OpenAPI document: every route has a summary and examples, and the examples work."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from bert_runtime import TASKS
from bert_serve.http.app import create_app

from .conftest import running, server_settings
from .task_bundles import TaskBundles

DOCUMENT = create_app(server_settings({"toy": Path("unread")})).openapi()

REFUSED = {"/embed_all", "/embed_sparse"}
"""Routes that say which model they would need."""

MODELS = {"/predict": "text-classification", "/rerank": "reranker", "/v1/rerank": "reranker", "/v2/rerank": "reranker"}
"""The bundle for the examples of a route that are not named after a task; of other routes, that of embeddings."""


class Example(NamedTuple):
    """A body of the document."""

    path: str
    bundle: str
    body: Any


def examples_of(path: str, operation: dict[str, Any]) -> list[Example]:
    """Return the examples of a route's body, in the operation or in the body's schema."""
    content = operation["requestBody"]["content"]["application/json"]
    default = MODELS.get(path, "sentence-embedding")
    named = [
        Example(path, task if (task := name.partition(",")[0]) in TASKS else default, example["value"])
        for name, example in content.get("examples", {}).items()
    ]
    schema = DOCUMENT["components"]["schemas"].get(content["schema"].get("$ref", "").rpartition("/")[2], {})
    return named + [Example(path, default, value) for value in schema.get("examples", [])]


POSTS = {path: operations["post"] for path, operations in DOCUMENT["paths"].items() if "post" in operations}

EXAMPLES = [example for path in POSTS if path not in REFUSED for example in examples_of(path, POSTS[path])]


@pytest.fixture(scope="module")
def client_of(task_bundles: TaskBundles) -> Iterator[Any]:
    """A function that returns a client of a server of one bundle."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(server_settings({"toy": task_bundles[name]}))))


@pytest.mark.parametrize(
    "example", [pytest.param(example, id=f"{example.path} {example.bundle}") for example in EXAMPLES]
)
def test_examples_are_answered(example: Example, client_of: Any) -> None:
    task = {"sentence-embedding": "feature-extraction"}.get(example.bundle, example.bundle)
    path, body = example.path.format(name="toy", version="1", task=task), example.body
    if path == "/decode":  # ids of a real vocabulary, which is larger than the toy's
        body = {"ids": [[token % 100 for token in ids] for ids in body["ids"]]}
    response = client_of(example.bundle).post(path, json=body)
    assert response.status_code == 200, response.text


def test_every_route_has_examples_and_says_what_it_does() -> None:
    assert {example.path for example in EXAMPLES} == POSTS.keys() - REFUSED
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["description"], path
            (content,) = operation["responses"]["200"]["content"].values()
            schema = DOCUMENT["components"]["schemas"].get(content.get("schema", {}).get("$ref", "").rpartition("/")[2])
            assert path in REFUSED or {"example", "examples"} & (content.keys() | (schema or {}).keys()), path


def test_every_task_has_an_example_of_the_pipelines() -> None:
    assert {example.bundle for example in EXAMPLES if example.path == "/"} == TASKS.keys()


def test_the_document_is_served(embedding_client: TestClient) -> None:
    assert embedding_client.get("/openapi.json").json()["paths"].keys() == DOCUMENT["paths"].keys()
