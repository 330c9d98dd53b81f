"""The real all-mpnet-base-v2: its hidden states, its tokenizer, and the fidelity of its bundle."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bert_bench.experiments.sts_fidelity import measure_fidelity
from bert_export import export
from bert_models import load_model, open_checkpoint
from bert_models.tokenizer_files import read_tokenizer

from ..toy import MASKS, TOLERANCE, inputs
from ..toy_tokenizers import NASTY, view

pytestmark = pytest.mark.pretrained


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("tokens", [77, 512])
def test_hidden_states_equal_those_of_transformers(pretrained_mpnet: Path, tokens: int, mask: str) -> None:
    checkpoint = open_checkpoint(pretrained_mpnet)
    ours = load_model(checkpoint, checkpoint.task())
    theirs = AutoModel.from_pretrained(pretrained_mpnet).eval()
    ids, attention, _ = inputs(2, mask, vocab_size=30527, tokens=tokens)
    ids = ids.where(attention.bool(), torch.tensor(checkpoint.config.pad_token_id))
    with torch.no_grad():
        found = ours.encoder(ids, attention)
        expected = theirs(input_ids=ids, attention_mask=attention).last_hidden_state
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_tokenizer_encodes_nasty_strings_like_transformers(pretrained_mpnet: Path) -> None:
    ours, theirs = read_tokenizer(pretrained_mpnet, "mpnet"), AutoTokenizer.from_pretrained(pretrained_mpnet)
    ours.no_truncation()
    ours.no_padding()
    for found, expected, text in zip(ours.encode_batch(NASTY), theirs(NASTY).encodings, NASTY, strict=True):
        assert view(found) == view(expected), text


def test_mask_token_is_the_declared_one(pretrained_mpnet: Path) -> None:
    """The vocabulary has [MASK], too."""
    task = open_checkpoint(pretrained_mpnet).task("fill-mask")
    assert (task.mask_token, task.mask_token_id) == ("<mask>", 30526)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.shared_data
def test_bundle_is_faithful_on_sts(pretrained_mpnet: Path, shared_data: Path, tmp_path: Path) -> None:
    calibrate, judge = (shared_data / f"stsb/stsb-en-{part}.csv" for part in ("train", "dev"))
    export(pretrained_mpnet, tmp_path / "bundle", calibrate=calibrate, columns={"text": "0"})
    found = measure_fidelity(tmp_path / "bundle", pretrained_mpnet, judge, 1000)
    assert found["fp32"]["min"] >= 0.99999
    assert found["int8"]["mean"] >= 0.998
    assert found["int8"]["spearman"] == pytest.approx(found["transformers"]["spearman"], rel=0.005)
