"""The OpenAPI document: every route has a summary and examples, the examples work, and what differs breaks nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bert_runtime import TASKS

from ..task_bundles import TaskBundles
from .conftest import running, server_settings
from .openapi_examples import DOCUMENT, EXAMPLES, POSTS, Example

JUNK = (None, True, -1, 10**30, 0.5, "", "a\ud800", [], {}, [[]], [None], {"text": 1}, ["a", 1])
"""Values in the place of others."""

ClientOf = Callable[[str], TestClient]


@pytest.fixture(scope="module")
def client_of(task_bundles: TaskBundles) -> Iterator[ClientOf]:
    """A function that returns a client of a server of one bundle."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(server_settings({"toy": task_bundles[name]}))))


def parameters() -> list[Any]:
    return [pytest.param(example, id=f"{example.route} {example.bundle}") for example in EXAMPLES]


@pytest.mark.parametrize("example", parameters())
def test_examples_are_answered(example: Example, client_of: ClientOf) -> None:
    body = example.body
    if example.route == "/decode":  # ids of a real vocabulary, which is larger than the toy's
        body = {"ids": [[token % 100 for token in ids] for ids in body["ids"]]}
    response = client_of(example.bundle).post(example.path, json=body)
    assert response.status_code == 200, response.text


def changed(value: Any) -> Iterator[Any]:
    """Yield copies of a JSON value in which one part is replaced by junk."""
    yield from JUNK
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ({**value, name: other} for other in changed(part))
        yield {**value, "unknown": 1}
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in changed(part))


@pytest.mark.parametrize("example", parameters())
def test_no_body_makes_the_server_fail(example: Example, client_of: ClientOf) -> None:
    client, headers = client_of(example.bundle), {"Content-Type": "application/json"}
    for body in changed(example.body):
        text = json.dumps(body)  # in ASCII, so that a lone surrogate can be sent
        response = client.post(example.path, content=text, headers=headers)
        assert response.status_code in (200, 400, 413, 422, 424), f"{text}: {response.text}"


def test_every_route_has_examples_and_says_what_it_does() -> None:
    assert {example.route for example in EXAMPLES} == POSTS.keys()
    for route, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            assert operation["summary"], route
            assert operation["description"], route
            (content,) = operation["responses"]["200"]["content"].values()
            schema = DOCUMENT["components"]["schemas"].get(content.get("schema", {}).get("$ref", "").rpartition("/")[2])
            assert {"example", "examples"} & (content.keys() | (schema or {}).keys()), route


def test_every_task_has_an_example_of_the_pipelines() -> None:
    assert {example.bundle for example in EXAMPLES if example.route == "/"} == {*TASKS, "nli"}


def test_the_document_is_served(embedding_client: TestClient) -> None:
    assert embedding_client.get("/openapi.json").json()["paths"].keys() == DOCUMENT["paths"].keys()
