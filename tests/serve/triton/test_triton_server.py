"""Bundles in a real Triton server, asked by its own client over loopback; `make test-triton` installs the server."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import load
from bert_serve.triton import ModelConfig, write_model

from .triton_server import TritonInstallation, find_installation, running_server

pytestmark = [pytest.mark.triton, pytest.mark.timeout(180)]

FP32 = ModelConfig(precision="fp32", threads=1)


class Client:
    """tritonclient's HTTP client with texts as arguments."""

    def __init__(self, address: str) -> None:
        from tritonclient.http import InferenceServerClient

        self.triton = InferenceServerClient(address)

    def infer(self, model: str, outputs: tuple[str, ...] = ("RESULT",), **columns: list[str | bytes]) -> dict[str, Any]:
        """Return the outputs of one request by name, those of RESULT parsed."""
        from tritonclient.http import InferInput, InferRequestedOutput

        inputs = []
        for name, values in columns.items():
            encoded = [[value if isinstance(value, bytes) else value.encode()] for value in values]
            inputs.append(InferInput(name, [len(values), 1], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array(encoded, dtype=np.object_))
        response = self.triton.infer(model, inputs, outputs=[InferRequestedOutput(name) for name in outputs])
        found = {name: response.as_numpy(name) for name in outputs}
        if "RESULT" in found:
            found["RESULT"] = [json.loads(value) for value in found["RESULT"][:, 0]]
        return found


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> TritonInstallation:
    return find_installation(tmp_path_factory.mktemp("backends"))


@pytest.fixture(scope="module")
def bundles(classifier_bundle: Path, embedding_bundle: Path, standard_models: Any) -> dict[str, Path]:
    return {
        "classifier": classifier_bundle,
        "embedding": embedding_bundle,
        "answers": standard_models.bundle("qa-bundle"),
    }


@pytest.fixture(scope="module")
def client(
    installation: TritonInstallation, bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A client of a server with one model for each bundle."""
    folder = tmp_path_factory.mktemp("triton")
    for name, bundle in bundles.items():
        write_model(bundle, folder / "models", name=name, config=FP32)
    with running_server(installation, folder / "models", folder / "log") as address:
        client = Client(address)
        yield client
        client.triton.close()  # the server waits for open connections when it ends


def test_classification(client: Client, bundles: dict[str, Path]) -> None:
    texts = ["hello there", "bye", "where is my card?", ""]
    found = client.infer("classifier", TEXT=texts)["RESULT"]
    expected = [result.to_dict() for result in load(bundles["classifier"], precision="fp32")(texts)]
    assert [value["label"] for value in found] == [value["label"] for value in expected]
    assert [value["score"] for value in found] == pytest.approx([value["score"] for value in expected], abs=1e-5)


def test_pairs_of_texts(client: Client, bundles: dict[str, Path]) -> None:
    (found,) = client.infer("classifier", TEXT=["hello"], TEXT_PAIR=["good bye"])["RESULT"]
    expected = load(bundles["classifier"], precision="fp32")(("hello", "good bye")).to_dict()
    assert found == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}


def test_embeddings(client: Client, bundles: dict[str, Path]) -> None:
    texts = ["hello", "where is my card?", "naïve 東京 😀"]
    found = client.infer("embedding", ("RESULT", "EMBEDDING"), TEXT=texts)
    expected = load(bundles["embedding"], precision="fp32").encode(texts)
    assert found["EMBEDDING"].dtype == np.float32
    np.testing.assert_allclose(found["EMBEDDING"], expected, atol=1e-5)
    np.testing.assert_allclose([value["embedding"] for value in found["RESULT"]], expected, atol=1e-5)


def test_question_answering(client: Client, bundles: dict[str, Path]) -> None:
    question, context = "where to?", "The train goes to Paris. " * 30
    (found,) = client.infer("answers", QUESTION=[question], CONTEXT=[context])["RESULT"]
    expected = load(bundles["answers"], precision="fp32")(question=question, context=context).to_dict()
    assert found["answer"] == expected["answer"]
    assert context[found["start"] : found["end"]] == found["answer"]


def test_bad_texts_are_errors_of_their_own_request(client: Client) -> None:
    from tritonclient.utils import InferenceServerException

    for columns, message in (
        ({"QUESTION": ["where to?"], "CONTEXT": [""]}, "the context has no tokens"),
        ({"QUESTION": [b"\xff"], "CONTEXT": ["To Rome."]}, "QUESTION: expected UTF-8"),
    ):
        with pytest.raises(InferenceServerException, match=message) as raised:
            client.infer("answers", **columns)
        assert raised.value.status() == "400"
    assert client.infer("answers", QUESTION=["where to?"], CONTEXT=["To Rome."])["RESULT"]


def ask_in_parallel(address: str, model: str, callers: int, goes_on: Callable[[int], bool]) -> list[Any]:
    """Ask for the same text from several threads with a client each; return results, or what was raised.

    Each goes on while `goes_on(number of its requests so far)` is true.
    """
    found: list[Any] = []

    def ask() -> None:
        client = Client(address)
        asked = 0
        while goes_on(asked):
            asked += 1
            try:
                found.extend(client.infer(model, TEXT=["where is my card?"])["RESULT"])
            except Exception as error:
                found.append(error)
        client.triton.close()

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_waiting_requests_are_joined(
    installation: TritonInstallation, bundles: dict[str, Path], tmp_path: Path
) -> None:
    config = ModelConfig(precision="fp32", threads=1, max_queue_delay_us=20_000)
    write_model(bundles["classifier"], tmp_path / "models", name="model", config=config)
    with running_server(installation, tmp_path / "models", tmp_path / "log") as address:
        found = ask_in_parallel(address, "model", 8, lambda asked: asked < 10)
        client = Client(address)
        statistics = client.triton.get_inference_statistics("model")["model_stats"][0]
        client.triton.close()
    assert len(found) == 80
    assert {value["label"] for value in found} == {found[0]["label"]}
    assert int(statistics["inference_count"]) == 80
    assert int(statistics["execution_count"]) <= 40


def test_a_model_is_replaced_without_a_lost_request(
    installation: TritonInstallation, bundles: dict[str, Path], tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(bundles["classifier"], models, name="model", config=FP32)
    options = ("--model-control-mode", "explicit", "--load-model", "*")
    with running_server(installation, models, tmp_path / "log", *options) as address:
        replaced = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(
                ask_in_parallel, address, "model", 2, lambda asked: asked < 10 or not replaced.is_set()
            )
            try:
                write_model(bundles["classifier"], models, name="model", config=FP32, force=True)
                client = Client(address)
                client.triton.load_model("model")
                client.triton.close()
            finally:
                replaced.set()
        found = asking.result()
    assert len(found) >= 20
    assert not [value for value in found if isinstance(value, Exception)]
