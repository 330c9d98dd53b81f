"""`bert-export triton`: the model repository that it writes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bert_export.cli.errors import ErrorGroup
from bert_export.cli.triton import triton
from bert_runtime import BertError, BundleError, InputError, load
from bert_serve.triton import ModelConfig, backend_path, repository, write_model

from ...task_bundles import TaskBundles
from ..cascades import write_cascade

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run `bert-export triton` with arguments; an unhandled exception fails the test."""
    program = ErrorGroup(commands=[triton])

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(program, ["triton", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def written(folder: Path) -> set[str]:
    """Paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_command_writes_a_model_with_backend_and_bundle(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    result = run(classifier_bundle, tmp_path / "models")
    model = tmp_path / "models" / "classifier"
    assert result.exit_code == 0, result.output
    assert result.stdout == f"wrote {model}\n"
    assert written(tmp_path / "models") == {
        "classifier/config.pbtxt",
        "classifier/1/model.py",
        *(f"classifier/1/bundle/{path.name}" for path in classifier_bundle.iterdir()),
    }
    assert (model / "1/model.py").read_bytes() == backend_path().read_bytes()
    assert load(model / "1/bundle")("hello").to_dict() == load(classifier_bundle)("hello").to_dict()


def test_config_has_the_options(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    options = ["--name", "intents", "--instances", 2, "--max-batch-size", 16, "--max-queue-delay-us", 500,
               "--max-queue-size", 9, "--precision", "int8", "--threads", 3]  # fmt: skip
    assert run(classifier_bundle, tmp_path, *options).exit_code == 0
    text = (tmp_path / "intents/config.pbtxt").read_text(encoding="utf-8")
    for line in (
        'name: "intents"',
        'backend: "python"',
        "max_batch_size: 16",
        "count: 2, kind: KIND_CPU",
        "max_queue_delay_microseconds: 500",
        "max_queue_size: 9",
        'key: "precision", value: { string_value: "int8" }',
        'key: "threads", value: { string_value: "3" }',
    ):
        assert line in text


def test_inputs_and_outputs_follow_from_the_task(
    classifier_bundle: Path, embedding_bundle: Path, task_bundles: TaskBundles, tmp_path: Path
) -> None:
    texts = {}
    for name, bundle in {
        "classifier": classifier_bundle,
        "embedding": embedding_bundle,
        "answers": task_bundles["question-answering"],
    }.items():
        texts[name] = (write_model(bundle, tmp_path, name=name) / "config.pbtxt").read_text(encoding="utf-8")
    assert 'name: "TEXT_PAIR", data_type: TYPE_STRING, dims: [ 1 ], optional: true' in texts["classifier"]
    assert "EMBEDDING" not in texts["classifier"]
    assert 'name: "EMBEDDING", data_type: TYPE_FP32, dims: [ 32 ]' in texts["embedding"]
    assert 'name: "QUESTION"' in texts["answers"]
    assert 'name: "CONTEXT", data_type: TYPE_STRING, dims: [ 1 ] }' in texts["answers"]


def test_a_model_is_replaced_with_force_only(
    run: Run, classifier_bundle: Path, embedding_bundle: Path, tmp_path: Path
) -> None:
    assert run(classifier_bundle, tmp_path, "--name", "model").exit_code == 0
    before = (tmp_path / "model/config.pbtxt").read_bytes()
    refused = run(embedding_bundle, tmp_path, "--name", "model")
    assert refused.exit_code == 1
    assert "is already there; replace it with --force" in refused.stderr
    assert (tmp_path / "model/config.pbtxt").read_bytes() == before
    assert run(embedding_bundle, tmp_path, "--name", "model", "--force").exit_code == 0
    assert "EMBEDDING" in (tmp_path / "model/config.pbtxt").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_folders_of_others_are_never_replaced(classifier_bundle: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "model"
    foreign.mkdir()
    (foreign / "config.pbtxt").write_text("of another model", encoding="utf-8")
    with pytest.raises(BertError, match="exists and is not a model that bert-export wrote"):
        write_model(classifier_bundle, tmp_path, name="model", force=True)
    assert written(foreign) == {"config.pbtxt"}


def test_a_damaged_bundle_leaves_the_repository_as_it_was(
    run: Run, classifier_bundle: Path, copy_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    damaged = copy_bundle(classifier_bundle)
    (damaged / "tokenizer.json").write_text("{}", encoding="utf-8")
    models = tmp_path / "models"
    write_model(classifier_bundle, models, name="model")
    before = {path: (models / path).stat().st_mtime_ns for path in written(models)}
    result = run(damaged, models, "--name", "model", "--force")
    assert result.exit_code == 1
    assert "tokenizer.json: expected" in result.stderr
    assert "Traceback" not in result.output
    assert {path: (models / path).stat().st_mtime_ns for path in written(models)} == before


def test_a_bundle_without_the_precision_leaves_nothing(
    classifier_bundle: Path, copy_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="no variant 'fp16'"):
        write_model(classifier_bundle, tmp_path / "models", config=ModelConfig(precision="fp16"))
    assert not (tmp_path / "models").exists()


def test_link_shares_the_files(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(classifier_bundle, tmp_path / "bundle"))
    assert run(bundle, tmp_path / "models", "--link").exit_code == 0
    for path in (tmp_path / "models/bundle/1/bundle").iterdir():
        assert path.samefile(bundle / path.name)


def test_link_across_file_systems_says_what_to_do(
    classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(repository.os, "link", refuse)
    with pytest.raises(BertError, match=r"cannot be hard-linked .* copy it, without --link"):
        write_model(classifier_bundle, tmp_path / "models", link=True)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", 'a"b', ".hidden"])
def test_names_that_are_no_plain_folders_are_refused(classifier_bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="expected a model's name of letters"):
        write_model(classifier_bundle, tmp_path, name=name)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "values", [{"instances": 0}, {"max_batch_size": 0}, {"max_queue_delay_us": -1}, {"threads": 0}, {"precision": "x"}]
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(InputError, match=f"expected .*{name}"):
        ModelConfig(**values)


def test_a_cascade_is_copied_with_both_bundles(run: Run, classifier_bundle: Path, tmp_path: Path) -> None:
    cascade = write_cascade(classifier_bundle, tmp_path / "both", ["hello", "bye", "my card"])
    result = run(cascade, tmp_path / "models")
    assert result.exit_code == 0, result.output
    copied = tmp_path / "models/both/1/bundle"
    assert written(copied) == {
        "bundle.json",
        *(f"{part}/{path.name}" for part in ("small", "large") for path in classifier_bundle.iterdir()),
    }
    assert load(copied)("hello").to_dict() == load(cascade)("hello").to_dict()
    assert "already there" in run(cascade, tmp_path / "models").stderr
    assert run(cascade, tmp_path / "models", "--force", "--link").exit_code == 0
    assert (copied / "small/bundle.json").samefile(cascade / "small/bundle.json")
    refused = run(cascade, tmp_path / "models", "--name", "other", "--precision", "bf16")
    assert refused.exit_code == 1
    assert "bf16" in refused.stderr
    assert not (tmp_path / "models/other").exists()
    (cascade / "large/tokenizer.json").write_text("{}")
    assert run(cascade, tmp_path / "models", "--name", "damaged").exit_code == 1
    assert not (tmp_path / "models/damaged").exists()
