"""The bodies that the OpenAPI document shows, and the bundle that each is for."""

from pathlib import Path
from typing import Any, NamedTuple

from bert_runtime import TASKS
from bert_serve.http.app import create_app

from .conftest import server_settings

DOCUMENT = create_app(server_settings({"toy": Path("unread")})).openapi()

_MODELS = {
    "/predict": "text-classification",
    "/embed_all": "feature-extraction",
    "/embed_sparse": "sparse-embedding",
    "/rerank": "reranker",
    "/v1/rerank": "reranker",
    "/v2/rerank": "reranker",
}
"""The bundle for the examples of a route that are not named after a task; of other routes, that of embeddings."""

_BUNDLES = {name: name for name in TASKS} | {"zero-shot-classification": "nli"}
"""The bundle for an example by the task that it is named after."""

_HUB_TASKS = {"sentence-embedding": "feature-extraction", "nli": "zero-shot-classification"}


class Example(NamedTuple):
    """A body of the document."""

    route: str
    bundle: str
    body: Any

    @property
    def path(self) -> str:
        """The path for a server of one bundle, which any name means."""
        return self.route.format(name="toy", version="1", task=_HUB_TASKS.get(self.bundle, self.bundle))


def _examples_of(route: str, operation: dict[str, Any]) -> list[Example]:
    """Return the examples of a route's body, in the operation or in the body's schema."""
    content = operation["requestBody"]["content"]["application/json"]
    default = _MODELS.get(route, "sentence-embedding")
    named = [
        Example(route, _BUNDLES.get(name.partition(",")[0], default), example["value"])
        for name, example in content.get("examples", {}).items()
    ]
    schema = DOCUMENT["components"]["schemas"].get(content["schema"].get("$ref", "").rpartition("/")[2], {})
    return named + [Example(route, default, value) for value in schema.get("examples", [])]


POSTS = {route: operations["post"] for route, operations in DOCUMENT["paths"].items() if "post" in operations}

EXAMPLES = [example for route in POSTS for example in _examples_of(route, POSTS[route])]
