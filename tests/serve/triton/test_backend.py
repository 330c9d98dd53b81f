"""Triton's Python backend, called as Triton calls it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import bert_runtime
from bert_runtime import verification
from bert_serve.triton import ModelConfig, write_model

from ...task_bundles import TaskBundles
from ..cascades import write_cascade
from . import fake_triton
from .fake_triton import InferenceResponse, Request


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `model.py` of a repository, imported where `triton_python_backend_utils` is the fake."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton)
    fake_triton.LOG.clear()
    return importlib.reload(importlib.import_module("bert_serve.triton.backend"))


def arguments(model: Path, inputs: tuple[str, ...] = ("TEXT", "TEXT_PAIR"), **values: Any) -> dict[str, str]:
    """What Triton passes to `initialize` for a model that `write_model` wrote."""
    config = {
        "input": [{"name": name} for name in inputs],
        "parameters": {"precision": {"string_value": "fp32"}},
        "instance_group": [{"count": 1}],
    }
    return {
        "model_config": json.dumps(config | values),
        "model_repository": str(model),
        "model_version": "1",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }


def start(backend: ModuleType, bundle: Path, folder: Path, **options: Any) -> Any:
    """Return an initialized instance."""
    model = backend.TritonPythonModel()
    model.initialize(arguments(write_model(bundle, folder, name="model"), **options))
    return model


def result(response: InferenceResponse) -> list[Any]:
    assert response.error is None
    assert response.outputs["RESULT"].shape == (len(response.outputs["RESULT"]), 1)
    return [json.loads(value) for value in response.outputs["RESULT"][:, 0]]


def test_requests_of_a_batch_are_joined_into_one_call(
    backend: ModuleType, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = bert_runtime.Model.__call__

    def counted(self: Any, inputs: Any, **options: Any) -> Any:
        calls.append(len(inputs))
        return original(self, inputs, **options)

    model = start(backend, classifier_bundle, tmp_path)
    monkeypatch.setattr(bert_runtime.Model, "__call__", counted)
    responses = model.execute([Request(TEXT=["hello"]), Request(TEXT=["bye", "where is my card"]), Request(TEXT=[""])])
    assert calls == [4]
    expected = bert_runtime.load(classifier_bundle, precision="fp32")(["hello", "bye", "where is my card", ""])
    found = [value for response in responses for value in result(response)]
    assert [value["label"] for value in found] == [value.to_dict()["label"] for value in expected]


def test_a_bad_text_fails_its_own_request_alone(backend: ModuleType, task_bundles: TaskBundles, tmp_path: Path) -> None:
    model = start(backend, task_bundles["question-answering"], tmp_path, inputs=("QUESTION", "CONTEXT"))
    good = {"QUESTION": ["where to?"], "CONTEXT": ["The train goes to Rome."]}
    responses = model.execute(
        [
            Request(**good),
            Request(QUESTION=["where to?"], CONTEXT=[""]),
            Request(QUESTION=["where?", "where to?"], CONTEXT=["To Rome.", ""]),
            Request(QUESTION=[b"\xff"], CONTEXT=["The train goes to Rome."]),
            Request(**good),
        ]
    )
    errors = [response.error and response.error.message for response in responses]
    assert errors == [
        None,
        "the context has no tokens",
        "text 1: the context has no tokens",
        "QUESTION: expected UTF-8, found byte 0xff at 0",
        None,
    ]
    assert {response.error.code for response in responses if response.error} == {"INVALID_ARG"}
    first, last = result(responses[0]), result(responses[4])
    assert first == last
    assert first[0].keys() == {"answer", "score", "start", "end"}


def test_embeddings_are_arrays_too(backend: ModuleType, embedding_bundle: Path, tmp_path: Path) -> None:
    model = start(backend, embedding_bundle, tmp_path)
    (response,) = model.execute([Request(outputs=("RESULT", "EMBEDDING"), TEXT=["hello", "bye"])])
    vectors = response.outputs["EMBEDDING"]
    assert (vectors.shape, vectors.dtype) == ((2, 32), np.float32)
    expected = bert_runtime.load(embedding_bundle, precision="fp32").encode(["hello", "bye"])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose([value["embedding"] for value in result(response)], vectors, atol=1e-7)


def test_outputs_that_nobody_asked_for_are_not_made(
    backend: ModuleType, embedding_bundle: Path, tmp_path: Path
) -> None:
    model = start(backend, embedding_bundle, tmp_path)
    (response,) = model.execute([Request(outputs=("EMBEDDING",), TEXT=["hello"])])
    assert list(response.outputs) == ["EMBEDDING"]


def test_second_texts_are_optional(backend: ModuleType, classifier_bundle: Path, tmp_path: Path) -> None:
    model = start(backend, classifier_bundle, tmp_path)
    responses = model.execute([Request(TEXT=["hello"], TEXT_PAIR=["bye"]), Request(TEXT=["hello"])])
    runtime = bert_runtime.load(classifier_bundle, precision="fp32")
    scores = [result(response)[0]["score"] for response in responses]
    assert scores == pytest.approx([runtime(("hello", "bye")).to_dict()["score"], runtime("hello").to_dict()["score"]])


def test_a_failing_model_answers_every_request_and_goes_on(
    backend: ModuleType, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = start(backend, classifier_bundle, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(bert_runtime.Model, "__call__", lambda *arguments, **options: 1 / 0)
        responses = model.execute([Request(TEXT=["hello"]), Request(TEXT=["bye"])])
    assert [response.error.message for response in responses] == ["the model failed; Triton's log says why"] * 2
    assert fake_triton.LOG == ["ZeroDivisionError: division by zero"]
    assert result(*model.execute([Request(TEXT=["hello"])]))


def test_instances_share_the_cores_and_follow_the_config(
    backend: ModuleType, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr("bert_runtime.machine.available_cores", lambda: 8)
    monkeypatch.setattr(bert_runtime, "load", lambda bundle, **options: loaded.append(options))
    monkeypatch.setattr(backend, "_self_test", lambda model: None)
    given = arguments(tmp_path, instance_group=[{"count": 3}], parameters={})
    backend.TritonPythonModel().initialize(given)
    backend.TritonPythonModel().initialize(arguments(tmp_path, parameters={}))
    backend.TritonPythonModel().initialize(
        given | {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
        | {"model_config": json.dumps({"input": [], "parameters": {"threads": {"string_value": "5"}}})}
    )  # fmt: skip
    backend.TritonPythonModel().initialize(
        arguments(tmp_path, instance_group=[{"count": 1, "gpus": [0, 1, 2, 3]}], parameters={})
        | {"model_instance_kind": "GPU", "model_instance_device_id": "2"}
    )  # fmt: skip
    assert loaded == [
        {"precision": "auto", "device": "cpu", "threads": 2},
        {"precision": "auto", "device": "cpu", "threads": None},
        {"precision": "auto", "device": "cuda:1", "threads": 5},
        {"precision": "auto", "device": "cuda:2", "threads": 2},  # a process on each of four GPUs
    ]


def test_not_ready_where_the_self_test_fails(backend: ModuleType, classifier_bundle: Path, copy_bundle: Any) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["variants"]:
            variant["self_test"]["outputs"][0][0] += 1.0

    changed = copy_bundle(classifier_bundle, change)
    with pytest.raises(fake_triton.TritonModelException, match=r"self-test fp32: max abs difference 1, tolerance"):
        start(backend, changed, changed.parent)


def test_a_python_without_the_runtime_says_what_to_install(
    backend: ModuleType, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(classifier_bundle, tmp_path, name="model", config=ModelConfig())
    monkeypatch.setitem(sys.modules, "bert_runtime", None)
    spec = importlib.util.spec_from_file_location("model", model / "1/model.py")
    assert spec is not None
    assert spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    with pytest.raises(fake_triton.TritonModelException, match=r"pip install 'bert-export\[cpu\]'"):
        copied.TritonPythonModel().initialize(arguments(model))


def test_a_cascade_says_which_model_answered(
    backend: ModuleType, classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["hello", "bye", "where is my card", "my card is lost", "good morning"]
    cascade = write_cascade(classifier_bundle, tmp_path / "both", texts)
    tested: list[str] = []
    original = verification.self_test

    def noted(model: Any, *given: Any) -> Any:
        tested.append(type(model).__name__)
        return original(model, *given)

    monkeypatch.setattr(verification, "self_test", noted)
    model = start(backend, cascade, tmp_path / "models")
    assert tested == ["Model", "Model"]
    found = result(model.execute([Request(TEXT=[*texts])])[0])
    assert {value["model"] for value in found} == {"small", "large"}
    expected = [value.to_dict() for value in bert_runtime.load(cascade, precision="fp32")(texts)]
    assert [(value["label"], value["model"]) for value in found] == [(v["label"], v["model"]) for v in expected]
