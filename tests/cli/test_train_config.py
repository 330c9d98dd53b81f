"""`bert-export train`: settings from options and from a configuration file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_export.cli import main
from bert_export.cli.train import train
from bert_models.training import TrainSettings

Run = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def test_every_setting_has_a_flag_with_its_default() -> None:
    needed = ["--base=b", "--train=t", "--dev=d", "--output=o"]
    context = train.make_context("train", needed, parent=main.make_context("bert-export", ["train"]))
    settings = vars(TrainSettings())
    assert {name: context.params[name] for name in settings} == settings


def test_training_uses_the_settings_of_the_command_line(
    run: Run, train_arguments: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[object] = []

    def counted(layer: Any, *arguments: Any, **options: Any) -> Any:
        layers.append(layer)
        return layer(*arguments)

    monkeypatch.setattr("bert_models.layers.checkpoint", counted)
    flags = [
        "--accumulate", 2, "--layer-lr-decay", 0.9, "--patience", 1, "--label-smoothing", 0.1, "--class-weights",
        "balanced", "--sort-by-length", "--gradient-checkpointing", "--lr", 1e-12, "--dropout", 0.2,
        "--freeze-embeddings",
    ]  # fmt: skip
    result = run(*train_arguments, *flags, "--output", tmp_path / "trained")
    assert result.exit_code == 0
    report = json.loads((tmp_path / "trained" / "training.json").read_text())
    assert f"\nstopped early: no better {report['metric']} in 1 epochs\n" in result.stdout
    expected = TrainSettings(
        batch_size=16, lr=1e-12, precision="fp32", gradient_accumulation_steps=2, layer_lr_decay=0.9, patience=1,
        label_smoothing=0.1, class_weights="balanced", sort_by_length=True, gradient_checkpointing=True,
        dropout=0.2, freeze_embeddings=True,
    )  # fmt: skip
    assert report["settings"] == expected.to_dict()
    assert len(layers) == 2 * 4 * 2  # epochs, batches, layers
    assert (report["stopped_early"], len(report["epochs"])) == (True, 2)


def test_label_smoothing_of_regression_is_an_error(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    data = tmp_path / "x.csv"
    data.write_text("text,score\na,1\nb,2\n")
    files = ["--train", data, "--dev", data, "--problem-type", "regression", "--output", tmp_path / "trained"]
    result = run(*train_arguments, *files, "--label-smoothing", 0.1)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: text-classification with problem_type regression does not support label_smoothing; " in result.stderr
    assert not (tmp_path / "trained").exists()


def test_command_line_takes_precedence_over_config_file(
    run: Run,
    classifier_checkpoint: Path,
    training_files: dict[str, Path],
    config: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Includes required options, flags without a value, underscores, and 1e-3, which YAML reads as text."""
    path = config(
        f"base: {classifier_checkpoint}\ntrain: {training_files['train']}\ndev: {training_files['dev']}\n"
        f"output: {tmp_path / 'unused'}\nepochs: 3\nbatch_size: 8\nlr: 1e-3\nwarmup-ratio: 0.5\nprecision: fp32\n"
        "sort-by-length: true\ngradient-checkpointing: yes\npatience:\nmax-tokens: null\n"
        "columns: {text: text, label: label}\n"
    )
    line = ["--epochs", 1, "--no-sort-by-length", "--output", tmp_path / "trained"]
    result = run("train", "--config", path, *line, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    expected = TrainSettings(
        epochs=1, batch_size=8, lr=1e-3, warmup_ratio=0.5, precision="fp32", gradient_checkpointing=True
    )
    assert report["settings"] == expected.to_dict()
    assert report["files"]["train"] == str(training_files["train"])
    assert report["files"]["columns"] == {"text": "text", "label": "label"}
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "epoch: 3\nlr: 1\nforce: true\n",
            "unknown epoch, force; known are accumulate, activation, base, batch-size, bio, ",
        ),
        ("- epochs\n", "expected flags and their values, found a list"),
        ("epochs: [1, 2]\n", "expected one value for epochs, found a list"),
        ("epochs: {\n", "not a YAML file: "),
        ("epochs: 2.5\n", "Invalid value for '--epochs': '2.5' is not a valid integer"),
        ("precision: fp8\n", "Invalid value for '--precision': 'fp8' is not one of "),
        ("gradient-checkpointing: maybe\n", "'maybe' is not a valid boolean"),
    ],
)
def test_invalid_config_files_are_reported(
    run: Run, classifier_checkpoint: Path, config: Callable[[str], Path], tmp_path: Path, text: str, message: str
) -> None:
    needed = ["--base", classifier_checkpoint, "--train", "t.csv", "--dev", "d.csv", "--output", tmp_path / "out"]
    result = run("train", "--config", config(text), *needed)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_missing_config_file_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    result = run("train", "--config", tmp_path / "none.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none.yaml' does not exist" in result.stderr
