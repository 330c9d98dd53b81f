"""Every pooling compared with its definition, in PyTorch and in the graph."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.parity import check_parity
from bert_models import CheckpointError, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import (
    SentenceEmbedding,
)
from bert_runtime.tasks.sentence_embedding import POOLINGS

from ..export.toy_models import graph_runner
from .toy import BATCHES, MASKS, TOLERANCE, inputs, randomize, save_reference, toy_config
from .toy_heads import VOCABULARY, Saved, save


def pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: str, scores: torch.nn.Linear) -> torch.Tensor:
    """Pool one sequence by the definition: hidden [S, H], mask bool [S] → [H]; `scores` is for attention pooling."""
    tokens, positions = hidden[mask], torch.arange(1, len(mask) + 1)[mask].float()
    return {
        "attention": lambda: (tokens * (exp := scores(tokens).exp())).sum(0) / exp.sum(),
        "cls": lambda: hidden[0],
        "mean": lambda: tokens.mean(0),
        "max": lambda: tokens.max(0).values,
        "mean_sqrt_len": lambda: tokens.sum(0) / len(tokens) ** 0.5,
        "weighted_mean": lambda: (tokens * positions[:, None]).sum(0) / positions.sum(),
    }[pooling]()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[BertModel, Path]:
    theirs = BertModel(BertConfig(**toy_config(num_hidden_layers=1))).eval()
    randomize(theirs)
    return theirs, save_reference(theirs, tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_matches_its_definition_in_pytorch_and_in_the_graph(
    encoder: tuple[BertModel, Path], pooling: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    theirs, folder = encoder
    source = open_checkpoint(folder)
    task = SentenceEmbedding(dimensions=24, pooling=pooling, normalize=False)
    ours = load_model(source, task, new_head=pooling == "attention")
    randomize(ours.head)  # only attention pooling has parameters
    scores = getattr(ours.head.pooling, "score", torch.nn.Linear(24, 1))
    ids, attention, segments = inputs(3, "random")
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        found = ours(ids, attention, segments)
        sequences = zip(hidden, attention.bool(), strict=True)
        expected = torch.stack([pooled(*sequence, pooling, scores) for sequence in sequences])
    assert float((found - expected).abs().max()) <= TOLERANCE
    graph = capture(ours)
    fuse(graph, source.config, task)
    check_parity(ours, graph_runner(graph, tmp_path / "model.onnx"), 48)
    (tmp_path / "saved").mkdir()
    save_model(ours, tmp_path / "saved", tokenizer_from=classifier_checkpoint)
    again = open_checkpoint(tmp_path / "saved")
    assert again.task() == task
    with torch.no_grad():
        assert torch.equal(load_model(again, task)(ids, attention, segments), found)


def test_attention_pooling_needs_trained_weights(encoder: tuple[BertModel, Path]) -> None:
    source = open_checkpoint(encoder[1])
    with pytest.raises(CheckpointError, match=r"2 missing: pooling\.score\.weight, pooling\.score\.bias"):
        load_model(source, SentenceEmbedding(dimensions=24, pooling="attention"))


def attention_pooled(hidden: Tensor, mask: Tensor, score: nn.Linear) -> Tensor:
    """Pool one sequence by the definition: hidden [S, H], mask bool [S] → [H]."""
    tokens = hidden[mask]
    weights = (tokens @ score.weight[0] + score.bias).softmax(dim=0)
    return (weights[:, None] * tokens).sum(dim=0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_pooling_matches_its_definition_in_every_family(
    saved: Saved, family: str, batch: int, mask: str
) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, SentenceEmbedding(dimensions=24, pooling="attention", normalize=False), new_head=True)
    randomize(ours)
    ids, attention, segments = inputs(batch, mask, VOCABULARY)
    with torch.no_grad():
        hidden = ours.encoder(ids, attention, segments)
        sequences = zip(hidden, attention.bool(), strict=True)
        expected = torch.stack([attention_pooled(*sequence, ours.head.pooling.score) for sequence in sequences])
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE


def test_attention_pooling_is_saved_with_its_settings(
    saved: Saved, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    """transformers loads the encoder as BertModel; the score's weights are in the pooling's folder."""
    _, source = saved("bert", "fill-mask")
    task = SentenceEmbedding(dimensions=24, pooling="attention")
    with pytest.raises(CheckpointError, match=r"2 missing: pooling\.score\.weight, pooling\.score\.bias"):
        load_model(source, task)
    ours = load_model(source, task, new_head=True)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    assert load_file(folder / "1_Pooling" / "model.safetensors").keys() == {"linear.weight", "linear.bias"}
    _, report = transformers.BertModel.from_pretrained(folder, output_loading_info=True)
    assert {key for key in report["missing_keys"] if not key.startswith("pooler.")} == set()
    assert not report["unexpected_keys"]
