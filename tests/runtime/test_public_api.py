"""The public names of `bert_runtime`: complete, typed, and short where a notebook shows them."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_overloads, get_type_hints

import pytest

import bert_runtime
from bert_runtime import Column, InputFailure, Manifest, Model, Plan, Result, SingleInput, errors, load, tasks

MANIFEST = Manifest.from_json(
    (Path(__file__).parents[1] / "fixtures/bundle.v1.json").read_text(encoding="utf-8"),
)


def test_every_error_result_and_task_is_exported() -> None:
    results = {
        name for name in tasks.__all__ if inspect.isclass(kind := getattr(tasks, name)) and issubclass(kind, Result)
    }
    classes = {task.__name__ for task in tasks.TASKS.values()}
    assert {"Classification", "Entities", "Answers", "Fillings"} <= results
    assert {*errors.__all__, *results, *classes} <= set(bert_runtime.__all__)


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for name in bert_runtime.__all__:
        value = getattr(bert_runtime, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip(), name


def test_types_of_results_follow_the_inputs() -> None:
    several = Sequence[SingleInput] | Column
    raised, returned = Literal["raise", "skip"], Literal["return"]
    one, many, failing, text, question = map(get_type_hints, get_overloads(Model.__call__))
    assert one == {"inputs": SingleInput, "return": Result}
    assert many == {"inputs": several, "on_error": raised, "return": list[Result]}
    assert failing == {"inputs": several, "on_error": returned, "return": list[Result | InputFailure]}
    assert text == {"text": str, "text_pair": str | None, "return": Result}
    assert question == {"question": str, "context": str, "return": Result}
    many, failing = map(get_type_hints, get_overloads(Model.stream))
    assert (many["on_error"], many["return"]) == (raised, Iterator[Result])
    assert (failing["on_error"], failing["return"]) == (returned, Iterator[Result | InputFailure])


@pytest.mark.parametrize(
    "function",
    [load, bert_runtime.tune, bert_runtime.verify, bert_runtime.evaluate, Model.__call__, Model.stream, Model.run],
)
def test_public_signatures_have_no_any(function: Any) -> None:
    assert Any not in get_type_hints(function).values()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            MANIFEST,
            "Manifest(text-classification, max_tokens=128, "
            "variants: fp32, int8, fp16 cuda, fp16 cuda unmasked, fp16 cuda packed)",
        ),
        (MANIFEST.variants[3], "Variant(fp16 cuda unmasked, model.fp16.unmasked.onnx)"),
        (
            Plan(precision="int8", threads=2, max_batch_tokens=64),
            "Plan(precision='int8', threads=2, inter_threads=1, max_batch_tokens=64, kernels=True)",
        ),
    ],
    ids=["manifest", "variant", "plan"],
)
def test_reprs_fit_on_a_line(value: object, shown: str) -> None:
    assert repr(value) == shown
