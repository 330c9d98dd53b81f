"""Checkpoints from anywhere: only this project's errors come out, at once, and nothing is allocated on their word."""

import resource
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_models import CheckpointError, ConfigError, TaskModel, load_model, open_checkpoint
from bert_models.config import MAX_LAYERS, MAX_SIZE
from bert_runtime.errors import BertError
from bert_runtime.tasks import TextClassification, TextInput

from .hostile_checkpoints import DEEP_JSON, Edit, hostile_edits, hostile_pooling_edits, set_key

MAX_SECONDS = 5.0
"""For one checkpoint, on a machine that is busy with something else."""


def use(folder: Path) -> None:
    """Read all that an export reads."""
    checkpoint = open_checkpoint(folder)
    task = checkpoint.task()
    checkpoint.text_tokenizer(checkpoint.max_tokens).encode([TextInput("hello there")])
    checkpoint.sha256()
    load_model(checkpoint, task)


def problems(original: Path, folder: Path, edits: list[tuple[str, Edit]]) -> list[str]:
    """Return the edits after which using the checkpoint raises anything but `BertError`, or takes long."""
    found = []
    for name, edit in edits:
        shutil.copytree(original, folder)
        edit(folder)
        start = time.monotonic()
        try:
            use(folder)
        except BertError as error:
            if len(str(error)) > 10_000:
                found.append(f"{name}: a message of {len(str(error))} characters")
        except BaseException as error:  # a panic of the tokenizer's is no Exception
            found.append(f"{name}: {type(error).__name__}: {error}")
        if time.monotonic() - start > MAX_SECONDS:
            found.append(f"{name}: {time.monotonic() - start:.1f} s")
        shutil.rmtree(folder)
    return found


def test_a_sample_of_hostile_checkpoints_raises_nothing_but_typed_errors(
    classifier_checkpoint: Path, embedding_checkpoint: Path, tmp_path: Path
) -> None:
    assert not problems(classifier_checkpoint, tmp_path / "copy", list(islice(hostile_edits(), 0, None, 17)))
    assert not problems(embedding_checkpoint, tmp_path / "copy", list(islice(hostile_pooling_edits(), 0, None, 17)))


@pytest.mark.slow
def test_hostile_checkpoints_raise_nothing_but_typed_errors(
    classifier_checkpoint: Path, embedding_checkpoint: Path, tmp_path: Path
) -> None:
    edits = list(hostile_edits()), list(hostile_pooling_edits())
    assert sum(map(len, edits)) > 2000
    assert not problems(classifier_checkpoint, tmp_path / "copy", edits[0])
    assert not problems(embedding_checkpoint, tmp_path / "copy", edits[1])


@pytest.fixture
def copy(classifier_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", "32", r"config\.json: hidden_size must be a whole number, found '32'"),
        ("hidden_size", True, r"config\.json: hidden_size must be a whole number, found True"),
        ("num_hidden_layers", float("nan"), r"num_hidden_layers must be a whole number, found nan"),
        ("layer_norm_eps", float("inf"), r"layer_norm_eps must be a finite number, found inf"),
        ("initializer_range", -0.1, r"initializer_range must not be negative, found -0\.1"),
        ("hidden_dropout_prob", [], r"hidden_dropout_prob must be a finite number, found \[\]"),
        ("hidden_act", 3, r"hidden_act must be a name, found 3"),
        ("hidden_size", 10**9, rf"hidden_size must be at most {MAX_SIZE}, found 1000000000"),
        ("num_hidden_layers", 10**7, rf"num_layers must be at most {MAX_LAYERS}, found 10000000"),
        ("model_type", ["bert"], r"expected a model_type of bert, .* found \['bert'\]"),
        ("architectures", "BertModel", r"expected architectures to be a list of names, found 'BertModel'"),
    ],
)
def test_wrong_value_error_names_file_key_expected_and_found(copy: Path, key: str, value: Any, message: str) -> None:
    set_key(copy / "config.json", key, value)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        open_checkpoint(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", MAX_SIZE), ("hidden_size", 2**23), ("num_hidden_layers", 300), ("intermediate_size", MAX_SIZE)],
)
def test_more_parameters_than_weights_are_refused_before_allocation(copy: Path, key: str, value: int) -> None:
    set_key(copy / "config.json", key, value)
    source = open_checkpoint(copy)
    task = source.task()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"do not fit the configuration; .*(mis-shaped|missing)"):
        load_model(source, task)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_checking_shapes_first_leaves_new_heads_as_they_were_seeded(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    task = TextClassification(labels=("x", "y"))
    torch.manual_seed(0)
    loaded = load_model(source, task, new_head=True)
    torch.manual_seed(0)
    assert torch.equal(loaded.state_dict()["head.output.weight"], TaskModel(source.config, task).head.output.weight)


def test_pickled_tensor_without_its_values_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1).expand(10**6, 10**6)}, copy / "pytorch_model.bin")
    source = open_checkpoint(copy)
    with pytest.raises(CheckpointError, match=r"expected 'a' to be a dense tensor with all of its values"):
        load_model(source, source.task())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text(DEEP_JSON), "nested too deeply"),
        (lambda path: path.write_bytes(b" " * (2**25 + 1)), "at most 33,554,432 bytes, found 33,554,433"),
    ],
)
def test_json_that_exhausts_the_parser_is_refused(copy: Path, write: Callable[[Path], object], message: str) -> None:
    write(copy / "config.json")
    with pytest.raises(CheckpointError, match=rf"config\.json: expected .*{message}"):
        open_checkpoint(copy)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "/" + "x" * 300, "../" * 2000, "\ud800"])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint .* found nothing") as caught:
        open_checkpoint(name)
    assert len(str(caught.value)) < 400
