"""A real SPLADE checkpoint: 2 layers, BERT's uncased vocabulary, weights with the old names `gamma` and `beta`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bert_export import export
from bert_runtime import load

TEXTS = [
    "I lost my card.",
    "Paris is the capital of France and a very large city in Europe.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "x",
    "The parcel has not arrived, although it was sent two weeks ago; where is it now? " * 8,
]


@pytest.fixture(scope="module")
def bundle(pretrained_splade: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splade") / "bundle"
    export(pretrained_splade, folder, task="sparse-embedding")
    return folder


@pytest.fixture(scope="module")
def expected(pretrained_splade: Path) -> np.ndarray:
    """The weights as SPLADE defines them, from transformers' own model (Formal et al., arXiv:2109.10086)."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained_splade)
    model = AutoModelForMaskedLM.from_pretrained(pretrained_splade).eval()
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**encoded).logits
    weights: np.ndarray = (torch.log1p(torch.relu(logits)) * encoded["attention_mask"][..., None]).amax(dim=1).numpy()
    return weights


@pytest.mark.pretrained
@pytest.mark.slow
def test_fp32_weights_equal_those_of_transformers(bundle: Path, expected: np.ndarray) -> None:
    model = load(bundle, precision="fp32")
    for result, weights in zip(model(TEXTS), expected, strict=True):
        found = np.zeros_like(weights)
        found[result.indices] = result.weights
        assert np.abs(found - weights).max() <= 1e-5
    assert set(model(TEXTS[0]).tokens[:2]) == {"lost", "card"}


@pytest.mark.pretrained
@pytest.mark.slow
def test_int8_weights_are_close(bundle: Path, expected: np.ndarray) -> None:
    outputs = load(bundle, precision="int8").outputs(TEXTS)
    for output, weights in zip(outputs, expected, strict=True):
        found = output.arrays[0]
        cosine = float(found @ weights / np.linalg.norm(found) / np.linalg.norm(weights))
        assert cosine >= 0.995
