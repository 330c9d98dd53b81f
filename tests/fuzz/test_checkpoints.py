"""Damaged checkpoints: configuration, tokenizer settings, pipeline and weights."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_models import load_model, open_checkpoint
from bert_runtime.tasks import TextInput

from .mutations import as_json, mutated_bytes, mutated_json, raises_only_typed_errors

_FILES = ("config.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json")


def _use(folder: Path) -> None:
    """Read all that an export reads."""
    checkpoint = open_checkpoint(folder)
    task = checkpoint.task()
    checkpoint.text_tokenizer(checkpoint.max_tokens).encode([TextInput("hello there")])
    checkpoint.sha256()
    load_model(checkpoint, task)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "checkpoint"


@given(st.data())
def test_json_files(embedding_checkpoint: Path, damaged: Path, data: st.DataObject) -> None:
    shutil.copytree(embedding_checkpoint, damaged, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(_FILES))
    contents = json.loads((embedding_checkpoint / name).read_text()) if (embedding_checkpoint / name).is_file() else {}
    (damaged / name).write_bytes(as_json(data.draw(mutated_json(contents))))
    raises_only_typed_errors(lambda: _use(damaged))


@given(st.data())
def test_classifier_configuration(classifier_checkpoint: Path, damaged: Path, data: st.DataObject) -> None:
    folder = damaged.with_name("classifier")
    shutil.copytree(classifier_checkpoint, folder, dirs_exist_ok=True)
    values = json.loads((classifier_checkpoint / "config.json").read_text())
    (folder / "config.json").write_bytes(as_json(data.draw(mutated_json(values))))
    raises_only_typed_errors(lambda: _use(folder))


@given(st.data())
def test_weights(classifier_checkpoint: Path, damaged: Path, data: st.DataObject) -> None:
    folder = damaged.with_name("weights")
    shutil.copytree(classifier_checkpoint, folder, dirs_exist_ok=True)
    contents = (classifier_checkpoint / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(contents[:8], "little")
    damaged_header = data.draw(mutated_bytes(contents[:header]))
    (folder / "model.safetensors").write_bytes(damaged_header + contents[header:])
    raises_only_typed_errors(lambda: _use(folder))
