"""The requests of the page's scripts: results, tokens, times, limits."""

import base64
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from bert_runtime import load, load_attention

from ...task_bundles import TaskBundles
from ..conftest import StartClient, wait_until

INPUTS = {
    "text-classification": {"text": "hello there"},
    "multi-label": {"text": "hello there"},
    "reranker": {"text": "hello", "text_pair": "good bye"},
    "token-classification": {"text": "hello there"},
    "question-answering": {"text": "where?", "text_pair": "the card is in the bank"},
    "fill-mask": {"text": "my [MASK] is in the [MASK]"},
    "next-sentence-prediction": {"text": "hello", "text_pair": "good bye"},
    "rerank": {"text": "hello", "text_pair": "good bye"},
    "replaced-token-detection": {"text": "hello there"},
    "sentence-embedding": {"text": "hello there"},
}


def ask(client: TestClient, *inputs: dict[str, str], precision: str = "fp32", model: str = "toy") -> Any:
    response = client.post("/page/predict", json={"model": model, "precision": precision, "inputs": inputs})
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: TestClient, path: str = "/page/predict", **body: Any) -> tuple[int, str]:
    response = client.post(path, json={"model": "toy", "precision": "fp32", "inputs": [{"text": "hello"}]} | body)
    return response.status_code, response.json()["error"]["message"]


@pytest.fixture(scope="module")
def all_tasks(task_bundles: TaskBundles) -> dict[str, Path]:
    return {name: task_bundles[name] for name in INPUTS}


def test_models_say_what_the_page_needs(classifier_client: TestClient) -> None:
    answer = classifier_client.get("/page/models")
    assert answer.headers["cache-control"] == "no-store"
    (model,) = answer.json()["models"]
    assert set(model.pop("precisions")) == {"fp32", "int8"}
    assert model == {
        "name": "toy", "ready": True, "task": "text-classification", "device": "cpu", "max_tokens": 64,
        "output_width": 3, "attention": False, "mask_token": None,
    }  # fmt: skip
    assert answer.json()["needs_key"] is False
    assert "/v1/embeddings" in answer.json()["paths"]


def test_both_precisions_answer_as_the_runtime_does(classifier_client: TestClient, classifier_bundle: Path) -> None:
    for precision in ("fp32", "int8"):
        answer = ask(classifier_client, {"text": "where is my card"}, precision=precision)
        expected = load(classifier_bundle, precision=precision)("where is my card")
        scores = {item["label"]: item["score"] for item in answer["result"]["items"]}
        assert scores == pytest.approx(dict(expected.top()), abs=1e-5)
        assert [item["label"] for item in answer["result"]["items"] if item["chosen"]] == [expected.label]
        assert 1 <= answer["num_runs"] <= 15
        assert all(value > 0 for value in answer["times_ms"].values())


@pytest.mark.slow
def test_every_task_has_a_drawing(start_client: StartClient, all_tasks: dict[str, Path]) -> None:
    client = start_client(all_tasks)
    answers = {name: ask(client, INPUTS[name], model=name)["result"] for name in INPUTS}
    assert {name: answer["kind"] for name, answer in answers.items()} == {
        "text-classification": "labels", "multi-label": "labels", "next-sentence-prediction": "labels",
        "reranker": "numbers", "rerank": "numbers", "token-classification": "entities", "question-answering": "answers",
        "fill-mask": "fillings", "replaced-token-detection": "replaced", "sentence-embedding": "similarity",
    }  # fmt: skip
    assert [len(mask) for mask in answers["fill-mask"]["masks"]] == [10, 10]
    assert sum(item["score"] for item in answers["next-sentence-prediction"]["items"]) == pytest.approx(1)
    spans = answers["question-answering"]["spans"]
    context = INPUTS["question-answering"]["text_pair"]
    assert len(spans) > 1
    assert all(context[span["start"] : span["end"]] == span["label"] for span in spans)


