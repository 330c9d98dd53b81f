"""Folders of sentence-transformers' `SparseEncoder`: read, refused, written."""

import json
from pathlib import Path

import pytest
import torch

from bert_models import CheckpointError, EncoderConfig, TaskModel, load_model, open_checkpoint
from bert_runtime.tasks import FillMask, SparseEmbedding

from .toy import inputs
from .toy_heads import assert_survives, save

NAMES = {
    "5.0": "sentence_transformers.sparse_encoder.models.{}",
    "6.2": "sentence_transformers.sparse_encoder.modules.splade_pooling.{}",
}
"""How releases of sentence-transformers name their modules."""


@pytest.fixture
def folder(tmp_path: Path, toy_vocab: Path, toy_config: EncoderConfig) -> Path:
    """A checkpoint of a masked language model."""
    torch.manual_seed(0)
    task = FillMask(mask_token="[MASK]", mask_token_id=4)
    return save(TaskModel(toy_config, task).eval(), tmp_path / "splade", toy_vocab)


def describe(folder: Path, kinds: list[str], pooling: object, name: str = NAMES["5.0"]) -> Path:
    """Write what makes a checkpoint a `SparseEncoder` folder."""
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": name.format(kind)}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_SpladePooling").mkdir(exist_ok=True)
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    return folder


@pytest.mark.parametrize("transformer", ["MLMTransformer", "Transformer"])
@pytest.mark.parametrize("release", NAMES)
@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_folder_implies_task_and_settings(
    folder: Path, transformer: str, release: str, pooling: str, activation: str
) -> None:
    settings = {"pooling_strategy": pooling, "activation_function": activation, "word_embedding_dimension": 7}
    describe(folder, [transformer, "SpladePooling"], settings, NAMES[release])
    source = open_checkpoint(folder)
    assert source.task() == SparseEmbedding(vocab_size=source.config.vocab_size, pooling=pooling, activation=activation)


def test_bare_masked_language_model_becomes_one_if_asked(folder: Path) -> None:
    source = open_checkpoint(folder)
    assert isinstance(source.task(), FillMask)
    assert source.task("sparse-embedding") == SparseEmbedding(vocab_size=source.config.vocab_size)


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["SparseStaticEmbedding", "SpladePooling"], {}, "expected the modules MLMTransformer"),
        (["MLMTransformer", "SpladePooling", "Normalize"], {}, "expected the modules MLMTransformer"),
        (["MLMTransformer", "SpladePooling"], {"pooling_strategy": "mean"}, "pooling_strategy to be max or sum"),
        (["MLMTransformer", "SpladePooling"], {"activation_function": ["relu"]}, "activation_function to be relu or"),
        (["MLMTransformer", "SpladePooling"], [], "1_SpladePooling"),
    ],
)
def test_other_folders_are_refused(folder: Path, kinds: list[str], pooling: object, message: str) -> None:
    describe(folder, kinds, pooling)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder).task()


def test_head_of_another_task_is_refused(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    with pytest.raises(CheckpointError, match=r"no sparse-embedding head.*hold the head of text-classification"):
        load_model(source, source.task("sparse-embedding"))


def test_untied_output_matrix_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match="a sparse-embedding head with an output matrix of its own"):
        open_checkpoint(folder).task("sparse-embedding")


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_head_computes_splades_formula_and_survives(
    pooling: str, activation: str, tmp_path: Path, toy_vocab: Path, toy_config: EncoderConfig
) -> None:
    torch.manual_seed(0)
    task = SparseEmbedding(vocab_size=toy_config.vocab_size, pooling=pooling, activation=activation)
    model = TaskModel(toy_config, task).eval()
    ids, mask, segments = inputs(3, "random", toy_config.vocab_size)
    with torch.no_grad():
        hidden = model.encoder(ids, mask, segments)
        logits = super(type(model.head), model.head).forward(hidden, mask)
        weights = torch.log1p(logits.clamp(min=0))
        weights = (torch.log1p(weights) if activation == "log1p_relu" else weights) * mask[..., None]
        expected = weights.amax(dim=1) if pooling == "max" else weights.sum(dim=1)
        torch.testing.assert_close(model(ids, mask, segments), expected)
    assert (expected > 0).any()
    assert_survives(model, save(model, tmp_path / "saved", toy_vocab))
    modules = json.loads((tmp_path / "saved" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["MLMTransformer", "SpladePooling"]
