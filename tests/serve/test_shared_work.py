"""Many callers at the same time: everybody gets the answer of a lonely caller, whatever the others send."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from bert_runtime import TASKS, Outputs, Result, Task

from ..task_bundles import TaskBundles
from .closeness import assert_close
from .conftest import StartServer

JSON = {"Content-Type": "application/json"}

CALLERS = 16
REPETITIONS = 2

WORDS = ["where", "is", "my", "lost", "card", "?", "please", "help", ",", "the", "train", "to", "paris"]

MIXED = [" ".join((WORDS * 30)[start : start + length]) for start, length in enumerate((1, 3, 9, 17, 40, 90, 200, 2))]
"""Texts of mixed lengths: some are truncated, or cut into several windows."""


def inputs_of(task: str) -> list[Any]:
    """Return inputs that a task can process."""
    return {
        "question-answering": [{"question": "where is it ?", "context": text} for text in MIXED],
        "fill-mask": [f"my [MASK] {text}" for text in MIXED],
        "next-sentence-prediction": [{"text": text, "text_pair": "bye"} for text in MIXED],
        "rerank": [{"text": "where is my card", "text_pair": text} for text in MIXED],
    }.get(task, MIXED)


def repeat_each(values: list[Any]) -> list[Any]:
    """Return values several times in a row, so that callers meet at the same model."""
    return [value for value in values for _ in range(REPETITIONS)]


Answer = Callable[[str, Any], httpx2.Response]


@pytest.fixture
def answer(start_server: StartServer, task_bundles: TaskBundles) -> Iterator[Answer]:
    """A function that asks a model of a server of all tasks."""
    url = start_server(
        {task: task_bundles[task] for task in TASKS}, {"load_options": {"threads": 2}, "max_queue_ms": 60_000}
    )

    def ask(task: str, inputs: Any) -> httpx2.Response:
        body = json.dumps({"inputs": inputs})  # in ASCII, so that a lone surrogate can be sent
        return client.post(f"{url}/models/{task}", content=body, headers=JSON)

    with httpx2.Client(timeout=60) as client:
        yield ask


def test_answers_of_many_callers_are_those_of_one(answer: Answer) -> None:
    requests = [(task, text) for task in TASKS for text in inputs_of(task)]
    requests += [(task, 10 * inputs_of(task)) for task in TASKS]  # so long that threads tokenize them
    alone = [answer(task, inputs).json() for task, inputs in requests]
    with ThreadPoolExecutor(CALLERS) as callers:
        together = list(callers.map(lambda request: answer(*request), repeat_each(requests)))
    assert {response.status_code for response in together} == {200}
    for response, expected in zip(together, repeat_each(alone), strict=True):
        assert_close(response.json(), expected, 1e-4)


@pytest.mark.parametrize(
    ("task", "inputs", "options", "in_loop"),
    [
        ("fill-mask", "my [MASK]", {"top_k": 5}, True),
        ("fill-mask", "my [MASK]", {"top_k": 100}, False),
        ("question-answering", {"question": "where ?", "context": "card " * 10}, {}, True),
        ("question-answering", {"question": "where ?", "context": "card " * 4000}, {}, False),
    ],
)
def test_long_decoding_does_not_keep_other_callers_waiting(
    tasks_client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    inputs: Any,
    options: dict[str, Any],
    in_loop: bool,
) -> None:
    found, decode = [], TASKS[task].decode

    def decode_and_look(self: Task, outputs: Outputs) -> Result:
        found.append(has_event_loop())
        return decode(self, outputs)

    monkeypatch.setattr(TASKS[task], "decode", decode_and_look)
    response = tasks_client.post(f"/models/{task}", json={"inputs": inputs, "parameters": options})
    assert response.status_code == 200
    assert found == [in_loop]


def has_event_loop() -> bool:
    """Return whether this thread runs the event loop, which serves all callers."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("task", "bad", "message"),
    [
        ("text-classification", "lone \ud800 surrogate", "the text holds a lone surrogate (U+D800) at character 5"),
        ("fill-mask", "no mask", "expected at least one [MASK], found none"),
        ("question-answering", {"question": "where?", "context": " "}, "the context has no tokens"),
        ("next-sentence-prediction", "alone", "expected a pair of texts, found one text"),
    ],
)
def test_a_bad_text_fails_its_own_request_alone(answer: Answer, task: str, bad: Any, message: str) -> None:
    good = (inputs_of(task) * 3)[:20]
    requests = [*good[:10], [good[0], bad], *good[10:]]
    with ThreadPoolExecutor(len(requests)) as callers:
        responses = list(callers.map(lambda inputs: answer(task, inputs), requests))
    failed = responses.pop(10)
    assert failed.status_code == 422
    assert failed.json()["error"].startswith(f"input 1: {message}")
    assert [response.status_code for response in responses] == [200] * 20
