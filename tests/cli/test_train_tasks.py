"""Training, export, evaluation and prediction of every trainable task on the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bert_export.cli import main

FILES = {
    "multi_label": [
        {"text": "hello the bank", "labels": ["greeting", "money"]},
        {"text": "good bye", "labels": ["farewell"]},
        {"text": "my money at the bank", "labels": ["money"]},
        {"text": "the weather", "labels": []},
    ],
    "regression": [
        {"text": "the bus was late", "text_pair": "the train was late", "score": 3.5},
        {"text": "good book", "text_pair": "bad film", "score": 0.5},
        {"text": "hello", "text_pair": "hi", "score": 5},
        {"text": "the sun", "text_pair": "the rain", "score": 1},
    ],
    "next-sentence-prediction": [
        {"text": "good morning", "text_pair": "how can i help", "label": "is_next"},
        {"text": "good morning", "text_pair": "the film was bad", "label": "not_next"},
        {"text": "my card is lost", "text_pair": "please help", "label": "is_next"},
        {"text": "my card is lost", "text_pair": "weather and rain", "label": "not_next"},
    ],
}
ANSWERS = {"multi_label": {"labels"}, "regression": {"label", "score"}, "next-sentence-prediction": {"label", "score"}}


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("kind", FILES)
def test_train_export_evaluate_predict_of_a_task(kind: str, classifier_checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in FILES[kind]) + "\n")
    choice = ["--task", kind] if kind not in ("multi_label", "regression") else ["--problem-type", kind]
    report = json.loads(
        run(
            "train", *choice, "--base", classifier_checkpoint, "--train", data, "--dev", data,
            "--output", tmp_path / "model", "--epochs", 8, "--batch-size", 2, "--lr", "1e-2",
            "--precision", "fp32", "--json",
        )
    )  # fmt: skip
    losses = [epoch["train_loss"] for epoch in report["epochs"]]
    assert min(losses[1:]) < losses[0]
    run("export", tmp_path / "model", tmp_path / "bundle", "--evaluate", data, "--max-drop", 100)
    metrics = json.loads(run("evaluate", tmp_path / "bundle", data, "--precision", "fp32", "--json"))
    assert metrics[report["metric"]] == pytest.approx(report["best"][report["metric"]], abs=1e-6)
    first = FILES[kind][0]
    pair = ["--pair", first["text_pair"]] if "text_pair" in first else []
    answer = json.loads(run("predict", tmp_path / "bundle", first["text"], *pair, "--json"))
    assert set(answer) == ANSWERS[kind]
    assert [line.split()[0] for line in run("verify", tmp_path / "bundle").splitlines()] == ["ok"] * 9
