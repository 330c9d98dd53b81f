"""ModernBERT and DeBERTa from raw text to a classifier: pre-trained, read by transformers, fine-tuned."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert_models import FAMILIES, load_model, open_checkpoint
from bert_models.corpus import TextFiles
from bert_models.pretraining import InitialModel, PretrainSettings, pretrain
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training import TrainSettings, fine_tune

from ..toy import TOLERANCE, inputs

_COMMON = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "max_positions": 64}

SIZES: dict[str, dict[str, Any]] = {
    "modernbert": {**_COMMON, "local_layers": (1, 2), "sliding_window": 3},
    "deberta-v2": {
        **_COMMON, "type_vocab_size": 0, "positions": "relative", "position_attention": "c2p|p2c",
        "position_buckets": 8, "share_position_projections": True, "norm_relative_positions": True,
    },
}  # fmt: skip
"""Toy sizes; sequences are longer than the local attention, and than the distances with a bucket of their own."""

CLASSES = {"modernbert": "ModernBertForMaskedLM", "deberta-v2": "DebertaV2ForMaskedLM"}


@pytest.mark.parametrize("family", SIZES)
def test_pretrained_model_loads_in_transformers_and_learns_a_task(
    family: str, tmp_path: Path, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, family, replace(FAMILIES[family], sizes={"toy": SIZES[family]}))
    (tmp_path / "corpus.txt").write_text("my card is lost at the bank please help\n\n" * 40)
    (tmp_path / "vocabulary").mkdir()
    read_tokenizer(toy_vocab, "bert").save(str(tmp_path / "vocabulary" / "tokenizer.json"))
    source = InitialModel(family=family, size="toy", tokenizer=tmp_path / "vocabulary")
    settings = PretrainSettings(
        steps=6, batch_size=4, lr=1e-2, max_tokens=24, dev_fraction=0.2, eval_every=3, precision="fp32"
    )
    report = pretrain(source, TextFiles([tmp_path / "corpus.txt"]), tmp_path / "out", settings, cache=tmp_path / "c")
    first, last = (measured["mlm_loss"] for measured in report["measured"])
    assert last < first
    theirs, loading = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    checkpoint = open_checkpoint(tmp_path / "out")
    ours = load_model(checkpoint, checkpoint.task())
    ids, attention, segments = inputs(3, "full", checkpoint.config.vocab_size)
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids, attention_mask=attention).logits
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE
    rows = [{"text": "my card is lost", "label": "card"}, {"text": "good morning", "label": "greeting"}] * 8
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = (tmp_path / "rows.jsonl", tmp_path / "rows.jsonl")
    recipe = TrainSettings(epochs=5, batch_size=4, lr=1e-2, precision="fp32")
    tuned = fine_tune("text-classification", tmp_path / "out", *files, tmp_path / "tuned", recipe)
    assert tuned["best"]["accuracy"] == 1.0
