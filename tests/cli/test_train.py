"""`bert-export train`: the checkpoint, the report and errors."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bert_runtime import Classification, load

from .training_data import THINGS, equal

Run = Callable[..., Result]


def test_training_report(whole_run: tuple[Path, Result]) -> None:
    trained, result = whole_run
    assert result.exit_code == 0
    header, *epochs, best, wrote = [line.split() for line in result.stdout.splitlines()]
    assert header == ["epoch", "train_loss", "accuracy", "macro_f1"]
    assert [epoch[0] for epoch in epochs] == ["1", "2", "3"]
    assert wrote == ["wrote", str(trained)]
    assert best[:2] == ["best:", "epoch"]
    assert float(best[-1]) == max(float(epoch[2]) for epoch in epochs) > 0.9
    assert "tokenizing 64 training and 16 dev examples" in result.stderr
    assert sorted(path.name for path in trained.iterdir()) == [
        "config.json", "logs", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json",
        "training.png", "vocab.txt",
    ]  # fmt: skip
    report = json.loads((trained / "training.json").read_text())
    assert report["examples"] == {"train": 64, "dev": 16}
    assert report["precision"] == "fp32"


def test_train_export_evaluate_predict(
    run: Run, whole_run: tuple[Path, Result], training_files: dict[str, Path], tmp_path: Path
) -> None:
    """The whole pipeline, with the commands that a user types."""
    trained, bundle = whole_run[0], tmp_path / "bundle"
    report = json.loads((trained / "training.json").read_text())
    exported = run("export", trained, bundle, "--evaluate", training_files["dev"], "--precision", "fp32", "--json")
    assert exported.exit_code == 0
    manifest = json.loads(exported.stdout)
    assert manifest["task"]["labels"] == ["lost", "money"]
    # What training measured in PyTorch is what the bundle measures without it.
    assert manifest["variants"][0]["metrics"]["accuracy"] == report["best"]["accuracy"]
    evaluated = run("evaluate", bundle, training_files["dev"], "--json")
    assert json.loads(evaluated.stdout)["macro_f1"] == pytest.approx(report["best"]["macro_f1"])
    answer = load(bundle)("where is my card")
    assert isinstance(answer, Classification)
    predicted = run("predict", bundle, "where is my card", "--json")
    assert json.loads(predicted.stdout) == {"label": "lost", "score": pytest.approx(answer.score)}


def test_stdout_is_json_only(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    result = run(*train_arguments, "--epochs", 1, "--output", tmp_path / "trained", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report == json.loads((tmp_path / "trained" / "training.json").read_text())
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1]
    assert report["task"]["labels"] == ["lost", "money"]


def test_same_seed_gives_same_weights(
    run: Run, train_arguments: list[Any], whole_run: tuple[Path, Result], tmp_path: Path
) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        assert run(*train_arguments, "--seed", seed, "--output", tmp_path / name).exit_code == 0
    assert equal(whole_run[0], tmp_path / "same")
    assert not equal(whole_run[0], tmp_path / "other")


def test_diverging_loss_suggests_a_lower_lr(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    result = run(*train_arguments, "--lr", 1e30, "--warmup-ratio", 0, "--output", tmp_path / "trained")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(r"\nError: the loss became (nan|inf) at step \d+ .*; lower --lr", result.stderr)
    assert run(*train_arguments, "--epochs", 1, "--output", tmp_path / "trained").exit_code == 0


def test_text_pairs_are_encoded_together(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    """The label says whether both texts are equal, which neither text alone shows."""
    pairs = [(a, b) for a in THINGS[:4] for b in THINGS[:4]] * 3
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\tsame\n" + "".join(f"{a}\t{b}\t{int(a == b)}\n" for a, b in pairs))
    files = ["--train", path, "--dev", path, "--columns", "text=a,text_pair=b,label=same"]
    assert run(*train_arguments, *files, "--epochs", 24, "--lr", 5e-3, "--output", tmp_path / "trained").exit_code == 0
    report = json.loads((tmp_path / "trained" / "training.json").read_text())
    assert report["task"]["labels"] == ["0", "1"]
    assert report["best"]["macro_f1"] > 0.8


def test_existing_checkpoint_is_replaced_only_with_force(
    run: Run, train_arguments: list[Any], whole_run: tuple[Path, Result], tmp_path: Path
) -> None:
    output = Path(shutil.copytree(whole_run[0], tmp_path / "trained"))
    refused = run(*train_arguments, "--epochs", 1, "--output", output)
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {output}: a trained checkpoint is already there; replace it with --force\n"
    assert equal(output, whole_run[0])
    (output / "bundle").mkdir()
    spared = run(*train_arguments, "--epochs", 1, "--output", output, "--force")
    assert spared.exit_code == 1
    message = "besides what a training run writes there is also bundle, which would be lost; move that elsewhere first"
    assert message in spared.stderr
    (output / "bundle").rmdir()
    assert run(*train_arguments, "--epochs", 1, "--output", output, "--force").exit_code == 0
    assert not equal(output, whole_run[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trained"]


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_other_files_are_never_overwritten(
    run: Run, train_arguments: list[Any], tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("folder", "file"):
        result = run(*train_arguments, "--output", tmp_path / name, *options)
        assert result.exit_code == 1
        expected = (
            f"Error: {tmp_path / name}: exists and was not written by a training run; choose another output folder\n"
        )
        assert result.stderr == expected
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("text,label\na,x\nb,y\n", "text,label\na,z\n", "{dev}: expected rows with labels of the training file"),
        ("text,label\na,x\nb,x\n", "text,label\na,x\n", "{train}: expected at least two different labels, "),
        ("text,label\na,x\nb,\n", "text,label\na,x\n", "{train}:3: 'label' is empty"),
        ("text,label\na,x\n,y\n", "text,label\na,x\n", "{train}:3: 'text' is empty"),
        ("text\na\nb\n", "text,label\na,x\n", "{train}:2: expected a field 'label', found only 'text'"),
        ("text,label\na,x\nb,y\n", "text,label\n", "{dev}: expected at least one row, found none"),
        ("text,label\na,x\nb,y\n", None, "{dev}: no such file"),
        ("sentence,label\na,x\nb,y\n", "text,label\na,x\n", "{train}:1: expected a header with a column 'text'"),
    ],
)  # fmt: skip
def test_invalid_training_data_is_reported(
    run: Run, train_arguments: list[Any], tmp_path: Path, train: str, dev: str | None, message: str
) -> None:
    files = {"train": tmp_path / "bad train.csv", "dev": tmp_path / "bad dev.csv"}
    for path, content in zip(files.values(), (train, dev), strict=True):
        if content is not None:
            path.write_text(content)
    options = ["--train", files["train"], "--dev", files["dev"], "--output", tmp_path / "trained"]
    result = run(*train_arguments, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message.format(**files) in result.stderr
    assert not (tmp_path / "trained").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--epochs", "0", "--lr", "-1"], 1, "epochs must be at least 1, found 0; lr must be positive, found -1.0"),
        (["--max-tokens", "65"], 1, "expected a maximum length of 3 to 64 tokens, found 65"),
        (["--task", "translation"], 2, "'translation' is not one of 'text-classification', "),
        (["--task", "replaced-token-detection"], 1, "bert has no head for 'replaced-token-detection'; it has heads "),
        (["--task", "sentence-embedding", "--crf"], 1, "sentence-embedding has no setting crf"),
        (["--task", "sentence-embedding"], 1, "train.csv:2: expected a field 'text_pair', found only 'text', 'label'"),
        (["--seed", "-1"], 1, "seed"),
        (["--seed", str(2**32)], 1, "seed"),
        (["--precision", "fp8"], 2, "'fp8' is not one of"),
        (["--epochs", "some"], 2, "'some' is not a valid integer"),
    ],
)
def test_invalid_options_are_reported(
    run: Run, train_arguments: list[Any], tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    result = run(*train_arguments, "--output", tmp_path / "trained", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_base_is_reported(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    result = run(*train_arguments, "--base", tmp_path / "absent", "--output", tmp_path / "trained")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path / 'absent'}: expected a checkpoint")


def test_output_below_a_file_is_an_error(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    result = run(*train_arguments, "--output", tmp_path / "file" / "trained")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {tmp_path / 'file'}" in result.stderr
