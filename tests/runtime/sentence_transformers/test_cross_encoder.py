"""`CrossEncoder` on bundles of every kind of classifier of pairs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_runtime import InputError, Model, TextClassification
from bert_runtime.numerics import sigmoid, softmax
from bert_runtime.sentence_transformers import CrossEncoder

from ..task_models import random_model

PAIRS = [("where is my card?", "hello"), ("hello", "bye"), ("where is my card?", "my card is gone")]


def pair_model(vocab: Path, task: TextClassification) -> Model:
    """Return a model with random logits for each pair."""
    model = random_model(task, vocab, 64, len(task.labels))
    run = model.session.run
    model.session.run = lambda batch: run(batch)[:, 1]  # type: ignore[method-assign]
    return model


@pytest.fixture
def one(toy_vocab: Path) -> Model:
    """A model of one score."""
    return pair_model(toy_vocab, TextClassification(labels=("relevance",), problem_type="regression"))


@pytest.fixture
def three(toy_vocab: Path) -> Model:
    """A model of three scores."""
    return pair_model(toy_vocab, TextClassification(labels=("a", "b", "c")))


def logits(model: Model) -> np.ndarray:
    return np.stack([output.arrays[0] for output in model.outputs(PAIRS)])


def test_one_score_is_a_sigmoid(one: Model) -> None:
    model = CrossEncoder(one)
    expected = sigmoid(logits(one)[:, 0])
    assert model.predict(PAIRS).tolist() == expected.tolist()
    assert model.predict([list(pair) for pair in PAIRS]).tolist() == expected.tolist()
    assert model.predict(np.array(PAIRS)).tolist() == expected.tolist()
    assert model.predict(PAIRS[0]) == pytest.approx(expected[0])
    assert np.shape(model.predict(PAIRS[0])) == ()
    assert model.predict([]).shape[0] == 0
    assert model.predict(PAIRS, convert_to_tensor=True).tolist() == expected.tolist()


def test_activations(one: Model) -> None:
    raw = logits(one)[:, 0]
    assert CrossEncoder(one, activation_fn=torch.nn.Identity()).predict(PAIRS).tolist() == raw.tolist()
    assert CrossEncoder(one).predict(PAIRS, activation_fn=lambda x: 2 * x).tolist() == (2 * raw).tolist()
    with pytest.raises(InputError, match="activation_fn=ReLU is not supported by bundles; expected Sigmoid or Identit"):
        CrossEncoder(one, activation_fn=torch.nn.ReLU()).predict(PAIRS)


def test_several_scores(three: Model) -> None:
    model = CrossEncoder(three, num_labels=3)
    assert model.predict(PAIRS).tolist() == logits(three).tolist()
    assert model.predict(PAIRS, apply_softmax=True).tolist() == softmax(logits(three)).tolist()
    assert model.predict(PAIRS[0]).shape == (3,)
    with pytest.raises(InputError, match="rank needs a bundle with one score for a pair, found 3; call predict"):
        model.rank("hello", ["bye"])


def test_rank(one: Model) -> None:
    model, documents = CrossEncoder(one), ["hello", "bye", "my card is gone"]
    scores = model.predict([("card", document) for document in documents])
    order = np.argsort(-scores, kind="stable").tolist()
    found = model.rank("card", documents, return_documents=True)
    assert found == [{"corpus_id": i, "score": float(scores[i]), "text": documents[i]} for i in order]
    for option in ({"convert_to_numpy": False}, {"convert_to_tensor": True}):
        assert model.rank("card", documents, return_documents=True, **option) == found
    assert model.rank("card", documents, top_k=2) == [{"corpus_id": i, "score": float(scores[i])} for i in order[:2]]


def test_rank_needs_a_list_of_documents(one: Model) -> None:
    with pytest.raises(InputError, match="expected a list of documents, found str; put one document into a list"):
        CrossEncoder(one).rank("card", "hello")


def test_programs_may_name_the_device_of_the_bundle(one: Model) -> None:
    model = CrossEncoder(one)
    assert model.predict(PAIRS, device=model.device).tolist() == model.predict(PAIRS).tolist()


def test_prompts_are_in_front_of_the_first_text(one: Model) -> None:
    model = CrossEncoder(one, prompts={"query": "card "}, default_prompt_name="query")
    prompted = [(f"card {first}", second) for first, second in PAIRS]
    assert model.predict(PAIRS).tolist() == CrossEncoder(one).predict(prompted).tolist()
    assert model.predict(PAIRS, prompt="").tolist() == CrossEncoder(one).predict(PAIRS).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": ["a", "b", "c"]}, r"input 0: expected a pair of texts, found \['a', 'b', 'c'\]"),
        ({"inputs": [("a", "b"), ("a", None)]}, r"input 1: expected a pair of texts, found \('a', None\)"),
        ({"inputs": 5}, "expected a text or several, found int: 5"),
        ({"inputs": {"query": "a", "document": "b"}}, "expected a text or several, found dict"),
        ({"inputs": PAIRS, "device": "cuda"}, "predict: device='cuda' is not supported: this bundle was loaded on"),
        ({"inputs": PAIRS, "pool": {}}, "predict: pool={} is not supported by bundles"),
        ({"inputs": PAIRS, "batch_size": -1}, "predict: expected a batch_size of at least 1, found -1"),
    ],
)
def test_unsupported_arguments_are_named(arguments: dict[str, Any], message: str, one: Model) -> None:
    with pytest.raises(InputError, match=message):
        CrossEncoder(one).predict(**arguments)


def test_other_settings_than_the_bundle_has_are_refused(one: Model, embedding_bundle: Path) -> None:
    with pytest.raises(InputError, match="CrossEncoder: num_labels=2 is not supported by bundles; expected 1"):
        CrossEncoder(one, num_labels=2)
    assert CrossEncoder(one, max_length=64).max_length == 64
    with pytest.raises(InputError, match="CrossEncoder: max_length=512 is not supported by bundles; expected 64"):
        CrossEncoder(one, max_length=512)
    with pytest.raises(InputError, match="needs a bundle for rerank or text-classification, found one for sentence-e"):
        CrossEncoder(embedding_bundle)
