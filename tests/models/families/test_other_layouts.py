"""Checkpoints whose tensors have other names than in transformers."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_models import CheckpointError, load_model, open_checkpoint

from ..toy import TOLERANCE, inputs, save_reference
from ..toy_families import reference


def test_xlm_roberta_with_names_of_flash_attention(tmp_path: Path) -> None:
    theirs = reference("xlm-roberta", "ForSequenceClassification", num_labels=1)
    folder = save_reference(theirs, tmp_path)
    names = (
        (".embeddings.LayerNorm.", ".emb_ln."), ("encoder.layer.", "encoder.layers."),
        (".attention.output.dense.", ".mixer.out_proj."), (".attention.output.LayerNorm.", ".norm1."),
        (".output.LayerNorm.", ".norm2."), (".intermediate.dense.", ".mlp.fc1."), (".output.dense.", ".mlp.fc2."),
    )  # fmt: skip
    tensors = load_file(folder / "model.safetensors")
    for key in [key for key in tensors if ".self.query." in key]:
        parts = [tensors.pop(key.replace("query", part)) for part in ("query", "key", "value")]
        tensors[key.replace("attention.self.query", "mixer.Wqkv")] = torch.cat(parts)
    for old, new in names:
        tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    assert "roberta.encoder.layers.0.mixer.Wqkv.weight" in tensors
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    ours = load_model(checkpoint, checkpoint.task())
    ids, attention, _ = inputs(3, "random")
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention).logits
        assert float((ours(ids, attention) - expected).abs().max()) <= TOLERANCE


def test_ernie_without_tasks(tmp_path: Path) -> None:
    theirs = reference("ernie", "Model", use_task_id=False)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task("sentence-embedding"))
    ids, attention, segments = inputs(3, "random")
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        assert float((ours.encoder(ids, attention, segments) - expected).abs().max()) <= TOLERANCE


def test_ernie_adds_tasks_only_where_they_are_used(tmp_path: Path) -> None:
    with_tasks = reference("ernie", "Model")
    folder = save_reference(with_tasks, tmp_path)
    tensors, config = load_file(folder / "model.safetensors"), folder / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "use_task_id": False}))
    theirs = transformers.ErnieModel.from_pretrained(folder).eval()
    checkpoint = open_checkpoint(folder)
    ours = load_model(checkpoint, checkpoint.task("sentence-embedding"))
    ids, attention, segments = inputs(3, "random")
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        assert float((ours.encoder(ids, attention, segments) - expected).abs().max()) <= TOLERANCE
    config.write_text(json.dumps(values))
    del tensors["embeddings.task_type_embeddings.weight"]
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"expected task_type_embeddings\.weight, since use_task_id .* is true"):
        load_model(checkpoint, checkpoint.task("sentence-embedding"))
