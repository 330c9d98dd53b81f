"""TEI's routes with `huggingface_hub.InferenceClient`, on a loopback port."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from bert_runtime import load

from ..task_bundles import TaskBundles
from .conftest import StartServer

TEXTS = ["i lost my card", "hello"]

pytestmark = pytest.mark.usefixtures("hub_cache")


def test_features_and_similarities(embedding_bundle: Path, start_server: StartServer) -> None:
    url = start_server({"toy": embedding_bundle})
    vectors = load(embedding_bundle, threads=1).encode(TEXTS)
    client = InferenceClient(f"{url}/embed")
    found = client.feature_extraction(TEXTS, normalize=True, truncate=True, truncation_direction="right")  # type: ignore[arg-type] # several texts work, too
    np.testing.assert_allclose(found, vectors, atol=1e-5)
    fewer = load(embedding_bundle, threads=1).encode(TEXTS[:1], dimensions=8)
    np.testing.assert_allclose(client.feature_extraction(TEXTS[0], dimensions=8), fewer, atol=1e-5)
    similarities = InferenceClient(f"{url}/similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    assert similarities == pytest.approx([1, float(vectors[0] @ vectors[1])], abs=1e-5)


def test_token_vectors(task_bundles: TaskBundles, start_server: StartServer) -> None:
    """By TEI's route, and by that of the pipelines, which has an axis for the text."""
    url = start_server({"toy": task_bundles["feature-extraction"]})
    expected = load(task_bundles["feature-extraction"], threads=1)(TEXTS[0]).vectors  # type: ignore[attr-defined]
    found = InferenceClient(f"{url}/embed_all").feature_extraction(
        TEXTS[0], truncate=True, truncation_direction="right"
    )
    np.testing.assert_allclose(found, expected[None], atol=1e-5)
    np.testing.assert_allclose(InferenceClient(url).feature_extraction(TEXTS[0]), expected[None], atol=1e-5)


def test_labels(classifier_bundle: Path, start_server: StartServer) -> None:
    url = start_server({"toy": classifier_bundle})
    result = load(classifier_bundle, threads=1)("hello")
    found = InferenceClient(f"{url}/predict").text_classification("hello")
    assert (found.label, found.score) == (result.label, pytest.approx(result.score, abs=1e-4))


def test_probes(embedding_bundle: Path, start_server: StartServer) -> None:
    client = InferenceClient(start_server({"toy": embedding_bundle}), provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["max_input_length"] == 64


def test_a_failure_has_the_servers_message(classifier_bundle: Path, start_server: StartServer) -> None:
    client = InferenceClient(f"{start_server({'toy': classifier_bundle})}/embed")
    with pytest.raises(HfHubHTTPError) as caught:
        client.feature_extraction("hello")
    assert caught.value.response.status_code == 424
    assert caught.value.response.json()["error_type"] == "Backend"
