"""replaced-token-detection: predictions compared with transformers' ELECTRA, and metrics over words."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torchmetrics.functional.classification import binary_accuracy, binary_f1_score

from bert_runtime import InputError, Model
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import ReplacedTokenDetection, TextInput

from ..task_models import (
    NASTY,
    RandomRunner,
    check_agreement,
    exported,
    random_model,
    reference,
    stsb,
    text_of,
    with_runner,
    wnut,
    wordpiece,
)

TASK = ReplacedTokenDetection()


class Pair(NamedTuple):
    """The transformers model, and a bundle of the same checkpoint."""

    theirs: Any
    tokenizer: Any
    model: Model
    texts: list[str]


@pytest.fixture(scope="module")
def toy_pair(toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A model with a vocabulary of real size, of which toy texts use few tokens."""
    tokenizer = transformers.BertTokenizer(str(toy_vocab / "vocab.txt"))
    theirs = reference("ElectraForPreTraining", tokenizer, embedding_size=16, vocab_size=30522)
    model = exported(theirs, tokenizer, tmp_path_factory.mktemp("detector"))
    return Pair(theirs, tokenizer, model, [*NASTY, "the train is late", "zebra"])


@pytest.fixture(scope="module")
def uncased_pair(toy_pair: Pair, shared_data: Path) -> Pair:
    """The same random model with a real tokenizer."""
    tokenizer = transformers.BertTokenizer(str(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"))
    model = with_runner(toy_pair.model.session, TASK, tokenizer._tokenizer, 256)
    return Pair(toy_pair.theirs, tokenizer, model, [*NASTY, *wnut(shared_data, 60), *stsb(shared_data, 40)])


@pytest.fixture(params=["toy", pytest.param("uncased", marks=pytest.mark.shared_data)])
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(f"{request.param}_pair")
    return found


@pytest.mark.parametrize("max_tokens", [16, 64])
def test_batch_single_and_stream_agree(toy_pair: Pair, max_tokens: int, toy_vocab: Path) -> None:
    """On texts of all lengths around the windows' boundaries."""
    model = with_runner(toy_pair.model.session, TASK, wordpiece(toy_vocab), max_tokens)
    check_agreement(model, [text_of(length) for length in (*range(60), 200)])


def test_scores_equal_sigmoid_of_transformers_logits(pair: Pair) -> None:
    for text, found in zip(pair.texts, pair.model(pair.texts), strict=True):
        with torch.no_grad():
            logits = pair.theirs(**pair.tokenizer(text, return_tensors="pt")).logits[0]
        expected = torch.sigmoid(logits)[1:-1].numpy()
        assert found.scores == pytest.approx(expected, abs=1e-4)
        clear = np.abs(expected - 0.5) > 1e-4
        assert (np.array(found.replaced, dtype=bool) == (expected >= 0.5))[clear].all()
        assert found.tokens.values == pytest.approx(logits[1:-1].numpy(), abs=1e-4)


def test_tokens_equal_transformers(pair: Pair) -> None:
    for text, found in zip(pair.texts, pair.model(pair.texts), strict=True):
        encoding = pair.tokenizer(text, return_offsets_mapping=True)
        rows = found.to_dict()
        assert [row["token"] for row in rows] == pair.tokenizer.convert_ids_to_tokens(encoding["input_ids"])[1:-1]
        assert [(row["start"], row["end"]) for row in rows] == encoding["offset_mapping"][1:-1]


def test_random_model_predicts_both_classes(pair: Pair) -> None:
    """Otherwise the comparisons would prove little."""
    found = [replaced for result in pair.model(pair.texts) for replaced in result.replaced]
    assert min(found.count(True), found.count(False)) > 3


class Scripted(RandomRunner):
    """A session that returns given logits for the tokens between the special ones, which would count as replaced."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = logits

    def values(self, ids: Sequence[int]) -> Any:
        return np.array([9, *self.logits, 9], dtype=np.float32)


def test_json_by_hand(toy_vocab: Path) -> None:
    model = with_runner(Scripted(0.0, -1.0, 1000.0, -1000.0), TASK, wordpiece(toy_vocab), 16)
    found = model("the xy €").to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found == [
        {"token": "the", "score": 0.5, "replaced": True, "start": 0, "end": 3},
        {"token": "x", "score": pytest.approx(1 / (1 + np.e)), "replaced": False, "start": 4, "end": 5},
        {"token": "##y", "score": 1.0, "replaced": True, "start": 5, "end": 6},
        {"token": "€", "score": 0.0, "replaced": False, "start": 7, "end": 8},
    ]


def test_text_without_tokens_has_no_predictions(toy_vocab: Path) -> None:
    model = random_model(TASK, toy_vocab, 16)
    assert [model(text).to_dict() for text in ("", " \n", "\x00")] == [[], [], []]


@pytest.mark.parametrize("threshold", [0, 0.1, 0.5, 0.9, 1])
def test_tokens_at_the_threshold_count_as_replaced(threshold: float, toy_vocab: Path) -> None:
    model = random_model(TASK, toy_vocab, 16).with_options(threshold=threshold)
    found = model("zebra and giraffe " * 20)
    assert found.replaced == tuple(bool(score >= threshold) for score in found.scores)
    assert (any(found.replaced), all(found.replaced)) == (threshold < 1, threshold == 0)
    score = float(found.scores.max())
    assert any(model.with_options(threshold=score)("zebra and giraffe " * 20).replaced)


WORDS = ("hello", "zebra", "a-b", "\x07", "é", "x" * 120, "東京", "New", ",")


def record(words: Sequence[str], tags: Sequence[str]) -> Record:
    return Record({"tokens": list(words), "tags": list(tags)}, Path("data.jsonl"), 3)


def words_by_hand(model: Model, words: Sequence[str]) -> list[bool]:
    """Return whether each word's first token counts as replaced; a word without tokens does not."""
    found, start, replaced = model(" ".join(words)).to_dict(), 0, []
    for word in words:
        inside = [token for token in found if token["end"] > start and token["start"] < start + len(word)]
        replaced.append(bool(inside) and inside[0]["replaced"])
        start += len(word) + 1
    return replaced


@pytest.mark.parametrize("threshold", [0.2, 0.5])
@pytest.mark.parametrize("max_tokens", [16, 64])
def test_score_is_computed_over_words_of_the_file(max_tokens: int, threshold: float, toy_vocab: Path) -> None:
    model, generator = (
        random_model(TASK, toy_vocab, max_tokens).with_options(threshold=threshold),
        np.random.default_rng(0),
    )
    sentences = [generator.choice(WORDS, generator.integers(1, 30)).tolist() for _ in range(8)]
    predicted = [words_by_hand(model, words) for words in sentences]
    gold = [[bool(tag ^ (generator.random() < 0.3)) for tag in row] for row in predicted]
    tags = [["replaced" if tag else "original" for tag in row] for row in gold]
    examples = [model.task.example(record(*pair)) for pair in zip(sentences, tags, strict=True)]
    found = model.task.score(model.outputs([example.inputs[0] for example in examples]), examples)
    flat = torch.tensor([list(chain(*predicted)), list(chain(*gold))]).int()
    assert found == {
        "f1": pytest.approx(float(binary_f1_score(*flat))),
        "accuracy": pytest.approx(float(binary_accuracy(*flat))),
    }


def test_row_of_tagged_words_becomes_example() -> None:
    example = TASK.example(record(["the", "xy"], ["original", "replaced"]))
    assert example.inputs == (TextInput("the xy"),)
    assert [array.tolist() for array in example.target] == [[[0, 3], [4, 6]], [0, 1]]
    with pytest.raises(DataError, match=r"^data\.jsonl:3: expected tags original and replaced, found B, C$"):
        TASK.example(record(["a", "b", "c"], ["B", "C", "B"]))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3},
        {"threshold": -0.1},
        {"threshold": 1.1},
        {"threshold": float("nan")},
        {"threshold": "0.5"},
        {"threshold": None},
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any], toy_vocab: Path) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        random_model(TASK, toy_vocab, 16).with_options(**options)


def test_with_options_does_not_change_the_original_model(toy_vocab: Path) -> None:
    model = random_model(TASK, toy_vocab, 16)
    before = model("zebra").to_dict()
    other = model.with_options(threshold=0.0)
    assert other.session is model.session
    assert all(other("zebra").replaced)
    assert model.task is TASK
    assert model("zebra").to_dict() == before
