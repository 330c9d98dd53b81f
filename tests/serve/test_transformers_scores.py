"""Answers over HTTP are those of the pipelines of transformers on the same checkpoint, in FP32."""

from typing import Any

import pytest
import transformers
from fastapi.testclient import TestClient

from ..task_bundles import TaskBundles
from .closeness import assert_close

TEXTS = ["where is my card", "hello", "thanks and bye, see you later. " * 20, "the train to paris is late!", "x"]

LABELS = {"top_k": None, "truncation": True, "max_length": 64}


def pipeline(task: str, bundles: TaskBundles, name: str) -> Any:
    """Return the pipeline of transformers for the checkpoint of a toy bundle."""
    return transformers.pipeline(task, model=str(bundles.checkpoint(name)), device="cpu")  # type: ignore[call-overload]


def ask(client: TestClient, name: str, inputs: Any, **parameters: Any) -> Any:
    """Return the answer of a model."""
    response = client.post(f"/models/{name}", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def test_labels(tasks_client: TestClient, task_bundles: TaskBundles) -> None:
    expected = pipeline("text-classification", task_bundles, "text-classification")(TEXTS, **LABELS)
    found = ask(tasks_client, "text-classification", TEXTS)
    for labels in found:
        for label in labels:
            label.pop("truncated", None)
    assert_close(found, expected)


def test_labels_by_a_function(tasks_client: TestClient, task_bundles: TaskBundles) -> None:
    classify = pipeline("text-classification", task_bundles, "text-classification")
    for function in ("sigmoid", "softmax", "none"):
        expected = classify(TEXTS[:2], function_to_apply=function, **LABELS)
        assert_close(ask(tasks_client, "text-classification", TEXTS[:2], function_to_apply=function), expected)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities(tasks_client: TestClient, task_bundles: TaskBundles, strategy: str) -> None:
    texts = [text for text in TEXTS if len(text) < 100]
    tagger = pipeline("token-classification", task_bundles, "token-classification")
    expected = tagger(texts, aggregation_strategy=strategy)
    for text, entities in zip(texts, expected, strict=True):
        for entity in entities:
            entity["score"] = float(entity["score"])  # of NumPy
            if strategy != "none":  # the text's own characters, where transformers joins tokens
                entity["word"] = text[entity["start"] : entity["end"]]
    assert_close(ask(tasks_client, "token-classification", texts, aggregation_strategy=strategy), expected)


def test_words_for_masks(tasks_client: TestClient, task_bundles: TaskBundles) -> None:
    texts = ["my [MASK] is lost", "[MASK] and thanks"]
    expected = pipeline("fill-mask", task_bundles, "fill-mask")(texts, top_k=3)
    assert_close(ask(tasks_client, "fill-mask", texts, top_k=3), expected)
