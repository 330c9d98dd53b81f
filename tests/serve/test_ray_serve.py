"""The Ray Serve deployment: the HTTP formats of the server, from replicas of a local cluster."""

import inspect
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from bert_runtime import BundleError, load
from bert_serve.http.app import create_app
from bert_serve.ray_serve import ServeArguments, app

from .bulk.ray_cluster import ray_cluster
from .conftest import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # of Ray's own modules

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")


def test_a_replica_starts_with_its_models_loaded(embedding_bundle: Path) -> None:
    arguments = ServeArguments(bundle=embedding_bundle, num_cpus=1)
    with TestClient(create_app(arguments.settings, wait_for_models=True)) as client:
        assert client.get("/health").json() == {"status": "ready", "models": ["embedding"]}  # the first request


def test_a_replica_whose_bundle_is_damaged_does_not_start(embedding_bundle: Path, tmp_path: Path) -> None:
    arguments = ServeArguments(bundle=tmp_path)
    with (
        pytest.raises(BundleError, match="expected a bundle"),
        TestClient(create_app(arguments.settings, wait_for_models=True)),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_cpus": 0}, "num_cpus"), ({"min_replicas": 2}, "min_replicas"), ({"replicas": 2}, "replicas")],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, embedding_bundle: Path) -> None:
    with pytest.raises(ValidationError, match=message):
        ServeArguments(bundle=embedding_bundle, **options)


def test_arguments_of_serve_run_are_texts(embedding_bundle: Path) -> None:
    """Ray converts them to the type of the builder's only argument."""
    assert inspect.signature(app).parameters["args"].annotation is ServeArguments
    found = ServeArguments.model_validate({"bundle": str(embedding_bundle), "num_cpus": "2", "max_replicas": "3"})
    assert (found.bundle, found.num_cpus, found.max_replicas) == (embedding_bundle, 2, 3)
    assert found.settings.engine.load_options["threads"] == 2


@needs_ray
def test_a_missing_bundle_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected a bundle"):
        app(ServeArguments(bundle=tmp_path / "absent"))


@pytest.fixture
def deployed(embedding_bundle: Path) -> Iterator[str]:
    """The address of a deployment of two replicas."""
    with ray_cluster(workers=2) as cluster:
        import ray
        from ray import serve

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(app(ServeArguments(bundle=embedding_bundle, min_replicas=2, max_replicas=2)))
            wait_until(lambda: is_routed(f"http://127.0.0.1:{port}/health"), seconds=60)
            yield f"http://127.0.0.1:{port}"
            serve.shutdown()
        finally:
            ray.shutdown()


def is_routed(url: str) -> bool:
    """Whether Ray's proxy has heard of the application, a moment after `serve.run` has returned."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # of Ray's own modules
def test_replicas_answer_in_the_formats_of_the_server(deployed: str, embedding_bundle: Path) -> None:
    texts = ["hello there", "where is my card?"]
    expected = load(embedding_bundle).encode(texts)
    for _ in range(8):
        assert post(f"{deployed}/embed", {"inputs": texts}) == [pytest.approx(row, abs=0.01) for row in expected]
    answer = post(f"{deployed}/v1/embeddings", {"input": texts, "model": "any"})
    assert [item["embedding"] for item in answer["data"]] == [pytest.approx(row, abs=0.01) for row in expected]
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{deployed}/embed", {"inputs": 1})
    refused.value.close()
    assert refused.value.code in (400, 422)
