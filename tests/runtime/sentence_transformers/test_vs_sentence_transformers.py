"""The drop-in classes compared with sentence-transformers itself, where that is installed."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_export import export
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import TextClassification
from bert_runtime.sentence_transformers import CrossEncoder, SentenceTransformer

theirs = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytestmark = pytest.mark.filterwarnings("default")

TEXTS = ["where is my card?", "hello", "I lost my money at the bank", "card " * 100, ""]
PAIRS = [(TEXTS[0], text) for text in TEXTS[:3]]


@pytest.mark.parametrize(
    ("ours", "original"),
    [
        (SentenceTransformer.encode, theirs.SentenceTransformer.encode),
        (CrossEncoder.predict, theirs.CrossEncoder.predict),
        (CrossEncoder.rank, theirs.CrossEncoder.rank),
    ],
    ids=["encode", "predict", "rank"],
)
def test_arguments_have_their_names_order_and_defaults(ours: Callable[..., Any], original: Callable[..., Any]) -> None:
    mine, other = (list(inspect.signature(function).parameters.values()) for function in (ours, original))
    for parameter, expected in zip(mine, other, strict=False):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            break
        assert parameter.name == expected.name
        assert parameter.default in (expected.default, None)


@pytest.fixture(scope="module")
def embeddings(prompted_bundle: Path) -> tuple[SentenceTransformer, Any]:
    checkpoint = prompted_bundle.parent / "checkpoint"
    return SentenceTransformer(prompted_bundle), theirs.SentenceTransformer(str(checkpoint), device="cpu")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt_name": "query"},
        {"prompt": "bank "},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"precision": "ubinary"},
        {"precision": "binary"},
        {"precision": "uint8"},
    ],
    ids=str,
)
def test_embeddings_are_equal(arguments: dict[str, Any], embeddings: tuple[SentenceTransformer, Any]) -> None:
    for method in ("encode", "encode_query", "encode_document"):
        ours, original = (getattr(model, method)(TEXTS, **arguments) for model in embeddings)
        assert (ours.dtype, ours.shape) == (original.dtype, original.shape)
        quantized = str(arguments.get("precision", "")).endswith("int8")
        np.testing.assert_allclose(ours.astype(float), original.astype(float), atol=1 if quantized else 1e-5)


def test_similarities_are_equal(embeddings: tuple[SentenceTransformer, Any]) -> None:
    vectors = embeddings[0].encode(TEXTS)
    for name in ("cosine", "dot", "euclidean", "manhattan"):
        for model in embeddings:
            model.similarity_fn_name = name
        for method in ("similarity", "similarity_pairwise"):
            ours, original = (getattr(model, method)(vectors, vectors[::-1].copy()) for model in embeddings)
            np.testing.assert_allclose(ours, original.numpy(), atol=1e-5)


@pytest.mark.parametrize("labels", [("relevance",), ("a", "b", "c")], ids=len)
def test_scores_are_equal(labels: tuple[str, ...], toy_vocab: Path, toy_config: EncoderConfig, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    task = TextClassification(labels=labels, problem_type="regression" if len(labels) == 1 else "single_label")
    save_model(TaskModel(toy_config, task), tmp_path / "checkpoint", tokenizer_from=toy_vocab)
    export(tmp_path / "checkpoint", tmp_path / "bundle", precisions=["fp32"])
    ours = CrossEncoder(tmp_path / "bundle")
    original = theirs.CrossEncoder(str(tmp_path / "checkpoint"), device="cpu")
    np.testing.assert_allclose(ours.predict(PAIRS), original.predict(PAIRS), atol=1e-5)
    np.testing.assert_allclose(ours.predict(PAIRS[0]), original.predict(PAIRS[0]), atol=1e-5)
    if len(labels) == 1:
        found = [rank["corpus_id"] for rank in ours.rank(TEXTS[0], TEXTS[1:3])]
        assert found == [rank["corpus_id"] for rank in original.rank(TEXTS[0], TEXTS[1:3])]
