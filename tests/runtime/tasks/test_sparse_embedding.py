"""sparse-embedding: which tokens a result has, and the metrics of weights."""

from pathlib import Path

import numpy as np
import pytest

from bert_runtime.errors import InputError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Outputs, SparseEmbedding, TextInput
from bert_runtime.tokenization import TextTokenizer

from ..outputs import outputs_of
from ..task_models import wordpiece

TASK = SparseEmbedding(vocab_size=400)


def decoded(vocab: Path, weights: dict[int, float], **options: object) -> object:
    vector = np.zeros(TASK.vocab_size, dtype=np.float32)
    for token, weight in weights.items():
        vector[token] = weight
    tokenizer = TextTokenizer(wordpiece(vocab), 64, 0)
    text = TextInput("my card")
    outputs = Outputs(text, tokenizer.encode([text])[0], (vector,), tokenizer)
    return TASK.with_options(**options).decode(outputs)


def test_tokens_with_a_weight_come_largest_first(toy_vocab: Path) -> None:
    result = decoded(toy_vocab, {5: 0.5, 120: 2.0, 9: 0.5})
    words = (toy_vocab / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert result.indices.tolist() == [120, 5, 9]
    assert result.weights.dtype == np.float32
    assert result.to_dict() == {"sparse_embedding": {words[120]: 2.0, words[5]: 0.5, words[9]: 0.5}}
    assert result.summary() == f"{words[120]} 2.0000, {words[5]} 0.5000, {words[9]} 0.5000"


def test_options_limit_the_tokens(toy_vocab: Path) -> None:
    weights = {5: 0.5, 120: 2.0, 9: 0.7}
    assert decoded(toy_vocab, weights, top_k=2).indices.tolist() == [120, 9]
    assert decoded(toy_vocab, weights, min_weight=0.5).indices.tolist() == [120, 9]
    assert decoded(toy_vocab, weights, min_weight=3).to_dict() == {"sparse_embedding": {}}
    assert decoded(toy_vocab, {}).summary() == "no tokens"


def test_id_beyond_the_tokenizers_vocabulary_has_a_name(toy_vocab: Path) -> None:
    assert decoded(toy_vocab, {399: 1.0}).tokens == ("#399",)


@pytest.mark.parametrize(("option", "value"), [("top_k", 0), ("top_k", 1.5), ("min_weight", -1), ("top_q", 3)])
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=option):
        TASK.with_options(**{option: value})


@pytest.mark.parametrize(
    ("settings", "message"), [({"pooling": "mean"}, "pooling of max, sum"), ({"activation": "gelu"}, "activation of")]
)
def test_bad_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparseEmbedding(vocab_size=3, **settings)


def test_settings_survive_a_manifest() -> None:
    task = SparseEmbedding(vocab_size=7, pooling="sum", activation="log1p_relu", top_k=3, min_weight=0.1)
    assert SparseEmbedding.from_dict(task.to_dict()) == task
    assert SparseEmbedding.from_dict(TASK.to_dict()) == TASK
    assert "top_k" not in TASK.to_dict()


def pair(query: str, document: str) -> Example:
    return TASK.example(Record({"text": query, "text_pair": document}, Path("pairs.jsonl"), 1))


def test_metrics_rank_every_document_for_every_query() -> None:
    vectors = {"a": [1, 0, 0], "b": [0, 1, 0], "x": [3, 0, 0], "y": [0, 2, 0], "z": [0, 3, 0]}
    examples = [pair("a", "x"), pair("b", "y"), pair("b", "z"), pair("a", "y")]
    inputs = [text for example in examples for text in example.inputs]
    outputs = [
        output._replace(input=text)
        for output, text in zip(
            outputs_of(np.array([vectors[text.text] for text in inputs], dtype=np.float32)), inputs, strict=True
        )
    ]
    # a finds x alone, since it shares no token with y; b finds z, then y.
    metrics = TASK.score(outputs, examples)
    assert metrics["mrr_at_10"] == 1
    assert metrics["recall_at_10"] == 0.75
    assert metrics["recall_at_1"] == 0.5
    wrong = TASK.score(outputs, [pair("a", "y"), pair("b", "x"), pair("b", "x"), pair("a", "y")])
    assert wrong["mrr_at_10"] < 0.5


def test_agreement_measures_direction_and_tokens() -> None:
    reference = outputs_of(np.array([[1, 2, 0], [0, 0, 0]], dtype=np.float32))
    assert TASK.agreement(reference, reference) == {"mean_cosine": 1, "p1_cosine": 1, "top_32_overlap": 1}
    other = TASK.agreement(outputs_of(np.array([[1, 0, 2], [0, 0, 0]], dtype=np.float32)), reference)
    assert other["mean_cosine"] == pytest.approx((0.2 + 1) / 2)
    assert other["top_32_overlap"] == pytest.approx((0.5 + 1) / 2)
