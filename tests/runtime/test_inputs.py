"""What callers may pass as inputs: texts, pairs and columns of them, and errors for everything else."""

from typing import Any

import numpy as np
import pytest

from bert_runtime import InputError, TextInput
from bert_runtime.inputs import as_text_input, check_column, texts_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", TextInput("a")),
        ("", TextInput("")),
        (("a", "b"), TextInput("a", "b")),
        (TextInput("a"), TextInput("a")),
        ({"text": "a"}, TextInput("a")),
        ({"text": "a", "text_pair": None}, TextInput("a")),
        ({"text": "a", "text_pair": "b", "label": 3}, TextInput("a", "b")),
    ],
)
def test_accepted_inputs(value: object, expected: TextInput) -> None:
    assert as_text_input(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, 1.5, b"bytes", ["a"], np.array(["a"])),
        *(("a",), ("a", "b", "c"), ("a", None), (1, "b"), TextInput("a", 5)),  # type: ignore[arg-type]
        *({}, {"text": 1}, {"text_pair": "b"}, {"text": "a", "text_pair": 1}),
    ],
    ids=repr,
)
def test_values_that_are_not_inputs_are_refused(value: object) -> None:
    with pytest.raises(
        InputError, match=f"expected a text.*; found {'None' if value is None else type(value).__name__ + ': '}"
    ):
        as_text_input(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": "a", "pair": "b"}, "expected texts called text and text_pair, found also pair"),
        ({"text": "a", "context": "b"}, "expected texts called text and text_pair, found also context"),
        ({"question": "a", "context": "b", "text": "c"}, "expected texts called question and context, found also text"),
    ],
)
def test_texts_that_would_not_be_read_are_refused(value: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_text_input(value)


def test_errors_quote_inputs_in_part() -> None:
    with pytest.raises(InputError) as caught:
        as_text_input({"txt": "x" * 10_000})
    assert len(str(caught.value)) < 300


class NAType:
    """Stands for `pandas.NA`, without pandas."""

    def __repr__(self) -> str:
        return "<NA>"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "found None$"),
        (float("nan"), r"found a missing value \(NaN\); leave it out, or fill it"),
        (np.float64("nan"), r"found a missing value \(NaN\)"),
        (NAType(), r"found a missing value \(<NA>\)"),
        (("a", float("nan")), r"found tuple: \('a', nan\), with a missing value \(NaN\)"),
        ({"text": float("nan")}, r"found dict: {'text': nan}, with a missing value \(NaN\)"),
    ],
    ids=repr,
)
def test_missing_values_of_tables_are_named(value: object, found: str) -> None:
    with pytest.raises(InputError, match=found):
        as_text_input(value)


@pytest.mark.parametrize("inputs", [[], ["a"], np.array(["a"]), {"a": 1}.keys(), range(2)], ids=type)
def test_collections_with_an_order_are_columns(inputs: object) -> None:
    check_column(inputs)


@pytest.mark.parametrize("inputs", [None, 5, iter(["a"]), {"a"}, frozenset("a"), b"a", bytearray(b"a")], ids=type)
def test_what_has_no_order_is_refused(inputs: object) -> None:
    with pytest.raises(InputError, match=f"expected a text or a list of texts, found {type(inputs).__name__}; for"):
        check_column(inputs)


@pytest.mark.parametrize("inputs", [np.array("a"), np.array([["a", "b"]])], ids=repr)
def test_arrays_of_another_dimension_are_refused(inputs: Any) -> None:
    with pytest.raises(InputError, match=f"found ndarray of {inputs.ndim} dimensions; give one column of it"):
        check_column(inputs)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", ["a"]), (("a", "b"), ["a", "b"]), (TextInput("a"), ["a"]), (["a", None], ["a"]),
        ({"question": "a", "context": "b", "label": 1}, ["a", "b"]), (5, []), (None, []),
    ],
    ids=repr,
)  # fmt: skip
def test_texts_of_an_input(value: object, expected: list[str]) -> None:
    assert list(texts_of(value)) == expected
