"""Zero-shot classification over HTTP, by `huggingface_hub.InferenceClient` and by literal bodies."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from huggingface_hub import InferenceClient, close_session

from bert_runtime import ZeroShotClassifier, load
from bert_runtime.zero_shot import classifier as classifier_module

from ..task_bundles import TaskBundles
from .closeness import assert_close
from .conftest import StartClient, StartServer

TEXTS = ["where is my card", "the train to paris is late"]
LABELS = ["card", "train", "rain"]


@pytest.fixture
def client(start_client: StartClient, task_bundles: TaskBundles) -> TestClient:
    return start_client({"nli": task_bundles["nli"]}, engine={"max_texts": 8})


@pytest.fixture
def hub_client(start_server: StartServer, task_bundles: TaskBundles, hub_cache: object) -> Iterator[InferenceClient]:
    yield InferenceClient(model=start_server({"nli": task_bundles["nli"]}))
    close_session()


def expected(bundles: TaskBundles, **options: Any) -> list[Any]:
    """Return the answers, computed without a server."""
    results = ZeroShotClassifier(load(bundles["nli"], threads=1), LABELS, **options)(TEXTS)
    return [[{"label": label, "score": score} for label, score in result.top()] for result in results]


@pytest.mark.parametrize("options", [{}, {"multi_label": True, "hypothesis_template": "it is {}"}])
def test_the_hub_client_gets_its_labels_best_first(
    hub_client: InferenceClient, task_bundles: TaskBundles, options: dict[str, Any]
) -> None:
    found = hub_client.zero_shot_classification(TEXTS[0], LABELS, **options)
    answer = [{"label": element.label, "score": element.score} for element in found]
    assert_close(answer, expected(task_bundles, **options)[0], 1e-6)


@pytest.mark.parametrize("path", ["/", "/models/nli", "/models/nli/pipeline/zero-shot-classification"])
def test_a_list_of_texts_has_a_list_of_answers(client: TestClient, task_bundles: TaskBundles, path: str) -> None:
    body = {"inputs": TEXTS, "parameters": {"candidate_labels": ",".join(LABELS), "multi_label": None}}
    response = client.post(path, json=body)
    assert response.status_code == 200
    assert_close(response.json(), expected(task_bundles), 1e-6)


def test_a_truncated_text_says_so(client: TestClient) -> None:
    body = {"inputs": "card " * 80, "parameters": {"candidate_labels": LABELS}}
    assert [label["truncated"] for label in client.post("/", json=body).json()] == [True] * 3


def test_hypotheses_of_a_label_set_are_tokenized_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = classifier_module.make_hypotheses
    monkeypatch.setattr(classifier_module, "make_hypotheses", lambda *args: (made.append(args), make(*args))[1])
    for labels in (LABELS, LABELS, LABELS[:2]):
        body = {"inputs": TEXTS[0], "parameters": {"candidate_labels": labels}}
        assert client.post("/", json=body).status_code == 200
    assert len(made) == 2


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        ("a", {"candidate_labels": []}, "expected at least one candidate label"),
        ("a", {"candidate_labels": ["a", 3]}, "candidate label 1: expected a text that is not blank, found 3"),
        ("a", {"candidate_labels": 7}, "expected candidate labels as a list of texts, found int"),
        ("a", {"candidate_labels": ["a"], "top_k": 2}, "zero-shot-classification has the parameters candidate_labels"),
        ("a", {"candidate_labels": ["a"], "multi_label": "yes"}, "multi_label must be true or false, found 'yes'"),
        ("a", {"candidate_labels": ["a"], "hypothesis_template": "{:>9}"}, "hypothesis template '{:>9}': expected {}"),
        ("a", {"candidate_labels": ["a"], "hypothesis_template": 3}, "hypothesis_template must be a text, found 3"),
        ("a", {"candidate_labels": ["a"], "hypothesis_template": ["{}"]}, "must be a text, found ['{}']"),
        ("a", {}, "needs the parameter candidate_labels"),
        (
            ["a", {"text": "b", "text_pair": "c"}],
            {"candidate_labels": ["a"]},
            "input 1: expected one text, found a pair",
        ),
        (["a"] * 3, {"candidate_labels": LABELS}, "expected at most 8 pairs of a text and a label, found 9"),
    ],
)
def test_bad_requests_say_what_was_expected(
    client: TestClient, inputs: Any, parameters: dict[str, Any], message: str
) -> None:
    path = "/models/nli/pipeline/zero-shot-classification"
    response = client.post(path, json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_models_of_something_else_are_refused(classifier_client: TestClient, embedding_client: TestClient) -> None:
    body = {"inputs": "a", "parameters": {"candidate_labels": ["a"]}}
    response = classifier_client.post("/", json=body)
    assert response.status_code == 422
    assert "needs a model of natural language inference" in response.json()["error"]
    assert embedding_client.post("/models/toy/pipeline/zero-shot-classification", json=body).status_code == 424
