"""TEI's format: the answers of every route, as literal JSON where they can be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer

from bert_runtime import Model, load
from bert_runtime.numerics import sigmoid, softmax
from bert_serve.errors import ModelNotReadyError, QueueFullError
from bert_serve.serving.token_queue import TokenQueue

from ..task_bundles import TaskBundles
from .conftest import StartClient

TEXTS = ["i lost my card", "hello", ""]


def post(client: TestClient, path: str, **body: Any) -> Any:
    """Return the JSON of an answer, which must be a success."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def failure(client: TestClient, path: str, **body: Any) -> tuple[int, str, str]:
    """Return status, type and message of a failure, whose body must have TEI's shape."""
    response = client.post(path, json=body)
    error = response.json()
    assert set(error) == {"error", "error_type"}
    return response.status_code, error["error_type"], error["error"]


def test_embed(embedding_client: TestClient, embedding_bundle: Path) -> None:
    model = load(embedding_bundle, threads=1)
    np.testing.assert_allclose(post(embedding_client, "/embed", inputs=TEXTS), model.encode(TEXTS), atol=1e-5)
    options = {"truncate": True, "truncation_direction": "Right", "normalize": True, "prompt_name": None}
    found = post(embedding_client, "/embed", inputs="hello", dimensions=8, **options)
    np.testing.assert_allclose(found, model.encode(["hello"], dimensions=8), atol=1e-5)
    ids = model.tokenize(["hello"])[0].windows[0].ids
    np.testing.assert_allclose(post(embedding_client, "/embed", inputs=[ids]), model.encode(["hello"]), atol=1e-5)


def test_similarity(embedding_client: TestClient, embedding_bundle: Path) -> None:
    found = post(
        embedding_client, "/similarity", inputs={"source_sentence": TEXTS[0], "sentences": ["hello", TEXTS[0]]}
    )
    source, other = load(embedding_bundle, threads=1).encode(["i lost my card", "hello"])
    np.testing.assert_allclose(found, [source @ other, 1], atol=1e-5)


def test_sparse_weights_are_in_the_order_of_their_tokens(task_bundles: TaskBundles, start_client: StartClient) -> None:
    client = start_client({"toy": task_bundles["sparse-embedding"]})
    model = load(task_bundles["sparse-embedding"], threads=1)
    found = post(client, "/embed_sparse", inputs=TEXTS)
    for values, result in zip(found, model(TEXTS), strict=True):
        indices = [value["index"] for value in values]
        assert indices == sorted(result.indices.tolist())
        expected = dict(zip(result.indices.tolist(), result.weights.tolist(), strict=True))
        assert [value["value"] for value in values] == pytest.approx([expected[index] for index in indices], abs=1e-5)
    assert len(found[0]) > 1
    ids = model.tokenize(["hello"])[0].windows[0].ids
    assert post(client, "/embed_sparse", inputs=[ids]) == post(client, "/embed_sparse", inputs="hello")
    assert failure(client, "/embed", inputs="hello")[0] == 424


