"""`bert-export evaluate`: the task metric on a labelled file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from bert_runtime import Model, load

Run = Callable[..., Result]

TEXTS = ["hello there", "where is my card?", "bye", "please help", "it was bad", "see you later", "I lost it", "why?"]
WRONG = {"greeting": "farewell", "farewell": "question", "question": "greeting"}


@pytest.fixture(scope="module")
def model(classifier_bundle: Path) -> Model:
    return load(classifier_bundle, precision="fp32")


@pytest.fixture
def labelled(tmp_path: Path, model: Model) -> Path:
    """Eight rows, six of them with the label that the FP32 model predicts."""
    labels = [model(text).label for text in TEXTS]
    path = tmp_path / "labelled.csv"
    rows = [
        f"{text},{WRONG[label] if i < 2 else label}" for i, (text, label) in enumerate(zip(TEXTS, labels, strict=True))
    ]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


QUALITY = ("expected_calibration_error", "brier_score", "negative_log_likelihood")


def test_metrics_as_text(run: Run, classifier_bundle: Path, labelled: Path) -> None:
    result = run("evaluate", classifier_bundle, labelled, "--precision", "fp32")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[:3] == [["precision", "fp32"], ["examples", "8"], ["accuracy", "0.7500"]]
    assert [line[0] for line in lines[3:]] == ["macro_f1", *QUALITY]
    assert "evaluating" in result.stderr


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_metrics_as_json(run: Run, classifier_bundle: Path, labelled: Path, precision: str) -> None:
    result = run("evaluate", classifier_bundle, labelled, "--precision", precision, "--json")
    report = json.loads(result.stdout)
    assert list(report) == ["precision", "examples", "accuracy", "macro_f1", *QUALITY]
    assert (report["precision"], report["examples"]) == (precision, 8)
    assert report["accuracy"] == 0.75 or precision == "int8"


def test_columns_option(run: Run, classifier_bundle: Path, labelled: Path) -> None:
    labelled.write_text(labelled.read_text().removeprefix("text,label\n"))
    result = run(
        "evaluate", classifier_bundle, labelled, "--columns", "text=0,label=1", "--precision", "fp32", "--json"
    )
    assert json.loads(result.stdout)["accuracy"] == 0.75


def test_embeddings_are_evaluated_by_correlation(run: Run, embedding_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [("hello there", "hello there", 5), ("hello there", "hello", 4), ("hello there", "the bus was late", 0.5)]
    path.write_text("".join(json.dumps({"text": a, "text_pair": b, "score": s}) + "\n" for a, b, s in rows))
    report = json.loads(run("evaluate", embedding_bundle, path, "--precision", "fp32", "--json").stdout)
    assert report["spearman"] == pytest.approx(1)
    assert 0 < report["pearson"] <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\nhello,question\nbye,pink\n", ":3: label 'pink' is not one of the model's 3 labels"),
        ("text\nhello\n", ":2: expected a field 'label', found only 'text'"),
        ("text,label\n,question\n", ":2: 'text' is empty"),
        ("text,label\n", ": expected at least one row, found none"),
    ],
)
def test_invalid_labelled_files_are_reported(
    run: Run, classifier_bundle: Path, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content)
    result = run("evaluate", classifier_bundle, path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {path}{message}" in result.stderr


def test_undefined_correlation_is_an_error(run: Run, embedding_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "hello", "text_pair": "bye", "score": 3}\n')
    for options in ([], ["--json"]):
        result = run("evaluate", embedding_bundle, path, *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"Error: {path}" in result.stderr
