"""`bert-export predict --output FILE.csv`: one row for each input, or an error before anything is computed."""

import csv
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result

from bert_export.cli.table_output import csv_line, result_columns
from bert_runtime import load
from bert_runtime.errors import DataError
from bert_runtime.tasks import Answer, NextSentencePrediction, QuestionAnswering, Reranking, Task, TextClassification

from ..serve.cascades import write_cascade

Run = Callable[..., Result]

TEXTS = ["hello there", "where is my card?", 'bye, "now"']


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_table_has_a_row_for_each_input(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    model, path = load(classifier_bundle, precision="fp32"), tmp_path / "out.csv"
    result = run("predict", classifier_bundle, *TEXTS, "--output", path, "--precision", "fp32")
    assert (result.exit_code, result.stderr) == (0, f"predicting\nwrote 3 results to {path}\n")
    expected = [model(text) for text in TEXTS]
    rows = rows_of(path)
    assert [row["label"] for row in rows] == [answer.label for answer in expected]
    assert [float(row["score"]) for row in rows] == pytest.approx([answer.score for answer in expected], abs=1e-5)
    assert {row["truncated"] for row in rows} == {"false"}


def test_table_of_a_cascade_says_which_model_answered(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    texts = [*TEXTS, "good morning"]
    cascade = write_cascade(classifier_bundle, tmp_path / "both", texts)
    assert run("predict", cascade, *texts, "--output", tmp_path / "out.csv").exit_code == 0
    rows = rows_of(tmp_path / "out.csv")
    assert list(rows[0]) == ["label", "score", "model", "truncated"]
    assert [row["model"] for row in rows] == [result.to_dict()["model"] for result in load(cascade)(texts)]
    assert {row["model"] for row in rows} == {"small", "large"}


def test_inputs_that_fail_have_rows(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    data, path = tmp_path / "in.jsonl", tmp_path / "out.csv"
    data.write_text('{"text": "hello"}\n{"text": 3}\n')
    result = run("predict", classifier_bundle, "--input", data, "--on-error", "return", "--output", path)
    assert result.exit_code == 0, result.output
    good, bad = rows_of(path)
    assert good["label"]
    assert good["error"] == ""
    assert (bad["label"], bad["score"]) == ("", "")
    assert f"{data}:2" in bad["error"]


@pytest.mark.parametrize("answer", ["one\ntwo", "one\rtwo", 'a "word", two'])
def test_values_with_line_breaks_stay_one_row(answer: str) -> None:
    line = csv_line(Answer(answer, 0.5, 0, 7), ["answer", "score"], with_errors=False)
    assert list(csv.reader(StringIO(line + "\n", newline=""))) == [[answer, "0.5"]]


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".jsonl.gz"])
def test_formats_that_are_not_written_are_refused(
    suffix: str, run: Run, classifier_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"out{suffix}"
    result = run("predict", classifier_bundle, "hello", "--output", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {path}: expected a file name that ends in .jsonl")
    assert not path.exists()


def test_vectors_are_no_rows(run: Run, embedding_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    result = run("predict", embedding_bundle, "hello", "--output", path)
    assert result.exit_code == 1
    assert "results of sentence-embedding have more here; write a .jsonl file" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        (TextClassification(labels=("score",), problem_type="regression"), ("score", "truncated")),
        (Reranking(), ("score", "logit", "truncated")),
        (NextSentencePrediction(), ("label", "score", "truncated")),
        (QuestionAnswering(), ("answer", "score", "start", "end")),
    ],
)
def test_columns_by_task(task: Task, columns: tuple[str, ...]) -> None:
    assert result_columns(Path("out.csv"), task) == columns


@pytest.mark.parametrize(
    "task",
    [
        TextClassification(labels=("a", "b"), problem_type="regression"),
        TextClassification(labels=("a", "b"), problem_type="multi_label"),
        QuestionAnswering(top_k=2),
    ],
)
def test_several_values_are_no_row(task: Task) -> None:
    with pytest.raises(DataError, match=r"write a \.jsonl file"):
        result_columns(Path("out.csv"), task)
    assert result_columns(Path("out.csv"), task, zero_shot=True) == ("label", "score", "truncated")