def test_lines_are_compared_with_each_other(embedding_client: TestClient, embedding_bundle: Path) -> None:
    texts = ["hello there", "good bye", "hello there"]
    answer = ask(embedding_client, *({"text": text} for text in texts))
    vectors = load(embedding_bundle, precision="fp32").encode(texts, normalize=True)
    np.testing.assert_allclose(answer["result"]["matrix"], vectors @ vectors.T, atol=1e-5)
    np.testing.assert_allclose(answer["result"]["vectors"], vectors[:1], atol=1e-5)
    tokens = [[token["token"] for token in shown["windows"][0]] for shown in answer["inputs"]]
    assert tokens[0] == tokens[2] == ["[CLS]", "hello", *tokens[0][2:]]
    assert tokens[1][1:3] == ["good", "bye"]


def test_tokens_are_marked_and_truncation_is_told(classifier_client: TestClient) -> None:
    (shown,) = ask(classifier_client, {"text": "hello 😀", "text_pair": "card"})["inputs"]
    (tokens,) = shown["windows"]
    assert [token["token"] for token in tokens] == ["[CLS]", "hello", "[UNK]", "[SEP]", "card", "[SEP]"]
    assert [token["kind"] for token in tokens] == ["special", "word", "unknown", "special", "word", "special"]
    assert [token["text"] for token in tokens] == [None, 0, 0, None, 1, None]
    assert not shown["truncated"]
    (shown,) = ask(classifier_client, {"text": "hello " * 100})["inputs"]
    assert shown["truncated"]
    assert len(shown["windows"][0]) == shown["max_tokens"] == 64


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"precision": "fp8"}, 422, "expected a precision of .*, found 'fp8'"),
        ({"inputs": [{"text": "a"}] * 33}, 422, "at most 32 texts on this page, found 33"),
        ({"inputs": [{"text": "a" * 50_001}]}, 422, "at most 50,000 characters on this page, found 50,001"),
        ({"inputs": []}, 422, "inputs: "),
        ({"inputs": [{"text": "a", "path": "b"}]}, 422, "inputs.0.path: "),
        ({"inputs": [{"text": "\ud800"}]}, 422, "^the text holds a lone surrogate"),
        ({"inputs": [{"text": "a"}, {"text": "\ud800"}]}, 422, "^input 1: the text holds a lone surrogate"),
    ],
)
def test_errors_say_what_is_wrong(
    classifier_client: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    content = {"model": "toy", "precision": "fp32", "inputs": [{"text": "hello"}]} | body
    response = classifier_client.post(
        "/page/predict", content=json.dumps(content), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == status
    assert re.search(message, response.json()["error"]["message"])


def test_limits_of_the_server_hold_on_the_page(start_client: StartClient, classifier_bundle: Path) -> None:
    client = start_client({"toy": classifier_bundle}, {"max_tokens_per_text": 5})
    assert refusal(client, inputs=[{"text": "hello " * 9}])[0] == 413


def test_another_precision_is_loaded_once_and_again_for_a_replaced_bundle(
    start_client: StartClient, classifier_bundle: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "toy"
    shutil.copytree(classifier_bundle, bundle)
    client = start_client({"toy": bundle}, {"load_options": {"threads": 1, "precision": "int8"}}, reload_s=0.02)
    kept = client.app.state.page_models  # type: ignore[attr-defined] # typed as any ASGI application
    ask(client, {"text": "hello"}, precision="int8")
    assert len(kept) == 0, "the served model answers"
    ask(client, {"text": "hello"})
    (first,) = kept._loaded.values()
    ask(client, {"text": "hello"})
    assert [first] == [*kept._loaded.values()]
    served = client.app.state.models["toy"].model  # type: ignore[attr-defined]
    (bundle / "bundle.json").touch()
    wait_until(lambda: client.app.state.models["toy"].model is not served)  # type: ignore[attr-defined]
    ask(client, {"text": "hello"})
    *_, second = kept._loaded.values()
    assert second is not first


def test_a_replaced_model_is_freed_with_what_the_page_loaded_beside_it(
    start_client: StartClient, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_serve.serving.served_model._RETIRE_S", 0.01)
    bundle = Path(shutil.copytree(classifier_bundle, tmp_path / "toy"))
    client = start_client({"toy": bundle}, {"load_options": {"threads": 1, "precision": "int8"}}, reload_s=0.02)
    state = client.app.state  # type: ignore[attr-defined]
    ask(client, {"text": "hello"})
    served = weakref.ref(state.models["toy"].model)
    (loaded,) = map(weakref.ref, state.page_models._loaded.values())
    (bundle / "bundle.json").touch()
    wait_until(lambda: served() is None and loaded() is None)
    assert len(state.page_models) == 0


def test_few_models_are_kept_beside_the_served_ones(start_client: StartClient, classifier_bundle: Path) -> None:
    names = ("one", "two", "three")
    options = {"load_options": {"threads": 1, "precision": "int8"}}
    client = start_client(dict.fromkeys(names, classifier_bundle), options)
    for name in names:
        ask(client, {"text": "hello"}, model=name)
    kept = client.app.state.page_models  # type: ignore[attr-defined]
    models = client.app.state.models  # type: ignore[attr-defined]
    assert [(served(), kind) for served, kind in kept._loaded] == [
        (models[name].model, "fp32") for name in ("two", "three")
    ]


def test_too_many_waiting_requests_are_refused(
    start_client: StartClient, classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start_client({"toy": classifier_bundle})
    monkeypatch.setattr("bert_serve.page.models._MAX_WAITING", 0)
    assert refusal(client) == (429, "0 requests of the page are waiting; try again later")


def test_attention_is_that_of_the_runtime(start_client: StartClient, attention_bundle: Path) -> None:
    client = start_client({"toy": attention_bundle})
    assert client.get("/page/models").json()["models"][0]["attention"] is True
    response = client.post("/page/attention", json={"model": "toy", "input": {"text": "hello", "text_pair": "card"}})
    answer = response.json()
    assert [token["token"] for token in answer["tokens"]] == ["[CLS]", "hello", "[SEP]", "card", "[SEP]"]
    raw = np.frombuffer(base64.b64decode(answer["probabilities"]), dtype="<u2") / answer["scale"]
    expected = load_attention(attention_bundle)(("hello", "card")).probabilities
    np.testing.assert_allclose(raw.reshape(expected.shape), expected, atol=1e-5)
    assert expected.shape[:2] == (answer["num_layers"], answer["num_heads"])


def test_a_bundle_without_attention_says_how_to_add_it(classifier_client: TestClient) -> None:
    response = classifier_client.post("/page/attention", json={"model": "toy", "input": {"text": "hello"}})
    assert response.status_code == 422
    assert "export it with --attention" in response.json()["error"]["message"]


def test_with_keys_the_page_is_shown_and_its_requests_need_one(
    start_client: StartClient, classifier_bundle: Path
) -> None:
    client = start_client({"toy": classifier_bundle}, api_keys=("secret",))
    assert client.get("/").status_code == 200
    assert client.get("/page/models").status_code == 401
    assert refusal(client)[0] == 401
    assert client.get("/page/models", headers={"Authorization": "Bearer secret"}).json()["needs_key"] is True


def test_a_server_without_the_page(start_client: StartClient, classifier_bundle: Path) -> None:
    client = start_client({"toy": classifier_bundle}, page=False)
    assert {client.get(path).status_code for path in ("/", "/page/models", "/static/x/main.js")} <= {404, 405}
    assert refusal(client)[0] == 404


def test_the_page_is_no_part_of_the_documented_interface(classifier_client: TestClient) -> None:
    paths = classifier_client.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" and "get" in paths[path]]
    assert not [path for path in paths if path.startswith(("/page", "/static"))]
