"""KServe's Open Inference Protocol, by NVIDIA's client over loopback and by literal bodies."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from bert_runtime import __version__, load
from bert_serve.http.app import create_app

from ..task_bundles import TaskBundles
from .conftest import StartServer, server_settings

TEXTS = ["where is my card", "hello", "bye and thanks, see you later"]
CONTEXTS = ["the train goes to paris. it is late.", "my card is lost. help!"]


def tensor(name: str, texts: list[str], *, binary: bool = True, column: bool = False) -> InferInput:
    """Return an input of the client."""
    array = np.array([text.encode() for text in texts], dtype=np.object_)
    array = array[:, None] if column else array
    value = InferInput(name, list(array.shape), "BYTES")
    value.set_data_from_numpy(array, binary_data=binary)
    return value


def decoded(array: NDArray[Any]) -> list[Any]:
    """Return the answers of a BYTES tensor, which JSON data gives as texts."""
    return [json.loads(value) for value in array.tolist()]


@pytest.fixture(scope="module")
def bundles(task_bundles: TaskBundles) -> dict[str, Any]:
    return {name: task_bundles[name] for name in ("sentence-embedding", "question-answering", "text-classification")}


StartInferenceClient = Callable[[dict[str, Any]], InferenceServerClient]


@pytest.fixture
def start_inference_client(start_server: StartServer) -> Iterator[StartInferenceClient]:
    """A function that starts a server of some bundles, and returns NVIDIA's client of it."""
    clients = []

    def start(bundles: dict[str, Any]) -> InferenceServerClient:
        clients.append(InferenceServerClient(start_server(bundles).removeprefix("http://")))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def client(start_inference_client: StartInferenceClient, bundles: dict[str, Any]) -> InferenceServerClient:
    return start_inference_client(bundles)


