"""Dense layers, pooling and normalisation from a sentence-transformers folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.parity import check_parity
from bert_models import CheckpointError, load_model, open_checkpoint, save_model
from bert_runtime.tasks import SentenceEmbedding

from ..export.toy_models import graph_runner
from .toy import TOLERANCE, inputs, randomize, save_reference, toy_config


def write_pipeline(folder: Path, *kinds: str) -> None:
    """Write `modules.json`, and a dense layer from 24 to 7 with tanh for every `Dense`."""
    modules = [
        {
            "idx": i,
            "path": "" if kind == "Transformer" else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    for module in modules:
        if module["type"].endswith("Dense"):
            path = folder / str(module["path"])
            path.mkdir()
            values = {"in_features": 24, "out_features": 7, "bias": True}
            values["activation_function"] = "torch.nn.modules.activation.Tanh"  # type: ignore[assignment]
            (path / "config.json").write_text(json.dumps(values))
            generator = torch.Generator().manual_seed(0)
            weight, bias = torch.randn((7, 24), generator=generator), torch.randn(7, generator=generator)
            save_file({"linear.weight": weight, "linear.bias": bias}, path / "model.safetensors")


def test_dense_layer_between_pooling_and_normalisation(tmp_path: Path, classifier_checkpoint: Path) -> None:
    theirs = BertModel(BertConfig(**toy_config())).eval()
    randomize(theirs)
    folder = save_reference(theirs, tmp_path / "a")
    write_pipeline(folder, "Transformer", "Pooling", "Dense", "Normalize")
    source = open_checkpoint(folder)
    task = source.task()
    assert task == SentenceEmbedding(dimensions=7, pooling="cls", dense_sizes=(7,), dense_activations=("tanh",))
    ours = load_model(source, task)
    ids, attention, segments = inputs(3, "random")
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn((7, 24), generator=generator), torch.randn(7, generator=generator)
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        expected = torch.nn.functional.normalize(torch.tanh(hidden[:, 0] @ weight.T + bias), dim=-1)
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE
    (tmp_path / "b").mkdir()
    save_model(ours, tmp_path / "b", tokenizer_from=classifier_checkpoint)
    again = open_checkpoint(tmp_path / "b")
    assert again.task() == task
    with torch.no_grad():
        assert torch.equal(load_model(again, again.task())(ids, attention, segments), ours(ids, attention, segments))
    graph = capture(ours)
    fuse(graph, source.config, task)
    check_parity(ours, graph_runner(graph, tmp_path / "model.onnx"), 48)


@pytest.mark.parametrize(
    "kinds",
    [("Transformer", "Dense"), ("Transformer", "Pooling", "Normalize", "Dense"), ("Transformer", "Pooling", "LSTM")],
)
def test_unsupported_pipeline_is_refused(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = save_reference(BertModel(BertConfig(**toy_config())), tmp_path)
    write_pipeline(folder, *kinds)
    with pytest.raises(CheckpointError, match=f"expected the modules Transformer, Pooling.*found {', '.join(kinds)}"):
        open_checkpoint(folder).task()


def test_dense_folder_outside_the_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = save_reference(BertModel(BertConfig(**toy_config())), tmp_path / "a")
    write_pipeline(folder, "Transformer", "Pooling", "Dense")
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("2_Dense", "../2_Dense"))
    with pytest.raises(CheckpointError, match="expected Dense modules in folders next to it"):
        open_checkpoint(folder).task()


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


@pytest.mark.pretrained
def test_minilm_settings_are_read(pretrained_minilm: Path) -> None:
    checkpoint = open_checkpoint(pretrained_minilm)
    assert checkpoint.task() == SentenceEmbedding(dimensions=384, pooling="mean", normalize=True)
    assert checkpoint.max_tokens == 256


@pytest.mark.parametrize("mode", ["max", ["max"]], ids=str)
def test_pooling_mode_of_later_releases_is_read(embedding_checkpoint: Path, tmp_path: Path, mode: Any) -> None:
    """sentence-transformers 5.7 and 6.2 write only these keys."""
    folder = Path(shutil.copytree(embedding_checkpoint, tmp_path / "checkpoint"))
    values = {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
    task = open_checkpoint(folder).task()
    assert isinstance(task, SentenceEmbedding)
    assert task.pooling == "max"


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "1_Pooling/config.json",
            lambda p: p.update(pooling_mode=["cls", "max"]),
            "expected exactly one pooling_mode of",
        ),
        ("1_Pooling/config.json", lambda p: p.update(pooling_mode="lasttoken"), "found 'lasttoken'"),
        (
            "modules.json",
            lambda m: m[2].update(type="sentence_transformers.models.LSTM"),
            "found Transformer, Pooling, LSTM",
        ),
        ("1_Pooling/config.json", lambda p: p.update(pooling_mode_cls_token=True), "expected exactly one of"),
        ("1_Pooling/config.json", lambda p: p.update(pooling_mode_mean_tokens=False), "found none"),
        ("sentence_bert_config.json", lambda s: s.update(max_seq_length="long"), "expected a positive max_seq_length"),
    ],
)
def test_unsupported_settings_are_refused(
    embedding_checkpoint: Path, tmp_path: Path, name: str, edit: Callable[[Any], object], message: str
) -> None:
    folder = Path(shutil.copytree(embedding_checkpoint, tmp_path / "checkpoint"))
    if not (folder / name).exists():
        (folder / name).write_text("{}")
    edit_json(folder / name, edit)
    with pytest.raises(CheckpointError, match=message):
        _ = open_checkpoint(folder).task(), open_checkpoint(folder).max_tokens
