"""A loaded bundle: the same result however an input is given, and an error for invalid inputs."""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bert_export.cli import main
from bert_runtime import Classification, Embedding, InputError, Model, load
from bert_runtime.tasks import TextInput, stack_single_window

TEXTS = [
    "hello",
    "where is my card?",
    "I lost my money at the bank and then it was late, so I can not pay for the train!",
    "déjà vu 東京 😀",
    "it's 12:30",
    "a " * 500,
    "thank you for the help, see you later",
    "Why does the bus not open?",
    "x" * 99,
    "good book. bad film.",
] * 3
"""Texts of 3 to 64 tokens."""

TOLERANCE = {"fp32": 1e-5, "int8": 0.15}
"""Largest absolute difference that other inputs of the batch make. INT8 has one activation scale per batch."""


@pytest.fixture(scope="module", params=["classifier", "embedding"])
def bundle(request: pytest.FixtureRequest) -> Path:
    path = request.getfixturevalue(f"{request.param}_bundle")
    assert isinstance(path, Path)
    return path


@pytest.fixture(scope="module")
def classifier(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32")


def raw_output(result: Classification | Embedding) -> np.ndarray:
    return result.logits if isinstance(result, Classification) else result.vector


def max_difference(results: list[Any], expected: np.ndarray) -> float:
    return float(np.abs(np.stack([raw_output(result) for result in results]) - expected).max())


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_results_do_not_depend_on_how_inputs_are_given(bundle: Path, precision: str) -> None:
    model = load(bundle, precision=precision)
    expected = stack_single_window([outputs for text in TEXTS for outputs in model.outputs([text])])
    assert expected.std(axis=0).max() > 0.1, "outputs that do not depend on the text prove nothing"
    order = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
    shuffled: list[Any] = [None] * len(TEXTS)
    for i, result in zip(order, model([TEXTS[i] for i in order]), strict=True):
        shuffled[i] = result
    small_batches = load(bundle, precision=precision, max_batch_tokens=70)

    tolerance = TOLERANCE[precision]
    assert max_difference([model(text) for text in TEXTS], expected) == 0
    assert max_difference(model(TEXTS), expected) <= tolerance
    assert max_difference(shuffled, expected) <= tolerance
    assert max_difference(list(model.stream(iter(TEXTS))), expected) <= tolerance
    assert max_difference(small_batches(TEXTS), expected) <= tolerance
    assert max_difference(model([{"text": text} for text in TEXTS]), expected) <= tolerance


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_command_line_gives_the_same_results(bundle: Path, precision: str, tmp_path: Path) -> None:
    model = load(bundle, precision=precision)
    expected = [model(text).to_dict() for text in TEXTS]
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    arguments = ["predict", str(bundle), "--precision", precision, "--json"]
    from_file = CliRunner().invoke(main, [*arguments, "--input", str(lines)])
    as_arguments = CliRunner().invoke(main, [*arguments, *TEXTS])
    assert from_file.exit_code == as_arguments.exit_code == 0
    assert from_file.stdout == as_arguments.stdout
    for line, result in zip(from_file.stdout.splitlines(), expected, strict=True):
        found = json.loads(line)
        assert found.keys() == result.keys()
        for key, value in result.items():
            if isinstance(value, str):
                assert found[key] == value or precision == "int8"
            else:
                assert found[key] == pytest.approx(value, abs=TOLERANCE[precision])


def test_result_types_and_shapes(classifier_bundle: Path, embedding_bundle: Path) -> None:
    classified, embedded = load(classifier_bundle)("hello"), load(embedding_bundle)("hello")
    assert isinstance(classified, Classification)
    assert classified.label in ("greeting", "farewell", "question")
    assert classified.scores.sum() == pytest.approx(1)
    assert isinstance(embedded, Embedding)
    assert embedded.vector.shape == (32,)
    assert embedded.vector.dtype == np.float32
    assert np.linalg.norm(embedded.vector) == pytest.approx(1, abs=1e-5)


def test_all_spellings_of_a_pair_are_the_same_input(classifier: Model) -> None:
    pair = stack_single_window(classifier.outputs([("where is my card", "at the bank")]))
    for other in (
        TextInput("where is my card", "at the bank"),
        {"text": "where is my card", "text_pair": "at the bank"},
        {"question": "where is my card", "context": "at the bank"},
    ):
        assert stack_single_window(classifier.outputs([other])).tolist() == pair.tolist()
    assert classifier(("where is my card", "at the bank")).logits.tolist() == pair[0].tolist()
    assert classifier(text="where is my card", text_pair="at the bank").logits.tolist() == pair[0].tolist()
    assert classifier(question="where is my card", context="at the bank").logits.tolist() == pair[0].tolist()
    together = classifier(["hello", ("where is my card", "at the bank"), {"text": "hello"}])
    assert together[1].logits == pytest.approx(pair[0], abs=1e-5)
    assert together[0].logits == pytest.approx(together[2].logits, abs=1e-5)


def test_pairs_differ_from_their_texts_joined_or_swapped(classifier: Model) -> None:
    pair = classifier(("where is my card", "at the bank")).logits
    for other in (
        "where is my card at the bank",
        ("at the bank", "where is my card"),
        "where is my card [SEP] at the bank",
    ):
        assert np.abs(classifier(other).logits - pair).max() > 1e-3


def test_long_texts_are_truncated_at_the_end(classifier: Model) -> None:
    assert classifier.tokenizer.max_tokens == 64
    expected = classifier("card " * 62).logits
    assert np.abs(classifier("card " * 61).logits - expected).max() > 1e-3
    for text in ("card " * 63, "card " * 62 + "hello", "card " * 100_000):
        assert classifier(text).logits.tolist() == expected.tolist()
    assert classifier(["card " * 100_000, "hi"])[0].logits == pytest.approx(expected, abs=1e-5)


def test_empty_and_blank_texts_are_valid(classifier: Model) -> None:
    empty, blank = classifier(["", " \t\n"])
    assert classifier("").logits == pytest.approx(empty.logits, abs=1e-5)
    assert empty.logits == pytest.approx(blank.logits, abs=1e-5)


def test_no_inputs_give_no_results(classifier: Model) -> None:
    assert classifier([]) == []
    assert list(classifier.stream([])) == []


@pytest.mark.parametrize(
    "value",
    [None, 5, b"hello", {"a"}, ("a",), (), ("a", 1), {"txt": "a"}, ["a", None], [["a"]], iter(["a"]), range(2)],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_inputs_are_refused(classifier: Model, value: object) -> None:
    with pytest.raises(InputError, match=r"^(input \d: )?expected a text"):
        classifier(value)


@pytest.mark.parametrize(
    "fields", [{"text_pair": "b"}, {"text": 5}, {"context": "b"}, {"question": 5, "context": "b"}], ids=str
)
def test_incomplete_named_inputs_are_refused(classifier: Model, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^(input \d: )?expected a text"):
        classifier(**fields)
    with pytest.raises(InputError, match="give an input either by position or by name, not both"):
        classifier("hello", **fields)


@pytest.mark.parametrize("value", ["hello", b"hello", {"text": "hello"}], ids=lambda value: type(value).__name__)
def test_streaming_one_input_is_refused(classifier: Model, value: Any) -> None:
    with pytest.raises(InputError, match=f"expected several inputs, found {type(value).__name__}"):
        next(classifier.stream(value))


def test_calling_with_an_iterator_points_to_stream(classifier: Model) -> None:
    with pytest.raises(InputError, match=r"found generator; for an iterator use model\.stream"):
        classifier(text for text in TEXTS)


@pytest.mark.parametrize("value", ["bad \ud83d", ("fine", "\udc80"), ["fine", "bad \ud83d"]])
def test_lone_surrogates_are_refused(classifier: Model, value: object) -> None:
    with pytest.raises(InputError, match="holds a lone surrogate"):
        classifier(value)


def test_stream_is_lazy_and_in_order(classifier: Model) -> None:
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for i in range(2000):
            read += 1
            yield f"{i} card"

    stream = classifier.stream(texts())
    assert read == 0
    results = [next(stream)]
    assert 0 < read <= 1000
    results += stream
    assert read == len(results) == 2000
    for i in (0, 1, 511, 512, 513, 1023, 1024, 1999):
        assert results[i].logits == pytest.approx(classifier(f"{i} card").logits, abs=1e-5)


def test_stream_names_an_input_by_its_index_in_the_stream(classifier: Model) -> None:
    with pytest.raises(InputError, match="input 700: "):
        list(classifier.stream("\ud800" if i == 700 else "fine" for i in range(1000)))


def test_many_threads_get_the_same_results(classifier: Model) -> None:
    expected = stack_single_window([outputs for text in TEXTS for outputs in classifier.outputs([text])])
    start = threading.Barrier(8)

    def work(thread: int) -> float:
        start.wait()
        alone = [classifier(TEXTS[(thread + i) % len(TEXTS)]) for i in range(len(TEXTS))]
        rolled = np.roll(expected, -thread, axis=0)
        return max(max_difference(alone, rolled), *(max_difference(classifier(TEXTS), expected) for _ in range(5)))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(8))) <= 1e-5


FORK = """
import os, sys
from bert_runtime import load
from bert_runtime.errors import ForkedSessionError

model = load(sys.argv[1], precision="fp32")
before = model(["hello", "bye", "where is my card"])[0].logits.tolist()
child = os.fork()
if child == 0:
    try:
        model("hello")
    except ForkedSessionError as error:
        again = load(sys.argv[1], precision="fp32")
        os._exit(7 if "bert_runtime.load in each worker" in str(error) and again("hello").label else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
after = model(["hello", "bye", "where is my card"])[0].logits.tolist()
print(os.waitstatus_to_exitcode(status), before == after)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_to_load_its_own_model(classifier_bundle: Path) -> None:
    """Runs in its own process: pytest's has threads that do not survive a fork."""
    # From Python 3.12 on, forking a process with threads warns; this test does it on purpose.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(classifier_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "7 True\n"), done.stderr