def test_probes_and_metadata(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("question-answering")
    assert client.is_model_ready("question-answering", "1")
    assert not client.is_model_ready("question-answering", "2")
    assert not client.is_model_ready("unknown")
    assert client.get_server_metadata() == {
        "name": "bert-export",
        "version": __version__,
        "extensions": ["binary_tensor_data"],
    }
    assert client.get_model_metadata("sentence-embedding") == {
        "name": "sentence-embedding",
        "versions": ["1"],
        "platform": "bert-export",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 32]}],
    }
    assert client.get_model_metadata("question-answering", "1") == {
        "name": "question-answering",
        "versions": ["1"],
        "platform": "bert-export",
        "inputs": [
            {"name": "question", "datatype": "BYTES", "shape": [-1]},
            {"name": "context", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [{"name": "answers", "datatype": "BYTES", "shape": [-1]}],
    }
    pair = {"name": "text_pair", "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}}
    assert client.get_model_metadata("text-classification")["inputs"][1] == pair


@pytest.mark.parametrize("column", [False, True], ids=["[N]", "[N, 1]"])
@pytest.mark.parametrize("binary", [False, True], ids=["JSON", "binary"])
def test_embeddings_are_those_of_the_runtime(
    client: InferenceServerClient, bundles: dict[str, Any], binary: bool, column: bool
) -> None:
    expected = load(bundles["sentence-embedding"], threads=1).encode(TEXTS)
    inputs = [tensor("text", TEXTS, binary=binary, column=column)]
    for outputs in (None, [InferRequestedOutput("embedding", binary_data=binary)]):
        result = client.infer("sentence-embedding", inputs, outputs=outputs)
        embedding = result.as_numpy("embedding")
        assert (embedding.dtype, embedding.shape) == (np.float32, (3, 32))
        np.testing.assert_allclose(embedding, expected, atol=1e-6)


@pytest.mark.parametrize("binary", [False, True], ids=["JSON", "binary"])
def test_answers_are_decoded_with_the_options_of_the_request(
    client: InferenceServerClient, bundles: dict[str, Any], binary: bool
) -> None:
    questions = ["where to?", "what is lost?"]
    inputs = [tensor("question", questions, binary=binary), tensor("context", CONTEXTS, binary=binary)]
    outputs = [InferRequestedOutput("answers", binary_data=binary)]
    result = client.infer(
        "question-answering", inputs, model_version="1", outputs=outputs, request_id="7", parameters={"top_k": 2},
        priority=1, timeout=5_000_000, sequence_id=7, sequence_start=True, sequence_end=True,
    )  # fmt: skip
    assert {name: result.get_response()[name] for name in ("model_name", "model_version", "id")} == {
        "model_name": "question-answering", "model_version": "1", "id": "7",
    }  # fmt: skip
    model = load(bundles["question-answering"], threads=1).with_options(top_k=2)
    expected = [answers.to_dict() for answers in model(list(zip(questions, CONTEXTS, strict=True)))]
    for found, right in zip(decoded(result.as_numpy("answers")), expected, strict=True):
        assert [(answer["answer"], answer["start"]) for answer in found] == [
            (answer["answer"], answer["start"]) for answer in right
        ]


def test_a_pair_is_optional_for_a_classifier(client: InferenceServerClient) -> None:
    alone = client.infer("text-classification", [tensor("text", TEXTS)]).as_numpy("answers")
    pairs = client.infer("text-classification", [tensor("text", TEXTS), tensor("text_pair", TEXTS)]).as_numpy("answers")
    assert [answer.keys() for answer in decoded(alone)] == [{"label", "score"}] * 3
    assert decoded(alone) != decoded(pairs)


def test_no_texts_give_empty_outputs(client: InferenceServerClient) -> None:
    assert client.infer("sentence-embedding", [tensor("text", [])]).as_numpy("embedding").shape == (0, 32)
    assert client.infer("text-classification", [tensor("text", [], binary=False)]).as_numpy("answers").shape == (0,)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([tensor("title", TEXTS)], {}, "found title"),
        ([tensor("text", TEXTS), tensor("text_pair", ["a"])], {}, "expected inputs of one size, found 1 and 3 texts"),
        ([tensor("text", TEXTS), tensor("text", TEXTS)], {}, "input tensor 'text': expected each input once"),
        (
            [tensor("text", TEXTS)],
            {"parameters": {"bio": True}},
            "text-classification has the options top_k, found bio",
        ),
        ([tensor("text", TEXTS)], {"parameters": {"self": 3}}, "has the options top_k, found self"),
        ([tensor("text", TEXTS)], {"outputs": [InferRequestedOutput("logits")]}, "expected the output answers"),
        (
            [tensor("text", TEXTS)],
            {"outputs": [InferRequestedOutput("answers", class_count=2)]},
            "expected no parameter but binary_data, found classification",
        ),
        (
            [InferInput("text", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))],
            {},
            "input tensor 'text': expected datatype BYTES, found FP32",
        ),
        ([tensor("text", TEXTS)], {"request_compression_algorithm": "gzip"}, "expected a body without compression"),
    ],
)
def test_errors_reach_the_client(
    client: InferenceServerClient, inputs: list[InferInput], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("text-classification", inputs, **options)
    assert message in caught.value.message()
    assert caught.value.status() == ("415" if "compression" in message else "422")


def test_routes_that_are_not_here_are_errors_that_the_client_can_show(client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="Not Found"):
        client.get_model_repository_index()


@pytest.mark.parametrize(
    ("changes", "json_length", "tail", "message"),
    [
        ({"shape": [2]}, None, b"", "expected 2 texts as its shape says, found 1"),
        ({"shape": [1, 1, 1]}, None, b"", r"expected shape [N] or [N, 1], found [1, 1, 1]"),
        ({"data": [1]}, None, b"", "expected texts in data, found int"),
        ({"data": None}, None, b"", "expected data, or binary_data_size"),
        ({"parameters": {"binary_data_size": 9}}, 0, b"\x05\x00", "of at most the 2 bytes left, found 9"),
        ({"parameters": {"binary_data_size": 2}}, 0, b"\x05\x00", "expected an element's length and its bytes"),
        ({"parameters": {"binary_data_size": 5}}, 0, b"\x09\x00\x00\x00a", "length and its bytes at byte 0, found 5"),
        ({"parameters": {"binary_data_size": 5}}, 0, b"\x01\x00\x00\x00\xff", "expected texts in UTF-8"),
        ({}, 0, b"abc", "found 3 more bytes"),
        ({}, 999, b"", "expected Inference-Header-Content-Length to be at most"),
        ({"name": 3}, None, b"", "inputs.0.name: Input should be a valid string"),
        ({"parameters": {"shared_memory_region": "a"}}, None, b"", "shared memory, which this server does not read"),
    ],
)
def test_malformed_tensors_are_refused(
    embedding_client: TestClient, changes: dict[str, Any], json_length: int | None, tail: bytes, message: str
) -> None:
    value = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]} | changes
    body = json.dumps({"inputs": [value]}).encode()
    headers = {} if json_length is None else {"Inference-Header-Content-Length": str(json_length or len(body))}
    response = embedding_client.post("/v2/models/toy/infer", content=body + tail, headers=headers)
    assert response.status_code == 422
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/octet-stream"}, 200),
        ({}, 200),  # as the client sends it
        ({"Origin": "http://page.test"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=a"}, 415),
    ],
)
def test_bodies_that_a_foreign_page_can_post_are_refused(
    embedding_client: TestClient, headers: dict[str, str], status: int
) -> None:
    value = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}
    body = json.dumps({"inputs": [value]}).encode()
    response = embedding_client.post("/v2/models/toy/infer", content=body, headers=headers)
    assert response.status_code == status
    if status == 415:
        expected = "expected the header Content-Type: application/json or application/octet-stream, found"
        assert expected in response.json()["error"]


def test_json_data_may_be_nested_as_the_shape(embedding_client: TestClient) -> None:
    def infer(shape: list[int], data: list[Any]) -> Any:
        body = {"inputs": [{"name": "text", "shape": shape, "datatype": "BYTES", "data": data}]}
        response = embedding_client.post("/v2/models/toy/infer", json=body)
        assert response.status_code == 200
        return response.json()["outputs"][0]

    nested, flat = infer([2, 1], [["a"], ["b"]]), infer([2], ["a", "b"])
    assert nested["shape"] == flat["shape"] == [2, 32]
    assert nested["data"] == flat["data"]
    assert len(flat["data"]) == 64


def test_a_model_being_loaded_is_alive_but_not_ready(task_bundles: TaskBundles) -> None:
    client = TestClient(create_app(server_settings({"toy": task_bundles["text-classification"]})))  # never started
    assert client.get("/v2/health/live").json() == {"live": True}
    for path in ("/v2/health/ready", "/v2/models/toy/ready", "/v2/models/toy"):
        response = client.get(path)
        assert response.status_code == 503
        assert "being loaded" in response.json()["error"]


def test_entities_have_their_characters(tasks_client: TestClient) -> None:
    text = "the train goes to paris, not to rome"
    value = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    output = tasks_client.post("/v2/models/token-classification/infer", json={"inputs": [value]}).json()["outputs"][0]
    (entities,) = map(json.loads, output["data"])
    assert entities
    for entity in entities:
        assert text[entity["start"] : entity["end"]] == entity["word"]
