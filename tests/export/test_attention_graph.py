"""The attention graph: probabilities of every family, one file of weights, and what the export refuses."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bert_export import ExportError, attention_graph, export
from bert_export.attention_graph import add_attention_outputs, reference_attention
from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.graph_files import save_graph
from bert_export.parity import probe_batches
from bert_models import load_model, open_checkpoint
from bert_models.families import FAMILIES
from bert_runtime import Manifest
from bert_runtime.bundle.contents import replacement_problem
from bert_runtime.tokenization import Batch

from ..models.toy import TOLERANCE, inputs, save_reference
from ..models.toy_families import comparable, reference, with_first_token
from .toy_models import CLASSIFIER, toy_model

FAST = ("bert", "albert", "mpnet", "modernbert", "deberta-v2")
"""Families whose attention differs: shared layers, relative positions, rotary and local, disentangled."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in FAMILIES]
)
def test_probabilities_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    """A classifier's: its FP32 variant computes the last layer for the first token alone."""
    theirs = reference(family, "ForSequenceClassification", num_labels=4)
    theirs.set_attn_implementation("eager")  # type: ignore[operator] # others do not return attention
    source = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(source, source.task())
    graph = capture(ours)
    fuse(graph, source.config, source.task())
    save_graph(add_attention_outputs(graph, source.config), tmp_path, "attention")
    session = onnxruntime.InferenceSession(tmp_path / "model.attention.onnx")
    names = [value.name for value in session.get_inputs()]
    for batch_size, mask in ((1, "full"), (3, "full"), (3, "random")):
        ids, attention, segments = inputs(batch_size, mask)
        attention = with_first_token(family, attention)
        queries = comparable(family, attention)[:, None, :, None].numpy()
        if source.config.positions == "after_padding":  # position ids depend on the padding id, not on the mask
            ids = ids.where(attention.bool(), torch.tensor(source.config.pad_token_id))
        feed = {"input_ids": ids, "attention_mask": attention, "token_type_ids": segments}
        with torch.no_grad():
            expected = theirs(output_attentions=True, **{name: feed[name] for name in names})
        logits, *found = session.run(None, {name: feed[name].numpy() for name in names})
        assert np.abs(logits - expected.logits.numpy()).max() <= TOLERANCE
        assert len(found) == len(expected.attentions) == source.config.num_layers
        for layer, probabilities in enumerate(expected.attentions):
            assert found[layer].shape == (batch_size, 4, 19, 19)
            assert np.abs((found[layer] - probabilities.numpy()) * queries).max() <= TOLERANCE, (mask, layer)


def test_reference_hides_padding_and_adds_up_to_one() -> None:
    batch = probe_batches(toy_model(CLASSIFIER), max_tokens=32)["left-padded"]
    for probabilities in reference_attention(toy_model(CLASSIFIER), batch):
        assert np.abs(probabilities.sum(axis=-1) - 1).max() <= 1e-6
        hidden = np.broadcast_to(batch.attention_mask[:, None, None, :] == 0, probabilities.shape)
        assert hidden.any()
        assert not probabilities[hidden].any()


def offsets(path: Path) -> set[str]:
    """Where in the file of weights the large weights of a graph are."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    assert all(len(tensor.raw_data) < 1024 for tensor in tensors)
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "offset"}


def test_weights_are_shared_and_those_of_an_export_without_attention(
    attention_bundle: Path, classifier_bundle: Path
) -> None:
    manifest, plain = Manifest.read(attention_bundle), Manifest.read(classifier_bundle)
    assert plain.attention is None
    assert manifest.attention is not None
    assert manifest.attention.external_data == manifest.variant("fp32").external_data
    assert manifest.variant("fp32").assets == plain.variant("fp32").assets
    assert (len(manifest.attention.outputs), manifest.attention.num_heads) == (2, 4)
    assert 0 < manifest.attention.parity["max_abs_error"] <= 1e-5
    assert manifest.attention.model in manifest.assets
    assert {path.name for path in attention_bundle.iterdir()} == {
        "README.md",
        "bundle.json",
        "model.attention.onnx",
        "model.fp32.onnx",
        "model.fp32.onnx.data",
        "tokenizer.json",
    }
    assert offsets(attention_bundle / "model.attention.onnx") <= offsets(attention_bundle / "model.fp32.onnx")
    onnx.checker.check_model(attention_bundle / "model.attention.onnx", full_check=True)


def test_the_model_card_says_how(attention_bundle: Path) -> None:
    card = (attention_bundle / "README.md").read_text(encoding="utf-8")
    assert "bert-export export classifier attention --target cpu --precision fp32 --attention\n" in card


def test_wrong_probabilities_fail_the_export(
    classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = reference_attention

    def changed(torch_model: object, batch: Batch) -> list[np.ndarray]:
        return [array + np.float32(2e-4) for array in computed(torch_model, batch)]  # type: ignore[arg-type]

    monkeypatch.setattr(attention_graph, "reference_attention", changed)
    with pytest.raises(ExportError, match=r"probabilities differ from PyTorch's by more than 1e-04 on .*holes"):
        export(classifier_checkpoint, tmp_path / "bundle", precisions=["fp32"], attention=True)
    assert not [*tmp_path.iterdir()]


def test_force_replaces_a_bundle_with_attention(
    attention_bundle: Path, embedding_checkpoint: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    assert replacement_problem(bundle, force=True) is None
    manifest = export(embedding_checkpoint, bundle, precisions=["fp32"], force=True)
    assert manifest.attention is None
    assert not (bundle / "model.attention.onnx").exists()