@pytest.mark.parametrize("route", ["/embed", "/embed_all", "/embed_sparse"])
def test_a_full_queue_refuses_texts_before_they_are_tokenized(
    route: str, tasks_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {"/embed": "sentence-embedding", "/embed_all": "feature-extraction", "/embed_sparse": "sparse-embedding"}
    name = tasks[route]
    app: Any = tasks_client.app
    tokenized: list[object] = []
    monkeypatch.setattr(Model, "tokenize", lambda _, texts: tokenized.extend(texts))
    queue = app.state.models[name].engine.queue
    with queue.reserve(1_000_000), queue.reserve(1_000_000):  # of one, at most half counts
        status, kind, message = failure(tasks_client, route, model=name, inputs=TEXTS)
    assert (status, kind, tokenized) == (429, "Overloaded", [])
    assert "expected at most 262,144 waiting tokens" in message


def test_vectors_of_all_tokens(task_bundles: TaskBundles, start_client: StartClient) -> None:
    client = start_client({"toy": task_bundles["feature-extraction"]})
    model = load(task_bundles["feature-extraction"], threads=1)
    texts = [*TEXTS, "card " * 100]  # the last one is read in windows
    found = post(client, "/embed_all", inputs=texts)
    for vectors, result in zip(found, model(texts), strict=True):
        np.testing.assert_allclose(vectors, result.vectors, atol=1e-5)
    assert [len(vectors) for vectors in found] == [6, 3, 2, 102]
    ids = model.tokenize(["hello"])[0].windows[0].ids
    np.testing.assert_allclose(post(client, "/embed_all", inputs=[ids])[0], found[1], atol=1e-5)
    status, _, message = failure(client, "/embed_all", inputs=texts, truncate=False)
    assert (status, message) == (413, "input 3: expected at most 64 tokens, found 120 in 2 overlapping windows")
    assert failure(client, "/embed_all", inputs=[[10**6]])[0] == 422
    assert failure(client, "/embed_all", inputs=[])[:2] == (400, "Empty")


@pytest.mark.parametrize(
    ("route", "needs"), [("/embed_all", "for feature-extraction"), ("/embed_sparse", "for sparse-embedding")]
)
def test_what_a_bundle_does_not_give_is_refused_with_what_it_needs(
    route: str, needs: str, embedding_client: TestClient
) -> None:
    status, kind, message = failure(embedding_client, route, inputs="hello")
    assert (status, kind) == (424, "Backend")
    assert needs in message


@pytest.mark.parametrize(
    ("inputs", "runtime_inputs"),
    [
        ("hello", ["hello"]),
        (["hello"], ["hello"]),
        (["hello", "bye"], [("hello", "bye")]),
        ([["hello"], ["hello", "bye"], ["where is it?"]], ["hello", ("hello", "bye"), "where is it?"]),
    ],
)
def test_predict(
    inputs: Any, runtime_inputs: list[Any], classifier_client: TestClient, classifier_bundle: Path
) -> None:
    results = load(classifier_bundle, threads=1)(runtime_inputs)
    for raw_scores, name in ((False, "scores"), (True, "logits")):
        found = post(classifier_client, "/predict", inputs=inputs, raw_scores=raw_scores)
        is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
        for predictions, result in zip(found if is_batch else [found], results, strict=True):
            by_label = {prediction["label"]: prediction["score"] for prediction in predictions}
            expected = dict(zip(result.labels, getattr(result, name).tolist(), strict=True))
            assert by_label == pytest.approx(expected, abs=1e-4)
            assert list(by_label.values()) == sorted(by_label.values(), reverse=True)


def test_predict_several_labels_and_numbers(start_client: StartClient, task_bundles: TaskBundles) -> None:
    client = start_client({name: task_bundles[name] for name in ("multi-label", "reranker")})
    model = load(task_bundles["multi-label"], threads=1)
    found = post(client, "/predict?model=multi-label", inputs="hello")
    expected = dict(zip(model.task.labels, sigmoid(model.outputs(["hello"])[0].arrays[0]), strict=True))
    assert {item["label"]: item["score"] for item in found} == pytest.approx(expected, abs=1e-4)
    number = float(load(task_bundles["reranker"], threads=1).outputs([("a", "b")])[0].arrays[0][0])
    found = post(client, "/predict", inputs=["a", "b"], model="reranker")
    assert found == [{"label": "relevance", "score": pytest.approx(number, abs=1e-4)}]


def test_rerank(start_client: StartClient, task_bundles: TaskBundles) -> None:
    client = start_client({"toy": task_bundles["reranker"]})
    query, texts = "where is my card?", ["the sun", "your card is lost", "bye"]
    outputs = load(task_bundles["reranker"], threads=1).outputs([(query, text) for text in texts])
    logits = np.array([output.arrays[0][0] for output in outputs])
    for raw_scores, expected in ((True, logits), (False, sigmoid(logits))):
        ranks = post(client, "/rerank", query=query, texts=texts, raw_scores=raw_scores, return_text=raw_scores)
        assert [rank["index"] for rank in ranks] == np.argsort(-logits).tolist()
        for rank in ranks:
            text = {"text": texts[rank["index"]]} if raw_scores else {}
            assert rank == {"index": rank["index"], "score": pytest.approx(expected[rank["index"]], abs=1e-4)} | text


def test_rerank_by_two_labels_is_the_probability_of_the_second(
    start_client: StartClient, task_bundles: TaskBundles
) -> None:
    client = start_client({"toy": task_bundles["two-labels"]})
    output = load(task_bundles["two-labels"], threads=1).outputs([("a", "b")])[0]
    (rank,) = post(client, "/rerank", query="a", texts=["b"])
    assert rank["score"] == pytest.approx(softmax(output.arrays[0])[1], abs=1e-4)


def test_tokenize_and_decode(embedding_client: TestClient, embedding_bundle: Path) -> None:
    tokenizer = Tokenizer.from_file(str(embedding_bundle / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "hello", "[UNK]", "[SEP]")}
    found = post(embedding_client, "/tokenize", inputs="hello € hello".replace("€", "€¤"))
    special = {"special": True, "start": None, "stop": None}
    assert [token["id"] for token in found[0]] == tokenizer.encode("hello €¤ hello").ids
    assert found[0][0] == {"id": ids["[CLS]"], "text": "[CLS]", **special}
    assert found[0][1] == {"id": ids["hello"], "text": "hello", "special": False, "start": 0, "stop": 5}
    assert found[0][-2] == {"id": ids["hello"], "text": "hello", "special": False, "start": 12, "stop": 17}  # bytes
    assert found[0][-1] == {"id": ids["[SEP]"], "text": "[SEP]", **special}
    plain = post(embedding_client, "/tokenize", inputs=["hello", "hello"], add_special_tokens=False)
    assert plain == [[found[0][1]], [found[0][1]]]
    sequence = [token["id"] for token in found[0]][:2]
    assert post(embedding_client, "/decode", ids=sequence) == ["hello"]
    assert post(embedding_client, "/decode", ids=[sequence], skip_special_tokens=False) == ["[CLS] hello"]


def test_tokens_beyond_the_models_maximum_are_given_too(embedding_client: TestClient) -> None:
    (tokens,) = post(embedding_client, "/tokenize", inputs="hello " * 500)
    assert len(tokens) == 502
    assert tokens[-2]["stop"] == 2999


def test_info(embedding_client: TestClient, classifier_client: TestClient) -> None:
    info = embedding_client.get("/info").json()
    assert info["model_id"] == info["served_model_name"] == "toy"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (64, 1024, True)
    assert info["model_dtype"] in ("float32", "int8")
    labels = ("greeting", "farewell", "question")
    assert classifier_client.get("/info").json()["model_type"] == {
        "classifier": {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    }


def test_without_a_name_the_only_model_of_the_task_answers(
    start_client: StartClient, embedding_bundle: Path, classifier_bundle: Path
) -> None:
    client = start_client({"toy": embedding_bundle, "intents": classifier_bundle})
    assert len(post(client, "/embed", inputs="hello")[0]) == 32
    assert post(client, "/predict", inputs="hello")[0]["label"] in ("greeting", "farewell", "question")
    assert failure(client, "/embed?model=intents", inputs="hello")[:2] == (424, "Backend")
    assert failure(client, "/embed", inputs="hello", model="other")[:2] == (404, "Validation")
    assert failure(client, "/tokenize", inputs="hello")[:2] == (404, "Validation")
    assert client.get("/info?model=intents").json()["model_id"] == "intents"


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("/embed", {"inputs": []}, (400, "Empty", "expected at least one text")),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, (422, "Validation", "this model has no prompts")),
        ("/embed", {"inputs": "a", "truncation_direction": "Left"}, (422, "Validation", "expected right")),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, (422, "Validation", "'left' or 'right'")),
        ("/embed", {"inputs": "a", "normalize": False}, (422, "Validation", "graph of this bundle normalizes")),
        ("/embed", {"inputs": "a", "dimensions": 0}, (422, "Validation", "dimensions must lie in 1 to 32")),
        ("/embed", {"inputs": "hello " * 99, "truncate": False}, (413, "Validation", "input 0: expected at most 64")),
        ("/embed", {}, (422, "Validation", "inputs: Field required")),
        ("/predict", {"inputs": "a"}, (424, "Backend", "needs a model for text-classification")),
        ("/rerank", {"query": "a", "texts": ["b"]}, (424, "Backend", "for rerank or text-classification")),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, (400, "Empty", "inputs.sentences")),
        ("/tokenize", {"inputs": []}, (400, "Empty", "inputs: expected at least one")),
        ("/tokenize", {"inputs": "a" * 200_001}, (413, "Validation", "expected at most 200,000 characters")),
        ("/decode", {"ids": [2] * 200_001}, (413, "Validation", "expected at most 200,000 token ids")),
        ("/decode", {"ids": []}, (400, "Empty", "ids: expected at least one")),
        ("/decode", {"ids": [[2], [-1]]}, (422, "Validation", "input 1: expected token ids in 0 to")),
        ("/decode", {"ids": [2**40]}, (422, "Validation", "input 0: expected token ids in 0 to")),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(
    route: str, body: dict[str, Any], expected: tuple[int, str, str], embedding_client: TestClient
) -> None:
    status, kind, message = failure(embedding_client, route, **body)
    assert (status, kind) == expected[:2]
    assert expected[2] in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"inputs": ["a", "b", "c"]}, (422, "Validation", "write a batch of texts as [[text], [text], …]")),
        ({"inputs": [["a"], []]}, (422, "Validation", "input 1: expected one text or two, found 0")),
        ({"inputs": []}, (400, "Empty", "inputs: expected at least one")),
        ({"inputs": [["a"], "b"]}, (422, "Validation", "inputs")),
    ],
)
def test_predict_names_the_input_that_is_no_pair(
    body: dict[str, Any], expected: tuple[int, str, str], classifier_client: TestClient
) -> None:
    status, kind, message = failure(classifier_client, "/predict", **body)
    assert (status, kind) == expected[:2]
    assert expected[2] in message


def test_rerank_needs_texts_and_one_score(classifier_client: TestClient) -> None:
    assert failure(classifier_client, "/rerank", query="a", texts=[])[:2] == (400, "Empty")
    status, kind, message = failure(classifier_client, "/rerank", query="a", texts=["b"])
    assert (status, kind) == (422, "Validation")
    assert "one score" in message


@pytest.mark.parametrize(
    ("error", "expected"),
    [(QueueFullError("full"), (429, "Overloaded")), (ModelNotReadyError("loading"), (503, "Unhealthy"))],
)
def test_load_has_teis_types(
    error: Exception, expected: tuple[int, str], embedding_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(queue: object, num_tokens: int) -> None:
        raise error

    monkeypatch.setattr(TokenQueue, "reserve", refuse)
    assert failure(embedding_client, "/embed", inputs="hello")[:2] == expected
