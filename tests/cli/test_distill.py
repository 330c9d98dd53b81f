"""`bert-export distill`: training of a toy student, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_models import open_checkpoint

from .conftest import Run


def test_distill_a_fine_tuned_teacher(run: Run, classifier_checkpoint: Path, tmp_path: Path) -> None:
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    texts = ["hello", "bye", "what is lost", "good morning"] * 4
    train.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dev.write_text('{"text": "hello", "label": "greeting"}\n{"text": "bye", "label": "farewell"}\n')
    result = run(
        "distill", "--teacher", classifier_checkpoint, "--student", 1, "--train", train, "--dev", dev,
        "--output", tmp_path / "student", "--hard-weight", 0, "--epochs", 2, "--precision", "fp32", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["settings"]["epochs"], report["settings"]["lr"]) == (2, 1e-4)
    assert report["student"] == "1"
    assert open_checkpoint(tmp_path / "student").config.num_layers == 1
    again = run("export", tmp_path / "student", tmp_path / "bundle")
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected --train, with --dev or without, or --corpus"),
        (["--dev", "a.csv"], "expected --train, with --dev or without, or --corpus"),
        (["--train", "a.csv", "--corpus", "c.txt"], "expected --train, with --dev or without, or --corpus"),
        (["--train", "a.csv", "--dev", "b.csv", "--steps", "5"], "--steps cannot be combined with --train"),
        (["--train", "a.csv", "--dev", "b.csv", "--cache", "d"], "--cache cannot be combined with --train"),
        (["--train", "a.csv", "--dev", "b.csv", "--split", "dev"], "--split cannot be combined with --train"),
        (["--corpus", "c.txt", "--split", "dev"], "--split applies to a dataset of the datasets library"),
        (["--corpus", "c.txt", "--columns", "label=body"], "a corpus has only the field text, found label"),
        (
            ["--corpus", "c.txt", "--epochs", "5", "--patience", "1"],
            "--epochs, --patience cannot be combined with --corpus",
        ),
    ],
)
def test_options_that_cannot_be_combined_are_refused(
    run: Run, classifier_checkpoint: Path, tmp_path: Path, options: list[Any], message: str
) -> None:
    result = run(
        "distill", "--teacher", classifier_checkpoint, "--student", "1", "--output", tmp_path / "out", *options
    )
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_every_setting_is_an_option_with_its_default(run: Run) -> None:
    from dataclasses import fields

    from bert_models.distillation import DistillationSettings
    from bert_models.pretraining import PretrainSettings
    from bert_models.training import TrainSettings

    shown = run("distill", "-h").stdout
    settings = {
        field.metadata.get("key", field.name)
        for kind in (TrainSettings, PretrainSettings, DistillationSettings)
        for field in fields(kind)
    }
    pretraining_only = {"objective", "max_grad_norm"}
    missing = [name for name in settings - pretraining_only if f"--{name.replace('_', '-')}" not in shown]
    assert not missing
    assert "[default: (0.0001; 0.0005 with --corpus)]" in " ".join(shown.split())


def test_invalid_temperature_is_refused(run: Run, classifier_checkpoint: Path, tmp_path: Path) -> None:
    result = run(
        "distill", "--teacher", classifier_checkpoint, "--student", "1", "--train", "a.csv", "--dev", "b.csv",
        "--output", tmp_path / "out", "--temperature", 0,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "temperature must be positive, found 0" in result.stderr
