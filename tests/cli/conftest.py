"""Running the command line in this process, and what its commands are run on."""

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
    """Invokes `bert-export` with the given arguments; an exception that is no message to the user fails the test."""

    def invoke(*arguments: object, stdin: str | bytes = b"", **options: Any) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin, **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder to export into."""
    folder = tmp_path / "place"
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
def train_arguments(classifier_checkpoint: Path, training_files: dict[str, Path], one_thread: None) -> list[Any]:
    """The command but for its output: three epochs of four steps."""
    return [
        "train", "--base", classifier_checkpoint, "--train", training_files["train"], "--dev", training_files["dev"],
        "--epochs", 3, "--batch-size", 16, "--lr", 3e-3, "--precision", "fp32",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(train_arguments: list[Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The checkpoint of an uninterrupted run with the default seed, and what the command said."""
    output = tmp_path_factory.mktemp("whole") / "trained"
    return output, CliRunner().invoke(main, [str(argument) for argument in (*train_arguments, "--output", output)])
