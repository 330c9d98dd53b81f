"""Inputs that cannot be processed, among others: `on_error` of lists and streams."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_runtime import Classification, InputError, InputFailure, Model, Result, load
from bert_runtime.batching import streaming
from bert_runtime.evaluation import run_examples
from bert_runtime.tasks import Example, TextInput

BAD: dict[str, Any] = {"surrogate": "bad \ud83d", "None": None, "NaN": float("nan"), "tuple": ("a", 5)}
MESSAGES = {
    "surrogate": "the text holds a lone surrogate (U+D83D) at character 4",
    "None": "expected a text, a tuple of two texts",
    "NaN": "found a missing value (NaN)",
    "tuple": "found tuple: ('a', 5)",
}


@pytest.fixture(scope="module")
def model(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32", threads=1)


def label_scores(results: list[Result] | list[Result | InputFailure]) -> list[tuple[str, float]]:
    """Return label and score of results; rounded, as other batches differ in their last digits."""
    classified = [result for result in results if isinstance(result, Classification)]
    assert len(classified) == len(results)
    return [(result.label, round(result.score, 4)) for result in classified]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("index", [0, 3, 600])
def test_errors_name_the_index(model: Model, kind: str, index: int) -> None:
    texts: list[Any] = ["hello"] * 700
    texts[index] = BAD[kind]
    for answer in (model, lambda values: list(model.stream(iter(values)))):
        with pytest.raises(InputError) as caught:
            answer(texts)
        assert str(caught.value).startswith(f"input {index}: ")
        assert MESSAGES[kind] in str(caught.value)
        assert caught.value.index == index


def test_chunks_of_long_texts_have_fewer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded where each is many windows; however a model is called, batches are the same."""
    monkeypatch.setattr(streaming, "_CHUNK_CHARACTERS", 1000)
    texts: list[Any] = ["card " * 100, ("hello " * 50, "bye " * 50), {"text": "rain " * 200}, *["card"] * 600]
    sizes = [len(chunk) for chunk in streaming.divide(texts)]
    assert sizes == [2, 1, 250, 250, 100]
    read: list[int] = []
    for number, _ in enumerate(model.stream(value for value in texts if not read.append(1))):  # type: ignore[func-returns-value]
        assert len(read) == sum(sizes[: next(i for i in range(1, 6) if sum(sizes[:i]) > number)])


def test_batches_are_the_same_however_a_model_is_called(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_CHUNK_CHARACTERS", 1000)
    texts = [f"{'card ' * (number % 7)}{number}" for number in range(600)]
    inputs = [TextInput(text) for text in texts]
    run, batches = model.session.run, []
    monkeypatch.setattr(model.session, "run", lambda batch: batches.append(batch.input_ids.shape) or run(batch))  # type: ignore[func-returns-value]
    found = []
    for call in (model, lambda texts: list(model.stream(iter(texts))), model.outputs):
        call(texts)
        found.append(batches[:])
        batches.clear()
    run_examples(model, [Example((text,), 0) for text in inputs])
    assert len(found[0]) > 20
    assert found == [batches] * 3


def test_an_error_of_a_lazy_sequence_is_raised(model: Model) -> None:
    class Column(list[str]):
        def __iter__(self) -> Iterator[str]:
            yield "hello"
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        model.outputs(Column(["hello", "bye"]))


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("index", [0, 3, 511, 512, 600])
def test_a_stream_yields_everything_before_an_error(model: Model, kind: str, index: int) -> None:
    texts = [f"{i} card" for i in range(700)]
    found = []
    with pytest.raises(InputError, match=f"^input {index}: "):
        for result in model.stream([*texts[:index], BAD[kind], *texts[index:]]):
            found.append(result)  # noqa: PERF402 - what was found before the error counts
    assert label_scores(found) == label_scores(model(texts[:index]))


def test_a_stream_yields_everything_before_an_error_of_its_iterator(model: Model) -> None:
    def texts() -> Iterator[str]:
        yield from ("hello", "bye", "thanks")
        raise OSError("the network is gone")

    found = []
    with pytest.raises(OSError, match="the network is gone"):
        for result in model.stream(texts()):
            found.append(result)  # noqa: PERF402
    assert label_scores(found) == label_scores(model(["hello", "bye", "thanks"]))


@pytest.mark.parametrize("streamed", [False, True])
def test_bad_inputs_are_skipped_or_returned(model: Model, streamed: bool) -> None:
    texts = [f"{i} card" for i in range(530)]
    mixed: list[Any] = list(texts)
    for index, bad in zip((0, 7, 8, 520), BAD.values(), strict=True):
        mixed.insert(index, bad)
    indices = [mixed.index("0 card"), *(index for index, value in enumerate(mixed) if value in texts)][1:]

    skipped = list(model.stream(mixed, on_error="skip")) if streamed else model(mixed, on_error="skip")
    assert label_scores(skipped) == label_scores(model(texts))

    returned = list(model.stream(mixed, on_error="return")) if streamed else model(mixed, on_error="return")
    failures = [result for result in returned if isinstance(result, InputFailure)]
    assert label_scores([returned[index] for index in indices]) == label_scores(model(texts))
    assert [failure.index for failure in failures] == [0, 7, 8, 520]
    for failure, message in zip(failures, MESSAGES.values(), strict=True):
        assert returned[failure.index] is failure
        assert message in failure.error
        assert failure.to_dict() == {"error": failure.error}


def test_only_bad_inputs(model: Model) -> None:
    assert model([None, None], on_error="skip") == []  # type: ignore[list-item]
    assert [failure.to_dict() for failure in model([None], on_error="return")] == [  # type: ignore[list-item]
        {"error": "expected a text, a tuple of two texts, or a dict with 'text' and optionally 'text_pair', "
                  "or with 'question' and 'context'; found None"}
    ]  # fmt: skip


def test_unknown_values_of_on_error_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="expected on_error to be raise, skip, return, found 'ignore'"):
        model(["hello"], on_error="ignore")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="on_error='skip' is for several inputs; give the input in a list"):
        model("hello", on_error="skip")


def test_an_error_can_be_pickled() -> None:
    import pickle

    again = pickle.loads(pickle.dumps(InputError("too long", 3)))
    assert (str(again), again.index, again.reason) == ("input 3: too long", 3, "too long")
