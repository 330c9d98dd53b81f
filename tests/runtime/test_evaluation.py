"""`evaluate`: the metrics of a model on a labelled file."""

from pathlib import Path

import numpy as np
import pytest

from bert_runtime import DataError, Embedding, load
from bert_runtime.evaluation import evaluate
from bert_runtime.metrics import spearman
from bert_runtime.records import Record
from bert_runtime.similarity import cosine

TEXTS = [f"{word} {i}" for i in range(160) for word in ("hello", "my card", "why", "the bus is late")]


def records(rows: list[dict[str, object]]) -> list[Record]:
    return [Record(row, Path("data.jsonl"), line) for line, row in enumerate(rows, start=1)]


def test_accuracy_of_a_classifier(classifier_bundle: Path) -> None:
    """The labels are the model's predictions, except in every fifth row."""
    model = load(classifier_bundle, precision="fp32")
    labels = [result.label for result in model(TEXTS)]
    wrong = {"greeting": "farewell", "farewell": "question", "question": "greeting"}
    given = [wrong[label] if i % 5 == 0 else label for i, label in enumerate(labels)]
    done: list[int] = []
    metrics = evaluate(
        model, records([{"text": t, "label": x} for t, x in zip(TEXTS, given, strict=True)]), done.append
    )
    assert metrics["accuracy"] == pytest.approx(0.8)
    assert 0 < metrics["macro_f1"] < 1
    assert sum(done) == len(TEXTS) == 640
    assert len(done) > 1


def test_spearman_of_embeddings(embedding_bundle: Path) -> None:
    model = load(embedding_bundle, precision="fp32")
    scores = np.random.default_rng(0).permutation(len(TEXTS)).astype(float)
    rows = [
        {"text": a, "text_pair": b, "score": s} for a, b, s in zip(TEXTS, reversed(TEXTS), scores.tolist(), strict=True)
    ]
    vectors = [result.vector for result in model(TEXTS) if isinstance(result, Embedding)]
    expected = spearman(cosine(np.stack(vectors), np.stack(vectors[::-1])), scores)
    assert evaluate(model, records(rows))["spearman"] == pytest.approx(expected, abs=0.02)


def test_rows_that_do_not_fit_the_task_are_named(classifier_bundle: Path) -> None:
    model = load(classifier_bundle)
    with pytest.raises(DataError, match=r"data\.jsonl:2: label 'pink' is not one of the model's 3 labels"):
        evaluate(model, records([{"text": "a", "label": "question"}, {"text": "a", "label": "pink"}]))


@pytest.mark.parametrize("scores", [[3.0], [2.0, 2.0, 2.0]], ids=["one row", "equal scores"])
def test_an_undefined_correlation_is_an_error(embedding_bundle: Path, scores: list[float]) -> None:
    """NaN cannot be compared, and is not JSON."""
    rows = [{"text": f"hello {i}", "text_pair": "my card", "score": score} for i, score in enumerate(scores)]
    with pytest.raises(DataError, match=r"data\.jsonl.*score"):
        evaluate(load(embedding_bundle), records(rows))
