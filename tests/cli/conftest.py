"""Fixtures for the command line: running it in this process, output folders, checkpoints and training data."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bert_export.cli import main

from .training_data import THINGS, rows, write

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run `bert-export` with arguments; an unhandled exception fails the test."""

    def invoke(*arguments: object, stdin: str | bytes = b"", **options: Any) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin, **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def output_folder(tmp_path: Path) -> Path:
    """An empty folder to export into."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


@pytest.fixture
def broken(classifier_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))


@pytest.fixture(scope="module")
def training_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """64 training rows and 16 dev rows."""
    folder = tmp_path_factory.mktemp("data")
    return {"train": write(folder / "train.csv", rows(THINGS[:8])), "dev": write(folder / "dev.csv", rows(THINGS[8:]))}


@pytest.fixture(scope="module")
def train_arguments(classifier_checkpoint: Path, training_files: dict[str, Path]) -> list[Any]:
    """Arguments of a training of three epochs of four steps, without --output."""
    return [
        "train", "--base", classifier_checkpoint, "--train", training_files["train"], "--dev", training_files["dev"],
        "--epochs", 3, "--batch-size", 16, "--lr", 3e-3, "--precision", "fp32",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(train_arguments: list[Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The checkpoint of an uninterrupted run with the default seed, and the command's result."""
    output = tmp_path_factory.mktemp("whole") / "trained"
    return output, CliRunner().invoke(main, [str(argument) for argument in (*train_arguments, "--output", output)])
