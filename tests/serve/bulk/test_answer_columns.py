"""Answers as Arrow columns: every task's types and values, and rows without an answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert_runtime import (
    FeatureExtraction,
    FillMask,
    Model,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    SingleInput,
    Task,
    TextClassification,
    TokenClassification,
)
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cascade.task import CascadeTask
from bert_runtime.tasks import Outputs, TextInput
from bert_serve.bulk.answer_columns import answer_arrays, answer_fields

from ...runtime.task_models import random_model

LABELS = ("O", "B-PER", "I-PER")
TEXTS = ("my card is gone", "hello")
PAIRS = (("where is my card", "my card is here"), ("who", "hello you"))


def columns(model: Model, inputs: Sequence[SingleInput | None]) -> tuple[dict[str, Any], list[Any]]:
    """Return a model's columns for inputs as Python values, and its results' JSON values."""
    fields = answer_fields(model.task, errors=True)
    answers = model(list(inputs), on_error="return")  # type: ignore[arg-type] # None is one that cannot be processed
    arrays = answer_arrays(fields, answers)
    assert [array.type for array in arrays] == [field.type for field in fields]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    table.validate(full=True)
    return table.to_pydict(), [answer.to_dict() for answer in answers]


def as_float32(value: Any) -> Any:
    """Round the numbers of a JSON value as a column does."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, dict):
        return {key: as_float32(item) for key, item in value.items()}
    return [as_float32(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("task", "width", "inputs"),
    [
        (TextClassification(labels=LABELS), (3,), TEXTS),
        (TextClassification(labels=LABELS, problem_type="multi_label", threshold=0.1), (3,), TEXTS),
        (TextClassification(labels=("stars",), problem_type="regression"), (1,), TEXTS),
        (TextClassification(labels=("a", "b"), problem_type="regression"), (2,), TEXTS),
        (NextSentencePrediction(), (2,), PAIRS),
        (Reranking(), (1,), PAIRS),
        (QuestionAnswering(), (2,), PAIRS),
        (SentenceEmbedding(dimensions=4), (4,), TEXTS),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else None,
)
def test_columns_are_the_keys_of_the_json(task: Task, width: tuple[int, ...], inputs: Any, toy_vocab: Path) -> None:
    found, answers = columns(random_pooled(task, toy_vocab, *width), [*inputs, None])
    for row, answer in enumerate(answers[:-1]):
        for key, value in answer.items():
            assert found[key][row] == as_float32(value)
        assert found["error"][row] is None
        assert not (found.get("truncated") or [False] * 3)[row]
    assert {name: values[-1] for name, values in found.items() if values[-1] is not None} == answers[-1]


def random_pooled(task: Task, vocab: Path, *width: int) -> Model:
    """Return a model with random outputs: one vector for each text, or for each token of a question."""
    model = random_model(task, vocab, 64, *width)
    if not isinstance(task, QuestionAnswering):
        run = model.session.run
        model.session.run = lambda batch: run(batch)[:, 0]  # type: ignore[method-assign]
    return model


def test_labels_of_a_cascade_have_the_model_that_answered() -> None:
    task = CascadeTask(labels=LABELS, top_k=2)
    logits, large = np.array([1, 3, 2], np.float32), np.array([1])
    answer = task.decode(Outputs(TextInput("a"), (), (logits, large), None))  # type: ignore[arg-type] # of no use here
    fields = answer_fields(task, errors=False)
    table = pa.Table.from_arrays(answer_arrays(fields, [answer]), schema=pa.schema(fields)).to_pylist()
    assert [(label["label"], label["model"]) for label in table[0]["labels"]] == [
        ("B-PER", "large"),
        ("I-PER", "large"),
    ]


def test_several_labels_are_one_column(toy_vocab: Path) -> None:
    model = random_pooled(TextClassification(labels=LABELS, top_k=2), toy_vocab, 3)
    found, answers = columns(model, [*TEXTS, None])
    assert list(found) == ["labels", "truncated", "error"]
    assert found["labels"] == [*as_float32(answers[:-1]), None]


@pytest.mark.parametrize(
    ("task", "width", "name"),
    [
        (TokenClassification(labels=LABELS), (3,), "entities"),
        (TokenClassification(labels=LABELS, aggregation="none"), (3,), "entities"),
        (ReplacedTokenDetection(), (), "tokens"),
        (QuestionAnswering(top_k=3), (2,), "answers"),
    ],
    ids=str,
)
def test_lists_are_one_column(task: Task, width: tuple[int, ...], name: str, toy_vocab: Path) -> None:
    inputs = PAIRS if isinstance(task, QuestionAnswering) else TEXTS
    found, answers = columns(random_model(task, toy_vocab, 64, *width), [*inputs, None])
    assert list(found) == [name, "error"]
    assert found[name] == [*as_float32(answers[:-1]), None]
    assert found["error"][:-1] == [None, None]
    assert found["error"][-1] == answers[-1]["error"]


def test_masks_are_lists_of_lists_for_one_mask_too(toy_vocab: Path) -> None:
    words = (toy_vocab / "vocab.txt").read_text().split()
    task = FillMask(mask_token="[MASK]", mask_token_id=words.index("[MASK]"), top_k=2)
    model = random_model(task, toy_vocab, 64, len(words))
    run = model.session.run
    model.session.run = lambda batch: run(batch)[batch.input_ids == task.mask_token_id]  # type: ignore[method-assign]
    found, answers = columns(model, ["my [MASK] is gone", "[MASK] [MASK]", "no mask"])
    assert found["masks"] == as_float32([[answers[0]], answers[1], None])
    assert found["truncated"] == [False, False, None]
    assert found["error"][2].startswith("expected at least one [MASK]")


def test_truncated_texts_are_marked(toy_vocab: Path) -> None:
    found, _ = columns(random_pooled(TextClassification(labels=LABELS), toy_vocab, 3), ["hello", "hello " * 100])
    assert found["truncated"] == [False, True]


def test_token_vectors_are_lists_of_vectors(toy_vocab: Path) -> None:
    model = random_model(FeatureExtraction(hidden_size=2, num_layers=2, layers=(1, 2)), toy_vocab, 64, 4)
    found, _ = columns(model, [*TEXTS, None, ""])
    results = model([*TEXTS, ""])
    for row, result in zip((0, 1, 3), results, strict=True):
        assert found["vectors"][row] == result.vectors.tolist()  # type: ignore[attr-defined]
        assert found["tokens"][row] == list(result.tokens)  # type: ignore[attr-defined]
        spans = [list(pair) for pair in zip(found["start"][row], found["end"][row], strict=True)]
        assert spans == result.offsets.tolist()  # type: ignore[attr-defined]
    assert [found[name][2] for name in ("vectors", "tokens", "start", "end")] == [None] * 4
    assert found["error"][2]
    assert list(found) == ["vectors", "tokens", "start", "end", "error"]


def test_every_task_has_columns() -> None:
    from bert_runtime import TASKS
    from bert_serve.bulk.answer_columns import _FIELDS

    assert _FIELDS.keys() == TASKS.keys()


def test_surrogates_of_a_reason_are_escaped(classifier_bundle: Path) -> None:
    """A text that Arrow cannot hold may come from pandas."""
    task = Manifest.read(classifier_bundle).task
    from bert_runtime import InputFailure

    *_, errors = answer_arrays(answer_fields(task, errors=True), [InputFailure(0, "found \udce9")])
    assert errors.to_pylist() == ["found \\udce9"]


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_embeddings_of_other_precisions(precision: str, toy_vocab: Path) -> None:
    ranges = ((-3.0,) * 20, (3.0,) * 20)
    model = random_pooled(SentenceEmbedding(dimensions=20, normalize=False, ranges=ranges), toy_vocab, 20)
    found, answers = columns(model.with_options(dimensions=10, embedding_precision=precision), [*TEXTS, None])
    assert found["embedding"] == [answer["embedding"] for answer in answers[:2]] + [None]
    assert len(found["embedding"][0]) == (2 if precision.endswith("binary") else 10)
