"""`bert-export export`: errors for invalid checkpoints, files and options."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from click.testing import Result
from safetensors.torch import load_file, save_file

Run = Callable[..., Result]


def edit_config(checkpoint: Path, **changes: object) -> None:
    values = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "hello", "label": "question"}\n{"text": "hello", "label": "pink"}\n', ":2: label 'pink' is not"),
        ('{"text": "hello", "label": "question"}\n{"text": "hello"\n', ":2: not JSON: "),
        ('{"text": "hello"}\n', ":1: expected a field 'label'"),
        ("", ": expected at least one row, found none"),
        (None, ": no such file"),
    ],
)  # fmt: skip
def test_invalid_labelled_files_are_reported(
    run: Run, classifier_checkpoint: Path, output_folder: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_text(content)
    result = run("export", classifier_checkpoint, output_folder / "bundle", "--evaluate", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {path}{message}" in result.stderr
    assert list(output_folder.iterdir()) == []


def test_labelled_file_with_undefined_metric_is_an_error(
    run: Run, embedding_checkpoint: Path, output_folder: Path, tmp_path: Path
) -> None:
    """All scores are equal, so the correlation is undefined, as is known before INT8 is made."""
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "hello", "text_pair": "bye", "score": 3}\n' * 3)
    result = run("export", embedding_checkpoint, output_folder / "bundle", "--evaluate", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "calibrating INT8" not in result.stderr
    assert f"Error: {path}" in result.stderr
    assert list(output_folder.iterdir()) == []


def _no_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()


def _no_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "vocab.txt").unlink()


def _no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()


def _cut_weights(checkpoint: Path) -> None:
    with (checkpoint / "model.safetensors").open("r+b") as stream:
        stream.truncate(1000)


def _another_label(checkpoint: Path) -> None:
    labels = ["greeting", "farewell", "question", "other"]
    edit_config(checkpoint, id2label={str(i): label for i, label in enumerate(labels)})


def _another_family(checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="gpt2")


def _no_head(checkpoint: Path) -> None:
    edit_config(checkpoint, architectures=["BertModel"])


def _two_wrong_weights(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["bert.encoder.layer.0.output.dense.bias"]
    weights["bert.encoder.layer.9.output.dense.bias"] = weights["classifier.bias"].clone()
    save_file(weights, checkpoint / "model.safetensors")


def _more_words(checkpoint: Path) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["danube"] = len(tokenizer["model"]["vocab"])
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (_no_config, ["config.json: no such file"]),
        (_no_tokenizer, ["expected a tokenizer in tokenizer.json or vocab.txt, found neither; copy it from"]),
        (_no_weights, ["expected weights in one of model.safetensors, ", "found none"]),
        (_cut_weights, ["model.safetensors: the weights cannot be read"]),
        (_another_label, ["id2label has 4 labels, and the head in the weights has 3 outputs (classifier.weight "]),
        (_another_family, ["config.json: expected a model_type of bert, roberta, ", ", found 'gpt2'; it is a decoder"]),
        (_no_head, ["the architecture BertModel, which does not say what the model is for; choose one with --task"]),
        (_two_wrong_weights, ["1 missing: bert.encoder.layer.0", "1 unexpected: bert.encoder.layer.9"]),
        (_more_words, ["the tokenizer has ", " tokens and the model only ", "they do not belong together"]),
    ],
)  # fmt: skip
def test_damaged_checkpoints_are_reported(
    run: Run, broken: Path, output_folder: Path, damage: Callable[[Path], None], messages: list[str]
) -> None:
    damage(broken)
    result = run("export", broken, output_folder / "bundle")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"\nError: {broken}" in result.stderr
    for message in messages:
        assert message in result.stderr
    assert list(output_folder.iterdir()) == []


@pytest.mark.parametrize(("kind", "found"), [("absent", "nothing"), ("file", "a file")])
def test_missing_checkpoint_is_reported(run: Run, output_folder: Path, tmp_path: Path, kind: str, found: str) -> None:
    (tmp_path / "file").write_text("hello")
    result = run("export", tmp_path / kind, output_folder / "bundle")
    assert result.exit_code == 1
    expected = f"Error: {tmp_path / kind}: expected a checkpoint (a directory with config.json), found {found}\n"
    assert result.stderr.endswith(expected)
    assert list(output_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--task", "translation"], 2, "'translation' is not one of 'text-classification', "),
        (["--max-tokens", "65"], 1, "expected a maximum length of 3 to 64 tokens, found 65"),
        (["--max-tokens", "0"], 2, "0 is not in the range x>=3"),
        (["--layers", "1;2"], 2, "expected layers as numbers and ranges, found '1;2'"),
        (["--layers", "1"], 1, "layers is a setting of feature-extraction"),
        (["--max-tokens", "many"], 2, "'many' is not a valid integer"),
        (["--max-drop", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--max-drop", "1"], 2, "--max-drop limits the loss on labelled data: give these with --evaluate"),
        (["--columns", "text=a"], 2, "--columns names the columns of a file: give that with --evaluate or --calibrate"),
        (["--weight-bits", "7", "--precision", "fp32"], 2, "--weight-bits are those of INT8 for the CPU"),
        (["--weight-bits", "7", "--target", "cuda"], 2, "--weight-bits are those of INT8 for the CPU"),
        (["--target", "tpu"], 2, "'tpu' is not"),
        (["--precision", "fp4"], 2, "'fp4' is not one of"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported(
    run: Run, classifier_checkpoint: Path, output_folder: Path, options: list[str], code: int, message: str
) -> None:
    result = run("export", classifier_checkpoint, output_folder / "bundle", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert list(output_folder.iterdir()) == []


def test_output_below_a_file_is_an_error(run: Run, classifier_checkpoint: Path, output_folder: Path) -> None:
    (output_folder / "file").write_text("hello")
    result = run("export", classifier_checkpoint, output_folder / "file" / "bundle", "--precision", "fp32")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {output_folder / 'file'}" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--prune-tokens", "1:0.5"], id="pruning"),
        pytest.param(["--target", "cuda", "--precision", "fp32", "--padding", "packed"], id="packed"),
    ],
)
def test_a_full_temporary_folder_is_not_blamed_on_the_output(
    run: Run, classifier_checkpoint: Path, output_folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ir.save

    def save_elsewhere(graph: ir.Model, path: Path, **settings: Any) -> None:
        if not Path(path).is_relative_to(output_folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(graph, path, **settings)

    monkeypatch.setattr(ir, "save", save_elsewhere)
    result = run("export", classifier_checkpoint, output_folder / "bundle", *options)
    assert result.exit_code == 1
    assert "No space left on device; set TMPDIR to a folder with room" in result.stderr
    assert f"Error: {output_folder}" not in result.stderr
